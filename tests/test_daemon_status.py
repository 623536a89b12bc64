"""What a watcher is told of phases, of this machine's troubles, and of the daemon's own processes."""

import logging
import time
from types import SimpleNamespace

import pytest

from spes_peer import __version__, troubles
from spes_peer.daemon.history import RoundHistory
from spes_peer.daemon.phases import PhaseKeeper
from spes_peer.daemon.status import LogRing, add_machine
from spes_peer.daemon.status_words import in_words, progress_words
from spes_peer.exchange.traffic import Traffic
from spes_peer.identity import PeerId
from spes_peer.process import Service
from spes_peer.wire.control_pb2 import (
    DeviceStatus,
    ExchangeStatus,
    Given,
    PeerStatus,
    Phase,
    Progress,
    RoundPart,
    Status,
    Transfer,
)


@pytest.fixture(autouse=True)
def board(monkeypatch: pytest.MonkeyPatch) -> troubles.Troubles:
    fresh = troubles.Troubles()
    monkeypatch.setattr(troubles, "board", fresh)
    return fresh


def test_a_reason_is_logged_when_it_changes_and_its_phase_keeps_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    touched: list[int] = []
    phases = PhaseKeeper(lambda: touched.append(1))
    with caplog.at_level(logging.DEBUG, "spes_peer.daemon.phases"):
        for why in ("for birch", "for birch", "for cedar", "for cedar"):
            phases.say("waiting", why, ("birch",), until_at=9e9)
        since_at = phases.message.since_at
        phases.say("waiting", "for cedar", until_at=8e9)
        phases.say("training")
    assert [record.getMessage() for record in caplog.records] == [
        "waiting: for birch",
        "waiting: for cedar",
        "training",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG", "INFO"]
    assert phases.message.since_at >= since_at
    assert len(touched) == 6


def machine(directory_health: str = "", **states: str) -> Status:
    status = Status(troubles=["of an earlier moment"])
    service = Service("DHT node", states.get("dht", "running"), 5.0, "what happened")  # type: ignore[arg-type]
    directory = SimpleNamespace(service=service, health=directory_health)
    node = SimpleNamespace(directory=directory, libp2p=None)
    service = Service("trainer", "restarting", 6.0, "stalled 90 s: it does not run")
    trainer = SimpleNamespace(service=service, device=None)
    add_machine(status, node, trainer)  # type: ignore[arg-type]
    return status


def test_a_status_has_the_troubles_and_processes_of_the_moment(board: troubles.Troubles) -> None:
    board.set("clock", "your clock is 312 s ahead")
    status = machine()
    assert status.version == __version__
    assert list(status.troubles) == ["your clock is 312 s ahead"]
    assert [(one.name, one.state, one.since_at) for one in status.services] == [
        ("trainer", "restarting", 6.0),
        ("DHT node", "running", 5.0),
    ]
    words = in_words(status)
    assert "trouble: your clock is 312 s ahead" in words
    assert "(stalled 90 s: it does not run)" in words
    board.clear("clock")
    assert not machine().troubles
    add_machine(status)
    assert not status.services


def test_the_status_says_how_much_of_the_disk_is_taken_and_may_be() -> None:
    assert "disk 1.20 GB\n" in in_words(Status(disk_used_bytes=1_200_000_000)) + "\n"
    both = Status(disk_used_bytes=1_200_000_000, disk_limit_bytes=20_000_000_000)
    assert "disk 1.20 GB of 20.00 GB" in in_words(both)


def test_the_status_says_in_short_lines_what_a_volunteer_asks_first() -> None:
    status = Status(
        device=DeviceStatus(
            name="cuda:0 NVIDIA RTX 4090",
            used_bytes=14 * 10**9,
            own_bytes=6 * 10**9,
            total_bytes=24 * 10**9,
            use=0.97,
            temperature=71,
        ),
        exchange=ExchangeStatus(
            transfers=[
                Transfer(direction="down", bytes_per_second=1e6),
                Transfer(direction="down", bytes_per_second=2e6),
                Transfer(direction="up", bytes_per_second=250_000),
            ],
            num_queued=4,
        ),
        given=Given(tokens=1_234_567, rounds=12, seconds=5400, bytes_sent=9_876_543),
        parts=[RoundPart(name="apply", seconds=2), RoundPart(name="train", seconds=31.4), RoundPart(name="encode")],
    )
    lines = in_words(status).splitlines()
    assert "device cuda:0 NVIDIA RTX 4090  14.0 of 24.0 GB used, 6.0 GB by the trainer  97% busy  71 °C" in lines
    assert "transfers  2 down at 3.00 MB/s  1 up at 0.25 MB/s  4 wait for a place" in lines
    assert "this round so far  apply 2 s  train 31 s" in lines
    assert "given so far  1,234,567 tokens in 12 rounds  1.5 h of training  9.9 MB sent" in lines


def test_what_is_not_known_is_not_said() -> None:
    status = Status(device=DeviceStatus(name="cpu", use=-1), exchange=ExchangeStatus())
    lines = in_words(status).splitlines()
    assert "device cpu" in lines
    assert not any(line.startswith(("transfers", "given", "this round")) for line in lines)


def test_progress_says_how_far_it_is_and_how_long_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1010.0)
    fetching = Progress(what="fetching the snapshot", unit="bytes", done=20e6, whole=60e6, since_at=1000.0)
    assert progress_words(fetching, 5e6) == "fetching the snapshot  20.0 of 60.0 MB  5.0 MB/s  8 s left"
    assert progress_words(fetching) == "fetching the snapshot  20.0 of 60.0 MB"  # what was here before says nothing
    replaying = Progress(what="replaying records", unit="records", done=0, whole=12, since_at=1000.0)
    assert progress_words(replaying) == "replaying records  0 of 12 records"
    replaying.done = 3
    assert progress_words(replaying) == "replaying records  3 of 12 records  0.3 records/s  30 s left"
    unknown = Progress(what="fetching records", unit="records", done=1500, since_at=1000.0)
    assert progress_words(unknown) == "fetching records  1,500 records"
    transfers = [Transfer(direction="down", bytes_per_second=5e6), Transfer(direction="up", bytes_per_second=9e6)]
    status = Status(progress=fetching, exchange=ExchangeStatus(transfers=transfers))
    assert progress_words(fetching, 5e6) in in_words(status).splitlines()


def test_what_is_wrong_with_the_dht_is_said_of_its_node_while_it_runs() -> None:
    assert machine("none of 2 known DHT nodes answers").services[1].why == "none of 2 known DHT nodes answers"
    assert machine("none answers", dht="restarting").services[1].why == "what happened"
    assert machine().services[1].why == "what happened"


def test_by_which_way_peers_are_called_and_this_one_is_reached_is_said_with_the_reason() -> None:
    status = Status(
        reachability="relay",
        reachability_why="11.77.1.4:4510 did not answer a dial back by bootstrap: it refuses",
        peers=[
            PeerStatus(
                peer_id="alder",
                name="alder",
                state="ONLINE",
                transport="grpc",
                route="direct",
                transport_why="its address answers",
            ),
            PeerStatus(
                peer_id="birch",
                name="birch",
                state="ONLINE",
                transport="libp2p",
                route="relay",
                transport_why="through cedar: why",
            ),
            PeerStatus(peer_id="dogwood", name="dogwood", state="OFFLINE", transport_why="cannot reach it"),
        ],
    )
    words = in_words(status)
    assert (
        "others reach this peer: relay  (11.77.1.4:4510 did not answer a dial back by bootstrap: it refuses)" in words
    )
    assert "peer alder  ONLINE  grpc direct\n" in words
    assert "peer birch  ONLINE  libp2p relay  (through cedar: why)\n" in words
    assert "peer dogwood  OFFLINE  -  (cannot reach it)" in words


def test_a_service_keeps_its_beginning_while_only_the_reason_changes() -> None:
    service = Service("trainer", since_at=1.0)
    service.say("starting", "again")
    assert service.since_at == 1.0
    service.say("running")
    assert service.since_at > 1.0
    assert service.why == ""


def test_a_trouble_is_logged_when_it_comes_and_when_it_has_passed_and_shown_once(
    board: troubles.Troubles, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            board.set("disk", "disk full")
        board.set("the trainer", "disk full")
        assert board.texts == ("disk full",)
        board.clear("disk")
        board.clear("disk")
        assert board.texts == ("disk full",)
        board.clear("the trainer")
    assert [record.getMessage() for record in caplog.records] == ["disk full"] * 2 + ["this has passed: disk full"] * 2
    assert not board.texts


def test_the_shown_log_holds_repeated_warnings_back() -> None:
    ring = LogRing()
    logger = logging.getLogger("spes_peer.a.test.of.the.ring")
    logger.addHandler(ring)
    try:
        for _ in range(100):
            logger.warning("lost a peer peer=%s reason=%s", "alder", "gone")
    finally:
        logger.removeHandler(ring)
    assert [line.text for line in ring.lines] == ["lost a peer peer=alder reason=gone"]


def test_the_bytes_of_the_open_round_are_those_since_the_last_one_closed() -> None:
    traffic = Traffic()
    traffic.sent(PeerId("birch"), "grpc", 100)
    history = RoundHistory(traffic)
    traffic.sent(PeerId("birch"), "grpc", 20)
    traffic.received(PeerId("cedar"), "libp2p", 3)
    rows = [(row.transport, row.bytes_sent, row.bytes_received) for row in history.this_round()]
    assert rows == [("grpc", 20, 0), ("libp2p", 0, 3)]


def test_a_rest_that_waits_for_the_end_of_the_round_is_foretold() -> None:
    why = "outside 22:00–08:00, goes on at 22:00"
    assert f"will rest: {why}" in in_words(Status(phase=Phase(name="training"), pause_why=why)).splitlines()
    assert "will rest" not in in_words(Status(phase=Phase(name="paused", why=why), pause_why=why))
