"""What a watcher is told of phases, of this machine's troubles, and of the daemon's own processes."""

import logging
from types import SimpleNamespace

import pytest

from spes_peer import __version__, troubles
from spes_peer.daemon.history import RoundHistory
from spes_peer.daemon.phases import PhaseKeeper
from spes_peer.daemon.status import LogRing, add_machine
from spes_peer.daemon.status_words import in_words
from spes_peer.exchange.traffic import Traffic
from spes_peer.identity import PeerId
from spes_peer.process import Service
from spes_peer.wire.control_pb2 import PeerStatus, Status


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
