"""Made-up runs for the tests of the web page: what a node could know, without a node."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rounds_swarm import BOOTSTRAP, RUN_ID, invented

from bootstrap.web.history import Row
from bootstrap.web.names import told_apart
from bootstrap.web.view import Facts
from spes_peer.identity import Identity, PeerId
from spes_peer.rounds.messages import CoordinatorBeat
from spes_peer.run.manifest import Manifest
from spes_peer.run.peers import PeerState
from spes_peer.run.records import DataRange, RosterEntry, first_record
from spes_peer.run.rules import Rules
from spes_peer.run.tallies import Tally

STARTED_AT = 1_764_000_000.0
NAMES = ("tower", "old laptop", "lab-3", "räknare", "gpu-box", "kitchen", "attic", "desk 4", "blue whale", "orchard")


@functools.cache
def peer(number: int) -> PeerId:
    return Identity.from_seed(number.to_bytes(4, "big") * 8).peer_id


def soon_settled(closed: int) -> float:
    """A loss after so many rounds."""
    return 2.05 + 3.6 * math.exp(-closed / 6) + 0.02 * math.sin(closed * 2.7)


@dataclass(frozen=True)
class MadeUp:
    """A run as far as its page shows it."""

    manifest: Manifest
    num_peers: int = 10
    num_closed: int = 40
    round_seconds: float = 610.0
    names: Sequence[str] = NAMES
    num_gone: int = 2
    phase: str = "training"
    loss_after: Callable[[int], float] = soon_settled
    is_final: bool = False

    @property
    def peers(self) -> list[PeerId]:
        return [peer(number + 1) for number in range(self.num_peers)]

    def facts(self, **changes: Any) -> Facts:
        peers, training = self.peers, self.manifest.training
        members = peers[: max(0, self.num_peers - self.num_gone)] if self.num_closed else []
        rows = self._rows(len(members))
        zero = first_record(RUN_ID, (), (BOOTSTRAP,), STARTED_AT)
        roster = tuple(
            RosterEntry(one, 1, (number % training.num_subsets,), (DataRange(0, 9),), 1)
            for number, one in enumerate(members)
        )
        head = replace(
            zero,
            round=rows[-1].round,
            roster=() if self.is_final else tuple(sorted(roster, key=lambda entry: entry.peer_id)),
            step=rows[-1].step,
            opened_at=rows[-1].opened_at,
            deadline_at=rows[-1].opened_at + 600.0,
            is_final=self.is_final,
        )
        total = rows[-1].total_tokens
        weights = [1 / (2 + number) for number in range(self.num_peers)]
        tallies = {
            one: Tally(int(total * weight / sum(weights)), self.num_closed)
            for one, weight in zip(peers, weights, strict=True)
            if self.num_closed
        }
        owned = {subset for entry in roster for subset in entry.subsets}
        facts = Facts(
            manifest=self.manifest,
            run_id=RUN_ID,
            head=head,
            certified_round=head.round,
            rows=rows,
            rounds_trained={n: self.num_closed - (n % 3) for n in range(training.num_subsets) if self.num_closed},
            last_trained={n: head.round - (0 if n in owned else 7) for n in owned} if self.num_closed > 7 else {},
            tallies=tallies,
            labels=told_apart(self._named()),
            nodes={BOOTSTRAP: "this bootstrap node"},
            states=dict.fromkeys(members, PeerState.ONLINE),
            beat=CoordinatorBeat(0, head.round, self.phase, head.opened_at, tuple(members[:2]), 0.0, "a stranger's"),
            join_addresses=(f"/dns/run.example.org/tcp/4510/p2p/{BOOTSTRAP}",),
            rules=Rules.of(self.manifest),
            checkpoint_round=head.round // 10 * 10,
            checkpoint_bytes=28_400_000,
        )
        return replace(facts, **changes)

    def _named(self) -> dict[PeerId, str]:
        return {
            one: self.names[number % len(self.names)] if number < len(self.names) else f"machine {number}"
            for number, one in enumerate(self.peers)
        }

    def _rows(self, num_members: int) -> tuple[Row, ...]:
        training, model = self.manifest.training, self.manifest.model
        rows: list[Row] = []
        for number in range(self.num_closed + 2 if self.num_closed else 1):
            closed = max(0, number - 1)
            step = min(closed * training.steps_per_round, training.total_steps)
            tokens = training.steps_per_round * training.batch_sequences * model.sequence_length if closed else 0
            loss = self.loss_after(closed)
            rows.append(
                Row(
                    round=number,
                    opened_at=STARTED_AT + closed * self.round_seconds + (30 if number else 0),
                    tokens=tokens,
                    total_tokens=(rows[-1].total_tokens if rows else 0) + tokens,
                    step=step,
                    train_loss=loss - 0.06 if closed else None,
                    held_out_loss=loss + 0.04 if number > 1 else None,
                    root=invented("root", number)[:12],
                    num_contributors=num_members if closed else 0,
                    num_members=num_members if number else 0,
                    update_bytes=1_000_000,
                    coordinator=None if number == 0 else BOOTSTRAP if number % 9 else self.peers[0],
                    is_final=self.is_final and number == self.num_closed + 1,
                )
            )
        return tuple(rows)
