"""What Prometheus may read of a daemon (`join --metrics ADDRESS`): a view of its status, and nothing more.

The library serves in a thread of its own; the status is built in the daemon's loop. The bootstrap node has figures of
its own, and serves them the same way.
"""

import asyncio
import concurrent.futures
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from spes_peer import __version__
from spes_peer.errors import BadConfiguration
from spes_peer.wire.control_pb2 import Status

_LOOK_SECONDS = 5.0
_HERE = "127.0.0.1"


class Address(NamedTuple):
    """Where Prometheus may read."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_metrics_address(text: str) -> Address:
    """HOST:PORT, [IPv6]:PORT, or PORT of this machine alone; `BadConfiguration`."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise BadConfiguration(
            f"{text!r} is not an address for metrics; give HOST:PORT, or PORT for this machine alone"
        )
    return Address(host.removeprefix("[").removesuffix("]") or _HERE, int(port))


def metrics_of(status: Status) -> Iterator[Metric]:
    """All that there are, by names that say their units. What is not known is left out."""
    info = {"version": __version__, "peer_id": status.peer_id, "name": status.name, "run": status.run.name}
    yield InfoMetricFamily("spes_peer", "This peer and its run.", value=info)
    for name, about, value in (
        ("round", "Newest round.", status.round),
        ("step", "Local steps finished in the run.", status.step),
        ("tokens_per_second", "Speed of local training.", status.training.tokens_per_second),
        ("trainer_memory_bytes", "Resident bytes of the trainer.", status.training.memory_bytes),
        ("disk_bytes", "Bytes that the state folder takes.", status.disk_used_bytes),
        ("paused", "Whether its owner has paused it.", status.is_paused),
        ("awaited_peers", "Peers that the daemon waits for now.", len(status.phase.waiting_for)),
        ("transfers", "Blobs on their way now.", len(status.exchange.transfers)),
        ("queued_transfers", "Blobs that wait for a place.", status.exchange.num_queued),
        ("troubles", "What is wrong with this machine now: so many things.", len(status.troubles)),
        ("start_time_seconds", "Unix seconds of the daemon's start.", status.started_at),
    ):
        yield GaugeMetricFamily(f"spes_peer_{name}", about, value=float(value))
    phase = GaugeMetricFamily("spes_peer_phase", "1 for the phase that the daemon is in.", labels=["phase"])
    phase.add_metric([status.phase.name], 1.0)
    yield phase
    yield from _of_rounds(status)
    yield from _of_others(status)
    yield from _of_this_machine(status)
    yield from _of_what_was_given(status)


def _of_rounds(status: Status) -> Iterator[Metric]:
    if not status.rounds:
        return
    last = status.rounds[-1]
    yield GaugeMetricFamily("spes_peer_round_seconds", "What the last closed round took.", value=last.seconds)
    yield GaugeMetricFamily("spes_peer_round_tokens", "Tokens that all trained in it.", value=float(last.tokens))
    yield GaugeMetricFamily("spes_peer_round_update_bytes", "Bytes of its updates.", value=float(last.update_bytes))
    parts = GaugeMetricFamily("spes_peer_round_part_seconds", "How long this peer was in it.", labels=["part"])
    for part in last.parts:
        parts.add_metric([part.name], part.seconds)
    yield parts
    if last.train_loss >= 0:  # else nobody contributed
        yield GaugeMetricFamily("spes_peer_training_loss", "Mean training loss in it.", value=last.train_loss)
    if known := [one.held_out_loss for one in status.rounds if one.held_out_loss >= 0]:
        yield GaugeMetricFamily("spes_peer_held_out_loss", "Newest known loss on held-out text.", value=known[-1])


def _of_others(status: Status) -> Iterator[Metric]:
    peers = GaugeMetricFamily("spes_peer_peers", "Peers by what they say of themselves.", labels=["state"])
    for state, number in sorted(Counter(peer.state for peer in status.peers).items()):
        peers.add_metric([state], float(number))
    yield peers
    owned = sum(status.peer_id in subset.owners for subset in status.subsets)
    yield GaugeMetricFamily("spes_peer_subsets", "Subsets that this peer trains.", value=float(owned))
    moved = CounterMetricFamily(
        "spes_peer_traffic_bytes", "Bytes of messages since the start.", labels=["transport", "direction"]
    )
    for flow in status.traffic:
        moved.add_metric([flow.transport, "sent"], float(flow.bytes_sent))
        moved.add_metric([flow.transport, "received"], float(flow.bytes_received))
    yield moved


def _of_this_machine(status: Status) -> Iterator[Metric]:
    device = status.device
    if device.total_bytes:
        memory = GaugeMetricFamily("spes_peer_device_memory_bytes", "Of the device that trains.", labels=["of"])
        for of, value in (("all", device.used_bytes), ("self", device.own_bytes), ("total", device.total_bytes)):
            memory.add_metric([of], float(value))
        yield memory
    if device.name and device.use >= 0:
        yield GaugeMetricFamily("spes_peer_device_use_ratio", "Share of time that it is busy.", value=device.use)
    if device.temperature:
        yield GaugeMetricFamily("spes_peer_device_celsius", "How warm it is.", value=device.temperature)


def _of_what_was_given(status: Status) -> Iterator[Metric]:
    given = status.given
    for name, about, value in (
        ("tokens", "Tokens that this peer trained and a record took in, over all its starts.", given.tokens),
        ("rounds", "Rounds in which it contributed, over all its starts.", given.rounds),
        ("seconds", "Seconds in which it trained, over all its starts.", given.seconds),
        ("bytes", "Bytes that it sent, over all its starts.", given.bytes_sent),
    ):
        yield CounterMetricFamily(f"spes_peer_given_{name}", about, value=float(value))


class _OfNode(Collector):
    """Asks the node's loop for its figures at every look."""

    def __init__(self, build: Callable[[], Iterator[Metric]], loop: asyncio.AbstractEventLoop) -> None:
        self._build = build
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        found: concurrent.futures.Future[Iterator[Metric]] = concurrent.futures.Future()

        def look() -> None:
            if found.set_running_or_notify_cancel():
                try:
                    found.set_result(self._build())
                except Exception as error:
                    found.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(look)
        except RuntimeError:  # the loop has ended
            return iter(())
        try:
            return found.result(_LOOK_SECONDS)
        except TimeoutError:  # it is ending, or very busy
            found.cancel()
            return iter(())

    def describe(self) -> Iterator[Metric]:
        """Nothing yet: the node has still to start."""
        return iter(())


@contextlib.contextmanager
def served(address: Address, build: Callable[[], Iterator[Metric]]) -> Iterator[None]:
    """Serve at `address` meanwhile; called in the loop that `build` belongs to. What it gives is read in a thread: a
    copy, such as a status. `BadConfiguration` if the address is taken."""
    registry = CollectorRegistry()
    registry.register(_OfNode(build, asyncio.get_running_loop()))
    try:
        server, thread = start_http_server(address.port, address.host, registry)
    except OSError as error:
        raise BadConfiguration(f"cannot serve metrics at {address}: {error.strerror or error}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_LOOK_SECONDS)
