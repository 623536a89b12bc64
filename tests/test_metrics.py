"""What Prometheus reads of a daemon: its status, under names that say their units."""

import asyncio
import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tui_statuses import status

from spes_peer import metrics
from spes_peer.errors import BadConfiguration
from spes_peer.metrics import Address, metrics_of, parse_metrics_address, served
from spes_peer.wire.control_pb2 import Status


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def read(port: int) -> dict[tuple[str, str], float]:
    """Every value by name and labels, as a scraper has it."""

    def get() -> str:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://127.0.0.1:{port}/metrics", timeout=30
        ) as answer:
            return str(answer.read().decode())

    text = await asyncio.to_thread(get)
    return {
        (sample.name, ",".join(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        (":9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
    ],
)
def test_an_address_is_of_this_machine_alone_unless_it_says_more(text: str, address: tuple[str, int]) -> None:
    assert parse_metrics_address(text) == address


@pytest.mark.parametrize("text", ["", "here", "9100:", "host:0", "host:70000", "host:-1", "host:²"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadConfiguration, match="is not an address for metrics"):
        parse_metrics_address(text)


async def test_a_scraper_reads_the_status_as_it_is_then() -> None:
    now, port = status(), free_port()
    now.traffic.add(transport="grpc", bytes_sent=5, bytes_received=7)
    with served(Address("127.0.0.1", port), lambda: metrics_of(now)):
        first = await read(port)
        now.round += 1
        second = await read(port)
    assert first["spes_peer_round", ""] == now.round - 1
    assert second["spes_peer_round", ""] == now.round
    assert first["spes_peer_training_loss", ""] == pytest.approx(now.rounds[-1].train_loss)
    assert first["spes_peer_traffic_bytes_total", "grpc,sent"] == 5
    assert first["spes_peer_traffic_bytes_total", "grpc,received"] == 7
    assert first["spes_peer_phase", now.phase.name] == 1.0
    assert sum(value for (name, _), value in first.items() if name == "spes_peer_peers") == len(now.peers)
    with pytest.raises(urllib.error.URLError, match="refused"):
        await read(port)


async def test_device_and_gifts_are_figures_too_where_they_are_known() -> None:
    now, port = status(), free_port()
    now.device.name, now.device.use, now.device.temperature = "cuda:0", 0.5, 71.0
    now.device.used_bytes, now.device.own_bytes, now.device.total_bytes = 6, 5, 8
    now.given.tokens = 1000
    del now.rounds[-1].parts[:]
    now.rounds[-1].parts.add(name="train", seconds=4.5)
    with served(Address("127.0.0.1", port), lambda: metrics_of(now)):
        values = await read(port)
    assert values["spes_peer_device_memory_bytes", "self"] == 5
    assert values["spes_peer_device_use_ratio", ""] == 0.5
    assert values["spes_peer_device_celsius", ""] == 71
    assert values["spes_peer_given_tokens_total", ""] == 1000
    assert values["spes_peer_round_part_seconds", "train"] == 4.5


async def test_a_daemon_that_has_just_started_has_figures_too() -> None:
    port = free_port()
    with served(Address("127.0.0.1", port), lambda: metrics_of(Status())):
        values = await read(port)
    assert values["spes_peer_round", ""] == 0.0
    assert not [name for name, _ in values if "loss" in name]


async def test_an_address_that_is_taken_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        taken = f"cannot serve metrics at 127.0.0.1:{port}: Address already in use"
        here = Address("127.0.0.1", port)
        with pytest.raises(BadConfiguration, match=taken), served(here, lambda: metrics_of(Status())):
            pass


def test_every_name_is_ours_and_there_once() -> None:
    names = [metric.name for metric in metrics_of(status())]
    assert all(name.startswith("spes_peer") for name in names)
    assert len(set(names)) == len(names)


async def test_a_status_that_takes_too_long_leaves_a_scraper_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_LOOK_SECONDS", 0.3)
    answered = threading.Event()

    def build() -> Status:
        answered.wait(30)
        return status()

    def look() -> list[Metric]:
        try:
            return [*of_daemon.collect()]
        finally:
            answered.set()

    of_daemon = metrics._OfNode(lambda: metrics_of(build()), asyncio.get_running_loop())
    assert await asyncio.to_thread(look) == []
    monkeypatch.setattr(metrics, "_LOOK_SECONDS", 30.0)
    assert await asyncio.to_thread(look) != []
