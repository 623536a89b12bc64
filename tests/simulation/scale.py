"""What a round costs the coordinator and a peer, with 16 to 1,000 peers: messages, bytes and time of the processor.

    python -m tests.simulation.scale [--peers 16,64,256,1000] [--rounds 100] [--report docs/SCALE.json] [--plot F.svg]

Everybody signs for real, and messages have the bytes that they have on the wire. The coordinator and some peers open,
verify and check all that they get; the others take what is known already on trust, or the largest run would take a day.
Training takes no time of the processor here, and blobs do not travel: this is what coordinating costs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

from spes_peer.identity import Identity, PeerId
from spes_peer.rounds.messages import RecordSignature
from spes_peer.run import records
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import CertifiedRecord, SealedRecord
from spes_peer.run.signed import Signed, Signer
from spes_peer.wire import convert

from .invariants import Watch
from .network import Action, Process, Stream
from .node import SimulatedNode
from .stage import Stage, on_stage
from .world import MADE_UP_DATA, World

NUM_SUBSETS = 64
NUM_SHARED_BLOCKS = 4
TRAIN_SECONDS = 60.0
SAMPLED_PEERS = 5
_ORGANIZER = Identity.from_seed(b"\1" * 32)
_WARM_UP_ROUNDS = 2
_TIMING = {
    "heartbeat_seconds": 5.0,
    "round_seconds": 600.0,
    "fetch_stall_seconds": 15.0,
    "round_grace_seconds": 60.0,
    "coordinator_timeout_seconds": 120.0,
    "stall_timeout_seconds": 900.0,
    "dht_beat_seconds": 12.0,
    "dht_ttl_seconds": 50.0,
    "lease_seconds": 1300.0,
}


def large_layout(num_peers: int) -> Layout:
    """64 experts of one block each, and four blocks of shared parameters."""
    raw = parse_run_file(PRESETS["demo"]).model_dump(mode="json")
    raw["run"]["min_peers"] = num_peers
    raw["model"] |= {"num_experts": NUM_SUBSETS, "num_layers": 2, "expert_hidden": 64}
    raw["training"] |= {
        "num_subsets": NUM_SUBSETS,
        "steps_per_round": 8,
        "total_steps": 1_000_000,
        "batch_sequences": 2 * num_peers,
        "final_phase_fraction": 0.0,
    }
    raw["sync"] |= {"block_elements": 1 << 20, "merge_alpha": 0.0, "overlap_steps": 0}
    raw["timing"] = dict(_TIMING)
    raw |= {"data": MADE_UP_DATA, "organizers": [_ORGANIZER.peer_id]}
    num_shared = Layout(Manifest.model_validate(raw)).num_shared
    raw["sync"]["block_elements"] = -(-num_shared // NUM_SHARED_BLOCKS)
    layout = Layout(Manifest.model_validate(raw))
    assert len(layout.blocks) == NUM_SUBSETS + NUM_SHARED_BLOCKS, len(layout.blocks)
    return layout


class _RememberingSigner(Signer):
    """Signs for real; whoever takes it on trust need not open what is signed."""

    def sign(self, message: Any) -> Signed:
        signed = super().sign(message)
        signed.__dict__["_opened"] = message
        return signed


class _RealWorld(World):
    """Its nodes have keys, and are called by their peer ids."""

    def __init__(self, stage: Stage, num_peers: int) -> None:
        self._identities: dict[str, Identity] = {_ORGANIZER.peer_id: _ORGANIZER}
        super().__init__(stage, 1, num_peers, 1, large_layout(num_peers))
        self.train_seconds = TRAIN_SECONDS
        for machine in self.machines.values():
            machine.train_seconds = TRAIN_SECONDS
        self.reconsiders = False

    def new_name(self, kind: str, number: int) -> PeerId:
        identity = Identity.from_seed(hashlib.sha256(f"{kind} {number}".encode()).digest())
        self._identities[identity.peer_id] = identity
        return identity.peer_id

    def identity_of(self, name: str) -> Identity:
        return self._identities[name]

    def signer_of(self, name: str, incarnation: int) -> Signer:
        return _RememberingSigner(self.identity_of(name), self.run_id, incarnation, lambda: bytes(32))


@dataclass
class _Account:
    """Of one node."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0


class _Unwatched(Watch):
    """Counts changes and checks nothing, which would cost a node time."""

    def on_certificate(self, node: SimulatedNode, certified: CertifiedRecord) -> None: ...

    def on_signature(self, node: SimulatedNode, sealed: SealedRecord, signature: RecordSignature) -> None: ...

    def on_applied(self, node: SimulatedNode, sealed: SealedRecord, root: str) -> None: ...

    def on_chain(self, node: SimulatedNode) -> None:
        self.num_changes += 1


class _Meter:
    """Counts what passes the network and the time that events take, without what the simulated network takes."""

    def __init__(self, stage: Stage, world: World) -> None:
        self.accounts: dict[str, _Account] = defaultdict(_Account)
        self._stage = stage
        (boot,) = (machine for machine in world.machines.values() if not machine.trains)
        self.coordinator = boot.name
        self.sampled = [machine.name for machine in world.volunteers[:SAMPLED_PEERS]]
        self._honest = {self.coordinator, *self.sampled}
        decode: Any = records._decoded.__wrapped__
        self._decoded: dict[str, Any] = defaultdict(lambda: lru_cache(maxsize=2)(decode))
        self._owner = ""
        self._elsewhere_seconds = 0.0
        self._send = Stream.send
        world.watch = _Unwatched(world)
        world.network.count = self._count
        world.events.around = self._around

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """What the program remembers in a process is remembered for each node here."""
        with (
            mock.patch.object(records, "_decoded", lambda content: self._decoded[self._owner](content)),
            mock.patch.object(Stream, "send", lambda stream, signed, to_server: self._sends(stream, signed, to_server)),
        ):
            yield

    def reset(self) -> None:
        self.accounts.clear()

    def _count(self, sender: Process, receiver: Process, signed: Signed) -> None:
        if sender is receiver:
            return
        size = signed.__dict__.get("_size")
        if size is None:
            size = signed.__dict__["_size"] = len(convert.encode(signed))
        ours, theirs = self.accounts[sender.name], self.accounts[receiver.name]
        ours.sent[signed.kind] += 1
        ours.sent_bytes[signed.kind] += size
        theirs.received[signed.kind] += 1
        theirs.received_bytes[signed.kind] += size

    def _sends(self, stream: Stream, signed: Signed, to_server: bool) -> None:
        started_at = time.thread_time()
        self._send(stream, signed, to_server)
        self._elsewhere_seconds += time.thread_time() - started_at

    def _around(self, owner: Process | None, action: Action, args: tuple[Any, ...]) -> None:
        assert owner is not None
        self._stage.memory.is_on = owner.name not in self._honest
        if self._stage.memory.is_on:
            self._owner = "any other"
            action(*args)
            return
        self._owner, self._elsewhere_seconds = owner.name, 0.0
        started_at = time.thread_time()
        action(*args)
        seconds = time.thread_time() - started_at - self._elsewhere_seconds
        self.accounts[owner.name].cpu_seconds += seconds


@dataclass(frozen=True)
class Cost:
    """A round of one node, on average."""

    messages_sent: float
    messages_received: float
    bytes_sent: float
    bytes_received: float
    cpu_seconds: float
    beats: float
    """Of the messages."""
    bytes_sent_by_kind: dict[str, float]


@dataclass(frozen=True)
class Row:
    """A run of so many peers."""

    num_peers: int
    num_rounds: int
    round_seconds: float
    """Of the virtual clock, of which training takes a minute."""
    coordinator: Cost
    peer: Cost
    record_bytes: float
    wall_seconds: float


def _cost(account: _Account, num_rounds: int) -> Cost:
    beats = sum(count for kind, count in (account.sent + account.received).items() if kind.endswith("Beat"))
    return Cost(
        account.sent.total() / num_rounds,
        account.received.total() / num_rounds,
        account.sent_bytes.total() / num_rounds,
        account.received_bytes.total() / num_rounds,
        account.cpu_seconds / num_rounds,
        beats / num_rounds,
        {kind: size / num_rounds for kind, size in account.sent_bytes.most_common()},
    )


def _median(costs: list[Cost]) -> Cost:
    names = [name for name in vars(costs[0]) if name != "bytes_sent_by_kind"]
    values = {name: statistics.median(getattr(cost, name) for cost in costs) for name in names}
    kinds = {kind for cost in costs for kind in cost.bytes_sent_by_kind}
    by_kind = {kind: statistics.median(cost.bytes_sent_by_kind.get(kind, 0.0) for cost in costs) for kind in kinds}
    return Cost(**values, bytes_sent_by_kind=by_kind)


def _forget_records(world: World) -> None:
    """Of older rounds keep the bytes alone, once for all: nobody asks for them."""
    machines = list(world.machines.values())
    for round in range(1, min(machine.node.chain.certified_round for machine in machines)):
        kept = machines[0].disk.records[round]
        kept.__dict__.pop("sealed", None)
        for machine in machines[1:]:
            machine.disk.records[round] = kept


def measure(num_peers: int, num_rounds: int, budget_seconds: float) -> Row:
    """A run without misfortunes; fewer rounds if they take longer than the budget."""
    with on_stage(signs_really=True) as stage, contextlib.ExitStack() as stack:
        gc.disable()  # it would look through all nodes again and again; what is left of a round is collected after it
        stack.callback(gc.enable)
        world = _RealWorld(stage, num_peers)
        meter = _Meter(stage, world)
        stack.enter_context(meter.measuring())
        world.run(0.0)
        world.until_round(_WARM_UP_ROUNDS, list(world.machines.values()), within_seconds=3600.0)
        meter.reset()
        started_at, began_at, done = time.perf_counter(), world.events.now, 0
        while done < num_rounds and (done == 0 or time.perf_counter() - started_at < budget_seconds):
            done += 1
            world.until_round(_WARM_UP_ROUNDS + done, list(world.machines.values()), within_seconds=3600.0)
            stage.memory.forget()
            _forget_records(world)
            gc.collect()
        head = world.machines[meter.coordinator].node.head
        row = Row(
            num_peers,
            done,
            (world.events.now - began_at) / done,
            _cost(meter.accounts[meter.coordinator], done),
            _median([_cost(meter.accounts[name], done) for name in meter.sampled]),
            len(head.content),
            time.perf_counter() - started_at,
        )
        world.close()
        return row


def table(rows: Iterable[Row]) -> str:
    """As it stands in docs/SCALE.md."""
    lines = [
        "| peers | rounds | who | messages sent | received | of these beats | MB sent | MB received | processor, s |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        for who, cost in (("coordinator", row.coordinator), ("median peer", row.peer)):
            lines.append(
                f"| {row.num_peers} | {row.num_rounds} | {who} | {cost.messages_sent:,.0f} | "
                f"{cost.messages_received:,.0f} | {cost.beats:,.0f} | {cost.bytes_sent / 1e6:,.3f} | "
                f"{cost.bytes_received / 1e6:,.3f} | {cost.cpu_seconds:,.3f} |"
            )
    return "\n".join(lines)


def plot(rows: list[Row], path: Path) -> None:
    """Messages, bytes and time of the processor against the number of peers, both axes logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "scale"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4), layout="constrained")
    peers = [row.num_peers for row in rows]
    panels = [
        ("messages", "a round, both ways", lambda cost: cost.messages_sent + cost.messages_received),
        ("bytes", "MB a round, both ways", lambda cost: (cost.bytes_sent + cost.bytes_received) / 1e6),
        ("time of the processor", "seconds a round", lambda cost: cost.cpu_seconds),
    ]
    for axis, (title, unit, value) in zip(axes, panels, strict=True):
        for name, style in (("coordinator", "o-"), ("peer", "s-")):
            label = name if name == "coordinator" else "median peer"
            axis.plot(peers, [value(getattr(row, name)) for row in rows], style, label=label)
        first = value(rows[0].coordinator)
        for power, style in ((1, ":"), (2, "--")):
            guide = [first * (count / peers[0]) ** power for count in peers]
            axis.plot(peers, guide, style, color="grey", linewidth=1, label=f"as N{'²' if power == 2 else ''}")
        axis.set(title=title, xscale="log", yscale="log", xlabel="N, peers", ylabel=unit)
        axis.set_xticks(peers, peers)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scale", description=__doc__)
    parser.add_argument("--peers", default="16,64,256,1000", help="numbers of peers, with commas")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--budget-seconds", type=float, default=3600.0, help="a run ends earlier than this")
    parser.add_argument("--report", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--plot", type=Path, help="draw them here")
    options = parser.parse_args(arguments)
    rows = []
    for num_peers in map(int, options.peers.split(",")):
        row = measure(num_peers, options.rounds, options.budget_seconds)
        rows.append(row)
        by_kind = {kind: f"{size / 1e6:.3f} MB" for kind, size in row.coordinator.bytes_sent_by_kind.items()}
        print(f"record {row.record_bytes / 1e3:.1f} kB, {row.wall_seconds:.0f} s; sent by the coordinator: {by_kind}")
        print(table([row]), flush=True)
    print(table(rows))
    if options.report:
        options.report.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
