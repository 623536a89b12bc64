"""What one peer sends and receives per round, before anybody has joined. Pure numbers, no torch.

Counted block by block in the sizes that `run/layout.py` demands, for N peers that are all there and all contribute.
A block that one peer offers is fetched by the N − 1 others: the offer is the update. Of a block that k > 1 peers offer

    R = min(reducers_per_block, N) reducers, drawn from all N, fetch the offers that they did not make: R·k·(N − 1)/N
    the N − R others fetch the mean

on average over the draw, and exactly where all peers offer it, as they do shared blocks. All of it goes from peer to
peer, so together they send what they receive, and *so does the average peer*: pieces of a blob come from whoever has
them, and its maker need not send them more than once.

Subsets are spread evenly: up to as many peers as subsets each has one owner, so with fewer peers than that each takes
⌊S/N⌋ or ⌈S/N⌉ (one that has no memory for it leaves experts untrained, and traffic is less); with more peers they
share subsets, whose offers are then averaged.

Left out: what is small (records, contributions, heartbeats, the DHT, hashes of pieces, TLS: well below 1 % of blocks of
megabytes) and what is rare (fetching again from another peer, further reducers in a dispute, repair).
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spes_peer.errors import BadConfiguration
from spes_peer.run.encodings import Encoding
from spes_peer.run.layout import Block, RunLayout
from spes_peer.run.manifest import MOST_PEERS, RunFile


@dataclass(frozen=True)
class Encodings:
    """How offers and updates travel; the defaults are the yardstick that others are compared with."""

    shared_offers: Encoding = "fp32"
    shared_updates: Encoding = "fp32"
    experts: Encoding = "fp32"

    @classmethod
    def of(cls, run: RunFile) -> "Encodings":
        return cls(run.sync.shared_offer_encoding, run.sync.shared_update_encoding, run.sync.expert_encoding)

    def in_place_of(self, run: RunFile) -> RunFile:
        """`run` with these."""
        update = {
            "shared_offer_encoding": self.shared_offers,
            "shared_update_encoding": self.shared_updates,
            "expert_encoding": self.experts,
        }
        return run.model_copy(update={"sync": run.sync.model_copy(update=update)})


@dataclass(frozen=True)
class TrafficPlan:
    """Bytes of one average peer in one round of `num_peers`."""

    num_peers: int
    offered_bytes: int
    """Its own offers, each counted once: what a peer of the paper sends to its server."""
    applied_bytes: int
    """All updates of a record, each counted once: what a peer of the paper receives."""
    fetched_update_bytes: int
    """Of them, what it neither made by reducing nor offered as the only one."""
    fetched_offer_bytes: int
    """What it fetches in order to reduce."""
    snapshot_bytes: int
    """The whole public state, which a newcomer fetches, before the updates since."""

    @property
    def received_bytes(self) -> int:
        return self.fetched_update_bytes + self.fetched_offer_bytes

    @property
    def sent_bytes(self) -> int:
        """The same: all that is received is sent by a peer."""
        return self.received_bytes

    def times_fewer_than(self, other: "TrafficPlan") -> float:
        """By how much `other` sends more; 1 where neither sends anything."""
        return other.sent_bytes / self.sent_bytes if self.sent_bytes else 1.0


@dataclass(frozen=True)
class Line:
    """A peer's way to the Internet, in bits per second; both ways at once."""

    up: float
    down: float

    def exchange_seconds(self, plan: TrafficPlan) -> float:
        """Time that a round's bytes take when all peers have such a line and nothing else slows them."""
        return 8 * max(plan.sent_bytes / self.up, plan.received_bytes / self.down)

    def snapshot_seconds(self, plan: TrafficPlan) -> float:
        """Time that a newcomer needs for the snapshot, which all peers send at once."""
        return 8 * plan.snapshot_bytes / min(self.down, plan.num_peers * self.up)


def traffic_plan(run: RunFile, num_peers: int) -> TrafficPlan:
    """`BadConfiguration` for a run that has no such rounds."""
    if not 1 <= num_peers <= MOST_PEERS:
        raise BadConfiguration(f"a round has from 1 to {MOST_PEERS:,} peers, not {num_peers}")
    if run.model.num_experts % run.training.num_subsets:
        raise BadConfiguration(
            f"num_subsets ({run.training.num_subsets}) must divide num_experts ({run.model.num_experts})"
        )
    layout = RunLayout(run)
    total = _Total()
    for block, num_offers, num_blocks in _offered(layout, num_peers):
        total += _of_block(layout, block, num_offers, num_peers).times(num_blocks)
    return TrafficPlan(
        num_peers,
        offered_bytes=round(total.offered / num_peers),
        applied_bytes=round(total.applied / num_peers),
        fetched_update_bytes=round(total.fetched_updates / num_peers),
        fetched_offer_bytes=round(total.fetched_offers / num_peers),
        snapshot_bytes=_snapshot_bytes(layout),
    )


def owners_of_subsets(num_subsets: int, num_peers: int) -> tuple[int, ...]:
    """How many owners each subset has, spread evenly; at least one."""
    each, more = divmod(num_peers, num_subsets)
    return tuple(max(1, each + (subset < more)) for subset in range(num_subsets))


def round_seconds(run: RunFile, num_peers: int, tokens_per_second: float) -> float:
    """Time that a round's steps take when each of the peers trains so many tokens per second."""
    training = run.training
    sequences = training.steps_per_round * max(training.batch_sequences, num_peers)
    return sequences * run.model.sequence_length / num_peers / tokens_per_second


def utilisation(run: RunFile, training_seconds: float, exchange_seconds: float) -> float:
    """Part of the time in which a peer trains, when a round's steps take `training_seconds`: the exchange costs what
    is left of it after `overlap_steps` of them."""
    hidden = training_seconds * min(1.0, run.sync.overlap_steps / run.training.steps_per_round)
    return training_seconds / (training_seconds + max(0.0, exchange_seconds - hidden))


# ---- the sum ----


@dataclass(frozen=True)
class _Total:
    """Bytes of all peers together."""

    offered: float = 0
    applied: float = 0
    fetched_updates: float = 0
    fetched_offers: float = 0

    def __add__(self, other: "_Total") -> "_Total":
        return _Total(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def times(self, factor: int) -> "_Total":
        return _Total(*(factor * value for value in dataclasses.astuple(self)))


def _offered(layout: RunLayout, num_peers: int) -> Iterator[tuple[Block, int, int]]:
    """Blocks, how many peers offer each, and how many such blocks there are: experts are all of one size."""
    for block in layout.shared_blocks:
        yield block, num_peers, 1
    num_subsets = layout.manifest.training.num_subsets
    per_subset = layout.manifest.model.num_experts // num_subsets
    for num_owners, subsets in sorted(Counter(owners_of_subsets(num_subsets, num_peers)).items()):
        for block in layout.expert_blocks(0):
            yield block, num_owners, subsets * per_subset


def _of_block(layout: RunLayout, block: Block, num_offers: int, num_peers: int) -> _Total:
    offer = layout.offer_bytes(block)
    if num_offers == 1:
        return _Total(offer, num_peers * offer, (num_peers - 1) * offer, 0)
    mean = layout.mean_bytes(block)
    num_reducers = min(layout.manifest.sync.reducers_per_block, num_peers)
    to_reduce = num_reducers * num_offers * (num_peers - 1) / num_peers
    return _Total(num_offers * offer, num_peers * mean, (num_peers - num_reducers) * mean, to_reduce * offer)


def _snapshot_bytes(layout: RunLayout) -> int:
    num_experts = layout.manifest.model.num_experts
    return _state_bytes(layout, layout.shared_blocks) + num_experts * _state_bytes(layout, layout.expert_blocks(0))


def _state_bytes(layout: RunLayout, blocks: Sequence[Block]) -> int:
    momenta = [layout.momentum_of(block) for block in blocks if layout.has_momentum(block)]
    return sum(layout.state_bytes(block) for block in (*blocks, *momenta))
