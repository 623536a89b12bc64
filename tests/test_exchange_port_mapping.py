"""Ports that a router opens: asked for where it can help, renewed, moved, and closed at the end."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from exchange_nodes import eventually
from netlab.lab import Lab, lab, needs_lab

from spes_peer.exchange import port_mapping
from spes_peer.exchange.addresses import Endpoint
from spes_peer.exchange.port_mapping import ask_router, keep_ports_mapped, wants_mapping
from spes_peer.exchange.reach import Door, Reach
from spes_peer.ports import Ports

__all__ = ["lab"]

INSIDE = ["4510", "4511", "4512"]


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


@contextlib.asynccontextmanager
async def kept(reach: Reach, router: Router) -> AsyncIterator[None]:
    keeping = asyncio.create_task(keep_ports_mapped(reach, router))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_what_the_router_opened_is_tried_renewed_and_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_mapping, "_RENEW_SECONDS", 0.05)
    node, router = reach(), Router({"ports": [4510, 30_000, 4512]})
    async with kept(node, router):
        await eventually(lambda: len(router.asked) >= 3)
        assert node.mapped == Door("", Ports(4510, 30_000, 4512))
        assert node._soon.is_set()
    assert router.asked[0] == ("map", "192.168.1.7", "1200", *INSIDE)
    assert router.asked[-1] == ("unmap", "192.168.1.7", "4510", "30000", "4512")


async def test_a_router_that_opens_nothing_is_asked_again_and_one_that_stops_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_RENEW_SECONDS", "_FIRST_RETRY_SECONDS", "_LAST_RETRY_SECONDS"):
        monkeypatch.setattr(port_mapping, name, 0.02)
    ports = {"ports": [4510, 4511, 4512]}
    node, router = reach(), Router({"error": "no router"}, {"ports": [1, 2]}, {"ports": [0, 1, 70_000]}, ports, {})
    async with kept(node, router):
        await eventually(lambda: node.mapped is not None)
        await eventually(lambda: node.mapped is None)
    assert router.asked[-1][0] == "map"  # there is nothing to close


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
    router = Router({"ports": [1, 2, 3]})
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


def in_home(lab_home: Any, *arguments: str) -> str:
    return str(lab_home.run([sys.executable, "-m", "spes_peer.exchange.upnp", *arguments], 30).stdout)


@needs_lab
def test_a_real_router_opens_ports_others_where_one_is_taken_and_closes_them(lab: Lab) -> None:
    home = lab.home()
    asked = home.offer_upnp()
    first, second, third = json.loads(in_home(home, "map", home.address, "1200", *INSIDE))["ports"]
    assert (first, third) == (4510, 4512)
    assert second != 4511
    assert asked[1] == f"open {second} {home.address} 4511 1200"
    assert in_home(home, "unmap", home.address, "4510", str(second), "4512") == "{}\n"
    assert [line.split()[0] for line in asked] == ["open"] * 3 + ["close"] * 3
    home.offer_upnp_no_more()
    home.offer_upnp("refuses")
    assert "Conflict" in in_home(home, "map", home.address, "1200", *INSIDE)
    home.offer_upnp_no_more()
    assert "no router that opens ports answers" in in_home(home, "map", home.address, "1200", *INSIDE)


async def test_a_request_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    assert "does not answer in" in (await ask_router(("map", "127.0.0.1", "1", *INSIDE), 0.01))["error"]
    assert time.monotonic() - started < 5
    assert "error" in await ask_router(("map", "nonsense", "1", "x"), 10.0)
