"""Ports that a router opens: asked for where it can help, renewed, moved, and closed at the end."""

import asyncio
import contextlib
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from natpmp import NATPMP
from netlab.lab import Lab, lab, needs_lab

from spes_peer.exchange import nat_pmp
from spes_peer.exchange.addresses import Endpoint
from spes_peer.exchange.port_mapping import ask_router, keep_ports_mapped, wants_mapping
from spes_peer.exchange.reach import Door, Reach
from spes_peer.ports import Ports

__all__ = ["lab"]

DOORS = ["4510:4510", "4511:4511", "4512:4512"]


def opened(*ports: int, **changes: Any) -> dict[str, Any]:
    return {"by": "UPnP", "ports": list(ports), "lease_seconds": 1_200, "external": "11.77.1.2", **changes}


def reach(**changes: Any) -> Reach:
    settings = {"own_host": "192.168.1.7", "ports": Ports(4510, 4511, 4512), "certificate": b"", "is_public": True}
    return Reach(**{**settings, **changes})


class Router:
    """Answers as it was told to, in turn, the last answer for ever."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._answers = list(answers)

    async def __call__(self, arguments: Sequence[str], _seconds: float) -> dict[str, Any]:
        self.asked.append(tuple(arguments))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def keep(reach: Reach, router: Router, num_pauses: int) -> list[tuple[float, Door | None]]:
    """For so many pauses, which take no time here; how long each is, and which ports are open in it."""
    pauses: list[tuple[float, Door | None]] = []
    over = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append((seconds, reach.mapped))
        if len(pauses) == num_pauses:
            over.set()
            await asyncio.Event().wait()

    keeping = asyncio.create_task(keep_ports_mapped(reach, router, pause))
    await over.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    return pauses


async def test_what_the_router_opened_is_tried_renewed_and_closed_at_the_end() -> None:
    node, router = reach(), Router(opened(4510, 30_000, 4512, by="NAT-PMP"))
    assert await keep(node, router, 2) == [(480, Door("", Ports(4510, 30_000, 4512)))] * 2
    assert node._soon.is_set()
    doors = ("4510:4510", "4511:30000", "4512:4512")
    assert router.asked == [
        ("map", "192.168.1.7", "1200", *DOORS),
        ("map", "192.168.1.7", "1200", *doors),  # those that others know by now
        ("unmap", "NAT-PMP", "192.168.1.7", *doors),
    ]


@pytest.mark.parametrize(("granted_seconds", "renewed_after"), [(120, 48), (86_400, 480)])
async def test_ports_are_asked_for_again_before_half_of_the_time_is_over_for_which_they_are_open(
    granted_seconds: int, renewed_after: float
) -> None:
    [(seconds, _)] = await keep(reach(), Router(opened(4510, 4511, 4512, lease_seconds=granted_seconds)), 1)
    assert seconds == renewed_after


async def test_a_router_that_opens_nothing_is_asked_again_and_one_that_stops_is_noticed() -> None:
    ports = opened(4510, 4511, 4512)
    useless = [opened(1, 2), opened(0, 1, 70_000), {**ports, "lease_seconds": 0}, {"error": "no router"}]
    router = Router(*useless, ports, {})
    assert await keep(reach(), router, 6) == [
        *((seconds, None) for seconds in (60, 120, 240, 480)),
        (480, Door("", Ports(4510, 4511, 4512))),
        (60, None),
    ]
    assert router.asked[-1][0] == "map"  # there is nothing to close


@pytest.mark.parametrize(("external", "is_hidden"), [("100.64.3.9", True), ("11.77.1.2", False), ("nonsense", False)])
async def test_a_router_behind_another_is_said_to_be_so_and_its_ports_are_tried_all_the_same(
    caplog: pytest.LogCaptureFixture, external: str, is_hidden: bool
) -> None:
    caplog.set_level("INFO")
    [(_, door)] = await keep(reach(), Router(opened(4510, 4511, 4512, external=external)), 1)
    assert door == Door("", Ports(4510, 4511, 4512))
    assert (f"but is itself behind another, at {external}" in caplog.text) == is_hidden


@pytest.mark.parametrize(
    "changes",
    [
        {"is_public": False},
        {"own_host": "11.77.0.3"},
        {"own_host": "fd00::7"},
        {"has_inbound": False},
        {"given": (Door("home.example.org", Ports(1, 2, 3)),)},
    ],
)
async def test_a_router_is_asked_only_by_who_is_hidden_behind_it_and_wants_to_be_found(changes: dict[str, Any]) -> None:
    assert wants_mapping(reach())
    router = Router(opened(1, 2, 3))
    await keep_ports_mapped(reach(**changes), router)
    assert not router.asked


async def test_a_mapped_door_is_asked_for_before_the_ports_that_are_listened_on() -> None:
    node = reach()
    node.mapped = Door("", Ports(30_000, 30_001, 30_002))
    assert [door.address("grpc") for door in node._doors()] == [":30000", ":4510"]
    node.mapped = Door("", node.ports)
    assert len(node._doors()) == 1
    assert node.endpoints("grpc") == ()
    assert Endpoint("192.168.1.7", 4510) not in node.endpoints("grpc")


PROGRAM = """
import sys
from spes_peer.exchange import nat_pmp, router_request
nat_pmp._TRIES = int(sys.argv[1])
router_request.main(sys.argv[2:])
"""
PATIENT_TRIES = 6  # wait 16 s in all, where an answer comes


def in_home(lab_home: Any, *arguments: str, tries: int = 1) -> str:
    return str(lab_home.run([sys.executable, "-c", PROGRAM, str(tries), *arguments], 60).stdout)


@needs_lab
def test_a_real_router_opens_ports_others_where_one_is_taken_and_closes_them(lab: Lab) -> None:
    home = lab.home()
    asked = home.offer_upnp()
    answer = json.loads(in_home(home, "map", home.address, "1200", *DOORS))
    first, second, third = answer["ports"]
    assert answer == opened(first, second, third, external=home.public_address)
    assert (first, third) == (4510, 4512)
    assert second != 4511
    assert asked[1] == f"open {second} {home.address} 4511 1200"
    assert in_home(home, "unmap", "UPnP", home.address, DOORS[0], f"4511:{second}", DOORS[2]) == "{}\n"
    assert [line.split()[0] for line in asked] == ["open"] * 3 + ["close"] * 3
    home.offer_upnp_no_more()
    home.offer_upnp("refuses")
    assert "Conflict" in in_home(home, "map", home.address, "1200", *DOORS)
    home.offer_upnp_no_more()
    assert "no router that opens ports answers" in in_home(home, "map", home.address, "1200", *DOORS)


@needs_lab
def test_a_router_without_upnp_opens_ports_with_nat_pmp_others_where_one_is_taken_and_closes_them(lab: Lab) -> None:
    home, outside = lab.home(), lab.public()
    home.offer_nat_pmp()

    def gets_through(inside: int, port: int, seconds: float = 20.0) -> bool:
        with home.socket() as listening, outside.socket() as calling:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((home.address, inside))
            listening.listen()
            calling.settimeout(seconds)
            return calling.connect_ex((home.public_address, port)) == 0

    for _ in range(2):  # a renewal changes nothing
        answer = json.loads(in_home(home, "map", home.address, "1200", *DOORS, tries=PATIENT_TRIES))
        ports = [4510, 34_511, 4512]
        assert answer == opened(*ports, by="NAT-PMP", lease_seconds=900, external=home.public_address)
    assert gets_through(4510, 4510)
    assert gets_through(4511, 34_511)
    doors = (DOORS[0], "4511:34511", DOORS[2])
    assert in_home(home, "unmap", "NAT-PMP", home.address, *doors, tries=PATIENT_TRIES) == "{}\n"
    assert not gets_through(4510, 4510, 0.5)  # who is not let in gets no answer


ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
wlan0\t00000000\t0201A8C0\t0003\t0\t0\t20600\t00000000\t0\t0\t0
tun0\t00000000\t00000000\t0001\t0\t0\t50\t00000000\t0\t0\t0
down\t00000000\t0301A8C0\t0002\t0\t0\t0\t00000000\t0\t0\t0
half\t00000000\t0401A8C0\t0003\t0\t0\t0\t00000080\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is of a machine that writes the low byte first")
def test_the_default_gateway_is_the_nearest_one_on_the_network_of_our_address() -> None:
    assert nat_pmp.default_gateway(ROUTES, ["eth0"]) == "192.0.2.1"
    assert nat_pmp.default_gateway(ROUTES, ["wlan0"]) == "192.168.1.1"
    assert nat_pmp.default_gateway(ROUTES, ["tun0", "down", "half", "lo"]) == ""
    assert nat_pmp.default_gateway("", ["eth0"]) == ""


def test_only_linux_says_which_machine_the_gateway_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nat_pmp, "_ROUTES", tmp_path / "none")
    with pytest.raises(LookupError, match="only Linux"):
        nat_pmp.map_ports("127.0.0.1", 1200, [(4510, 4510)])


def honest(question: bytes) -> bytes:
    """What a gateway with the address 11.77.1.2 answers that opens whatever is asked for."""
    head = struct.pack("!BBHI", 0, 128 + question[1], 0, 9)
    return head + (bytes((11, 77, 1, 2)) if question[1] == 0 else question[4:])


@contextlib.contextmanager
def gateway(monkeypatch: pytest.MonkeyPatch, answer: Callable[[bytes], bytes]) -> Iterator[list[bytes]]:
    """A gateway on loopback; the questions that it was asked, as they come. It answers with what `answer` makes of
    them, nothing for b""."""
    questions: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))

        def serve() -> None:
            while question := (received := listening.recvfrom(64))[0]:
                questions.append(question)
                if said := answer(question):
                    listening.sendto(said, received[1])

        monkeypatch.setattr(nat_pmp, "gateway_of", lambda _host: "127.0.0.1")
        monkeypatch.setattr(NATPMP, "NATPMP_PORT", listening.getsockname()[1])
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield questions
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", listening.getsockname())
            serving.join()


def test_a_gateway_is_believed_when_its_answers_fit_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nat_pmp, "_TRIES", PATIENT_TRIES)
    with gateway(monkeypatch, honest) as questions:
        opened = nat_pmp.map_ports("", 1200, [(4510, 30_000), (4511, 4511)])
        nat_pmp.unmap_ports("", [(4510, 30_000)])
    assert opened == {"ports": [30_000, 4511], "lease_seconds": 1200, "external": "11.77.1.2"}
    assert questions[-1] == struct.pack("!BBHHHI", 0, 2, 0, 4510, 0, 0)


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing at all": (lambda _: b"", "does not answer"),
    "too little": (lambda question: honest(question)[:-1], "answers too little"),
    "a question": (lambda question: question + bytes(16), "answers another question"),
    "for UDP": (lambda question: b"\0\x81" + honest(question)[2:], "answers another question"),
    "in another version": (lambda question: b"\2" + honest(question)[1:], "answers another question"),
    "a refusal": (lambda question: honest(question)[:2] + b"\0\2" + honest(question)[4:], "operation was refused"),
    "an unknown failure": (lambda question: honest(question)[:2] + b"\xff\xff" + bytes(12), "Unknown fatal error"),
}
HOSTILE_TO_MAPPING: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "port 0": (lambda question: honest(question)[:10] + bytes(2) + honest(question)[12:], "another question"),
    "for another port": (lambda question: honest(question)[:8] + b"\1\1" + honest(question)[10:], "another question"),
    "for no time": (lambda question: honest(question)[:12] + bytes(4), "for 0 s only"),
    "for a second": (lambda question: honest(question)[:12] + b"\0\0\0\1", "for 1 s only"),
}


@pytest.mark.parametrize("words", [*HOSTILE, *HOSTILE_TO_MAPPING])
def test_a_gateway_that_answers_nonsense_opens_nothing(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setattr(nat_pmp, "_TRIES", 1 if words == "nothing at all" else PATIENT_TRIES)
    hostile, reason = {**HOSTILE, **HOSTILE_TO_MAPPING}[words]
    answer = hostile if words in HOSTILE else lambda question: hostile(question) if question[1] else honest(question)
    with gateway(monkeypatch, answer) as questions, pytest.raises(LookupError, match=reason):
        nat_pmp.map_ports("", 1200, [(4510, 4510), (4511, 4511)])
    if words in HOSTILE_TO_MAPPING:
        assert questions[-1][8:] == bytes(4)  # what may be open is closed


def test_who_is_not_the_gateway_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nat_pmp, "_TRIES", 1)
    asked: list[Any] = []
    original = NATPMP.send_request

    def with_an_intruder(gateway_socket: socket.socket, request: Any) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as intruder:
            intruder.sendto(honest(request.toBytes()), gateway_socket.getsockname())
        asked.append(request)
        original(gateway_socket, request)

    monkeypatch.setattr(NATPMP, "send_request", with_an_intruder)
    with gateway(monkeypatch, lambda _: b""), pytest.raises(LookupError, match="does not answer"):
        nat_pmp.map_ports("", 1200, [(4510, 4510)])
    assert asked


async def test_a_request_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    assert "does not answer in" in (await ask_router(("map", "127.0.0.1", "1", *DOORS), 0.01))["error"]
    assert time.monotonic() - started < 5
    assert "error" in await ask_router(("map", "nonsense", "1", "x"), 10.0)
