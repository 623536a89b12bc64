"""What Prometheus may read of a bootstrap node (`spes-bootstrap --metrics ADDRESS`)."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from bootstrap.keeper import Keeper
from spes_peer import __version__, troubles
from spes_peer.collector import Collector
from spes_peer.following.follower import Follower
from spes_peer.node import Node
from spes_peer.run.peers import PeerState

_PREFIX = "spes_bootstrap"


@dataclass(frozen=True)
class Parts:
    """Of a node that serves."""

    node: Node
    follower: Follower
    keeper: Keeper
    collector: Collector


def figures(parts: Parts) -> list[Metric]:
    """All that there are, by names that say their units. Read in the node's loop."""
    return [*_of_run(parts), *_of_peers(parts), *_of_bytes(parts), *_of_machine(parts)]


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", about, value=value)


def _of_run(parts: Parts) -> Iterator[Metric]:
    node, record = parts.node, parts.follower.head.record
    info = {"version": __version__, "peer_id": node.peer_id, "run": node.manifest.run.name, "run_id": node.run_id.hex()}
    yield InfoMetricFamily(_PREFIX, "This node and its run.", value=info)
    yield _gauge("round", "Newest round.", node.head_round)
    yield _gauge("certified_round", "Newest round whose record is certified.", node.chain.certified_round)
    yield _gauge("step", "Local steps finished in the run.", record.step)
    yield _gauge("round_start_time_seconds", "Unix seconds when the round was opened.", record.opened_at)
    yield _gauge("coordinating", "Whether this node coordinates the round.", parts.follower.coordinating.leads)
    newest = max((one.round for one in parts.keeper.snapshots), default=0)
    yield _gauge("snapshot_round", "Round of the newest snapshot that is kept; 0 for the first weights.", newest)
    yield _gauge("finished", "Whether the run has ended.", record.is_final)


def _of_peers(parts: Parts) -> Iterator[Metric]:
    node, counts = parts.node, Counter(entry.state for entry in parts.node.entries.values())
    peers = GaugeMetricFamily(f"{_PREFIX}_peers", "Other nodes by what they say of themselves.", labels=["state"])
    for state in PeerState:
        peers.add_metric([state], counts[state])
    yield peers
    yield _gauge("roster_peers", "Peers that take part in the round.", len(parts.follower.head.record.roster))
    yield _gauge("attending_peers", "Peers that attend this node.", parts.follower.coordinating.num_attending)
    neighbours = node.directory.num_neighbours if node.directory is not None else 0
    yield _gauge("dht_neighbours", "Nodes that the DHT node knows.", neighbours)
    yield _gauge(
        "dht_healthy", "Whether nothing is wrong with the DHT.", not (node.directory and node.directory.health)
    )


def _of_bytes(parts: Parts) -> Iterator[Metric]:
    node, moved = parts.node, Counter[tuple[str, str]]()
    for flow in node.traffic.flows():
        moved[flow.transport, "sent"] += flow.sent_bytes
        moved[flow.transport, "received"] += flow.received_bytes
    traffic = CounterMetricFamily(
        f"{_PREFIX}_traffic_bytes", "Bytes of messages since the start.", labels=["transport", "direction"]
    )
    for transport in ("grpc", "libp2p"):
        for direction in ("sent", "received"):
            traffic.add_metric([transport, direction], moved[transport, direction])
    yield traffic
    yield _gauge("transfers", "Blobs on their way now.", len(node.transfers.in_flight))
    relayed, circuits = (node.libp2p.relayed_bytes, node.libp2p.num_circuits) if node.libp2p is not None else (0, 0)
    yield CounterMetricFamily(f"{_PREFIX}_relayed_bytes", "Bytes relayed for others since the start.", value=relayed)
    yield _gauge("relay_circuits", "Pairs of peers that are relayed for now.", circuits)


def _of_machine(parts: Parts) -> Iterator[Metric]:
    collector = parts.collector
    yield _gauge("disk_bytes", "Bytes that the folder takes.", collector.used_bytes)
    yield _gauge("disk_limit_bytes", "Bytes that it may take; 0 without a limit.", collector.max_bytes)
    memory = GaugeMetricFamily(f"{_PREFIX}_memory_bytes", "Resident bytes, by process.", labels=["process"])
    for name, num_bytes in sorted(_resident().items()):
        memory.add_metric([name], num_bytes)
    yield memory
    yield _gauge("troubles", "What is wrong with this machine now: so many things.", len(troubles.board.texts))


def _resident() -> Counter[str]:
    """Of this process and those that it started."""
    found: Counter[str] = Counter()
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            found["node" if process == own else _name(process)] += process.memory_info().rss
    return found


def _name(process: psutil.Process) -> str:
    modules = [word.rpartition(".")[2] for word in process.cmdline() if word.startswith("spes_peer.")]
    return modules[-1] if modules else process.name()
