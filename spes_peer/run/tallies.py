"""What every peer has given to the run: tokens that records took in, and in how many rounds.

A fold over the records, so that it is what the chain says, whatever a peer remembers, and goes back with the chain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spes_peer.identity import PeerId
from spes_peer.run.records import Record


@dataclass(frozen=True)
class Tally:
    """Of one peer."""

    tokens: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class Tallies:
    """Of all that ever gave something."""

    by_peer: Mapping[PeerId, Tally] = field(default_factory=dict)

    def after(self, record: Record) -> "Tallies":
        """… once `record`, the next one, is there too."""
        if not (trained := record.trained):
            return self
        risen = {
            peer: Tally(self.of(peer).tokens + tokens, self.of(peer).rounds + 1) for peer, tokens in trained.items()
        }
        return Tallies({**self.by_peer, **risen})

    def of(self, peer: PeerId) -> Tally:
        return self.by_peer.get(peer, _NOTHING)


_NOTHING = Tally()
