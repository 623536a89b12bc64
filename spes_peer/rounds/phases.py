"""The coordinator's state: frozen values, each phase with the data that is valid only in it.

    Admitting ──enough applicants──► Closing ──more than half signed──► Training ──► Reducing ──► Closing ──► …
                                                                        Resting ──────────────► Closing ──► …
                                                                                                Closing ──► Finished

`Closing` is the phase in which a proposed record gathers signatures. A record with an empty roster, from which
everybody has gone, leads back to `Admitting`; one whose members have nothing to train, since the run is paused or they
are too few, to `Resting`.

Every node that a record names as a candidate keeps this state, and follows the rounds in it; only who `leads` goes on
from phase to phase (`rounds.election` says who that is).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from spes_peer.blobs import BlobName
from spes_peer.identity import PeerId
from spes_peer.rounds.admission import Crowd
from spes_peer.rounds.contributions import Contributions
from spes_peer.rounds.election import Mandate
from spes_peer.rounds.messages import Footing, Verdict
from spes_peer.rounds.ownership import Past
from spes_peer.rounds.reducing import Reduction
from spes_peer.run.certificates import electorate
from spes_peer.run.invitations import InvitationProof
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId, CertifiedRecord, SealedRecord
from spes_peer.run.rules import Rules, rules_in, rules_of
from spes_peer.run.signed import Signed


@dataclass(frozen=True)
class Fixed:
    """What does not change during a run."""

    layout: Layout

    @property
    def manifest(self) -> Manifest:
        return self.layout.manifest

    @cached_property
    def first_rules(self) -> Rules:
        """Those with which the run began."""
        return Rules.of(self.manifest)


@dataclass(frozen=True)
class Admitting:
    """Nobody is on the roster; newcomers gather."""

    since_at: float
    name: str = "admitting"


@dataclass(frozen=True)
class Resting:
    """Members have nothing to do; newcomers gather, and organizers may change the rules."""

    since_at: float
    footings: Mapping[PeerId, tuple[Signed, Footing]] = field(default_factory=dict)
    """On which state root each member says that it stands."""
    name: str = "resting"


@dataclass(frozen=True)
class Training:
    """Members train; sound contributions come in."""

    since_at: float
    contributions: Contributions = field(default_factory=dict)
    made_by: Mapping[PeerId, int] = field(default_factory=dict)
    """Which start of its maker made each contribution; a newer start may make another."""
    excused: frozenset[PeerId] = frozenset()
    """Who has said that nobody need wait for it."""
    verdicts: Mapping[tuple[int, PeerId], tuple[Signed, Verdict]] = field(default_factory=dict)
    """Said to an earlier coordinator of the round, and said again to this one."""
    footings: Mapping[PeerId, tuple[Signed, Footing]] = field(default_factory=dict)
    """On which state root each member says that it stands."""
    name: str = "training"


@dataclass(frozen=True)
class Reducing:
    """Contributions are closed; blocks are averaged and spread."""

    since_at: float
    contributions: Contributions
    """Those that count."""
    reductions: Mapping[BlockId, Reduction]
    holders: Mapping[BlobName, frozenset[PeerId]] = field(default_factory=dict)
    """Who has which update."""
    verdicts: Mapping[tuple[int, PeerId], tuple[Signed, Verdict]] = field(default_factory=dict)
    """What members say of experts' updates: the newest word of each, as it came and what is in it."""
    footings: Mapping[PeerId, tuple[Signed, Footing]] = field(default_factory=dict)
    name: str = "reducing"

    def holders_of(self, blob: BlobName) -> frozenset[PeerId]:
        return self.holders.get(blob, frozenset())


@dataclass(frozen=True)
class Closing:
    """A record is proposed and gathers signatures."""

    since_at: float
    proposal: SealedRecord
    term: int
    asked_at: float
    """When those who have not signed were last asked."""
    signatures: Mapping[PeerId, Signed] = field(default_factory=dict)
    carried: frozenset[PeerId] = frozenset()
    """Signers who just go on with it, uncertified."""
    verdicts: tuple[Signed, ...] = ()
    """What members said of experts to whose updates somebody objects."""
    footings: tuple[Signed, ...] = ()
    """Who stood on its state root, where somebody stood on another."""
    proofs: tuple[InvitationProof, ...] = ()
    """Of newcomers on its roster."""
    name: str = "closing"


@dataclass(frozen=True)
class Finished:
    """The last record has taken effect."""

    since_at: float
    name: str = "finished"


Phase = Admitting | Resting | Training | Reducing | Closing | Finished


@dataclass(frozen=True)
class Coordinator:
    """Everything a node knows that coordinates, or would."""

    fixed: Fixed
    crowd: Crowd
    head: SealedRecord
    """The newest record that has taken effect; its round is the open one."""
    me: PeerId
    """The node that this is."""
    phase: Phase
    mandate: Mandate = field(default_factory=Mandate)
    heard_term: int | None = None
    """The term of another node that this one hears coordinate."""
    past: Past = field(default_factory=Past)
    """What of the records up to `head` counts for the next roster."""
    amendment: Signed | None = None
    """Of the rules, for the next record to carry; found good behind `head`."""

    @property
    def rules(self) -> Rules:
        """Those of the open round."""
        return rules_of(self.head.record, self.fixed.first_rules)

    @property
    def next_rules(self) -> Rules:
        """Those of the record that this node would propose."""
        return self.rules if self.amendment is None else rules_in(self.amendment)

    @property
    def present(self) -> frozenset[PeerId]:
        """Members of the open round that attend."""
        return self.crowd.present(self.head.record)

    @property
    def term(self) -> int:
        return self.mandate.term

    @property
    def voters(self) -> tuple[PeerId, ...]:
        """Whose signatures the proposal needs; nobody's outside of `Closing`."""
        return electorate(self.phase.proposal.record, self.head.record) if isinstance(self.phase, Closing) else ()


@dataclass(frozen=True)
class Outgoing:
    """A message to send."""

    to: PeerId | None
    """None: to everybody who attends."""
    message: Any


@dataclass(frozen=True)
class Step:
    """What an event leads to. Send `outgoing` in order, but only once `certified` is on disk."""

    state: Coordinator
    outgoing: tuple[Outgoing, ...] = ()
    certified: CertifiedRecord | None = None
