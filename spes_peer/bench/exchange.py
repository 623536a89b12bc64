"""`spes-peer bench exchange`: how fast blobs travel, each figure beside what a plain tool reaches in the same run.

Over loopback anywhere. Over links as volunteers have them in network namespaces, which need Linux, root, iproute2 and
iperf3; where one is missing, the report says which parts were skipped and why. All nodes are processes of their own and
run the code that serves and fetches in a run.
"""

import asyncio
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
from argparse import Namespace
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc

from spes_peer.bench.exchange_lab import (
    COMMAND_SECONDS,
    LOOPBACK,
    NodeProcess,
    apart,
    hide_behind_relay,
    introduce,
    network,
    nodes_at,
)
from spes_peer.bench.report import write_report
from spes_peer.chaos.network import Spot, missing, shape
from spes_peer.errors import ChildFailed


@dataclass(frozen=True)
class _Size:
    loopback_bytes: int
    link_bytes: int
    relay_bytes: int
    swarm_bytes: int
    beat_bytes: int
    num_peers: int
    num_repeats: int
    num_loopback_repeats: int


_FULL = _Size(256 << 20, 64 << 20, 32 << 20, 32 << 20, 24 << 20, num_peers=8, num_repeats=3, num_loopback_repeats=6)
_QUICK = _Size(8 << 20, 4 << 20, 4 << 20, 4 << 20, 12 << 20, num_peers=2, num_repeats=1, num_loopback_repeats=1)
LINK_MBIT, RELAY_MBIT, SWARM_MBIT = 100, 50, 20
# What to reach at least, of the last at most; of the first two, one.
GOALS = {
    "loopback_mb_s": 250,
    "loopback_ratio": 0.8,
    "grpc_link_ratio": 0.9,
    "relay_link_ratio": 0.8,
    "swarm_factor": 1.6,
}


def run_bench(options: Namespace) -> dict[str, Any]:
    """Measure, print, and write `options.report` where it is given; gives what is written there.

    Raises `BadConfiguration` for a report that cannot be written, `ChildFailed` for a node that fails."""
    size = _QUICK if options.quick else _FULL
    report: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "grpc": grpc.__version__,
        "quick": options.quick,
        "goals": GOALS,
        "skipped": {},
    }
    for name, needs, measure in _PARTS:
        if why := needs():
            report["skipped"][name] = why
            print(f"{name}: skipped: {why}", flush=True)
            continue
        figures = asyncio.run(measure(size))
        report |= figures
        print(f"{name}: {_words(figures)}", flush=True)
    if options.report:
        write_report(options.report, report)
    return report


def _words(figures: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:.3g}" for key, value in figures.items() if isinstance(value, float))


# ---- the parts ----


async def loopback(size: _Size) -> dict[str, Any]:
    """MB/s of a fetch over loopback, and of the plain stream, in turns; the best of each, which others' work on this
    machine has disturbed least."""
    async with nodes_at({"source": LOOPBACK, "asker": LOOPBACK}) as nodes:
        plain = await nodes["source"].do("serve_plainly")
        blob = await nodes["source"].do("make", num_bytes=size.loopback_bytes)
        ours, theirs = [], []
        for _ in range(size.num_loopback_repeats):
            streamed = await nodes["asker"].do("stream", **plain, num_bytes=size.loopback_bytes)
            theirs.append(size.loopback_bytes / 1e6 / streamed["seconds"])
            fetched = await nodes["asker"].do("fetch", **blob, sources=[nodes["source"].peer])
            ours.append(size.loopback_bytes / 1e6 / fetched["seconds"])
            await nodes["asker"].do("drop", name=blob["name"])
    return {
        "loopback_mb_s": max(ours),
        "loopback_plain_mb_s": max(theirs),
        "loopback_ratio": max(ours) / max(theirs),
        "loopback_all_mb_s": {"ours": ours, "plain": theirs},
    }


async def grpc_link(size: _Size) -> dict[str, Any]:
    """A fetch over a link of 100 Mbit/s, beside as many bytes of iperf3."""
    with network() as net:
        source, asker = net.add("source"), net.add("asker")
        shape(source.space, "eth0", LINK_MBIT)
        async with nodes_at({"source": source, "asker": asker}) as nodes:
            return await _beside_iperf(nodes, source, asker, size.link_bytes, size.num_repeats, "grpc_link")


async def relay_link(size: _Size) -> dict[str, Any]:
    """A fetch through a circuit relay by a source that has 50 Mbit/s up and is reached in no other way, beside as many
    bytes of iperf3 straight to the receiver."""
    with network() as net:
        spots = {name: net.add(name) for name in ("relay", "source", "asker")}
        shape(spots["source"].space, "eth0", RELAY_MBIT)
        async with nodes_at(spots) as nodes:
            await hide_behind_relay(nodes, "source", "asker")
            return await _beside_iperf(
                nodes, spots["source"], spots["asker"], size.relay_bytes, size.num_repeats, "relay_link"
            )


async def beats(size: _Size) -> dict[str, Any]:
    """How long beats take, there and back, while blobs saturate the line of one of both ends, 20 Mbit/s up: the worst
    of them when it attends, and when it is attended by one that fetches from it; directly and through a relay."""
    figures: dict[str, float] = {}
    for way in ("grpc", "relay"):
        with network() as net:
            spots = {name: net.add(name) for name in ("relay", "busy", "asker")}
            shape(spots["busy"].space, "eth0", SWARM_MBIT)
            async with nodes_at(spots) as nodes:
                if way == "relay":
                    await hide_behind_relay(nodes, "busy", "asker")
                    await introduce(nodes)
                busy, asker = nodes["busy"], nodes["asker"]
                blob = await busy.do("make", num_bytes=size.beat_bytes)
                seconds = size.beat_bytes * 8 / 1e6 / SWARM_MBIT
                with apart(spots["busy"], spots["asker"]) if way == "relay" else contextlib.nullcontext():
                    fetched, beaten = await asyncio.gather(
                        asker.do("fetch_and_attend", **blob, sources=[busy.peer], attended=busy.peer),
                        busy.do("beat", attended=asker.peer, seconds=seconds),
                    )
                figures[f"beats_{way}_attended_worst_seconds"] = max(fetched["delays"])
                figures[f"beats_{way}_attending_worst_seconds"] = max(beaten["delays"])
    return figures


async def swarm(size: _Size) -> dict[str, Any]:
    """How much longer a blob takes from one origin to all peers than to one, all with 20 Mbit/s up. To send it to one
    after another would take as many times as long as there are peers."""
    names = [f"peer{number}" for number in range(size.num_peers)]
    with network() as net:
        spots = {name: net.add(name) for name in ("origin", *names)}
        for spot in spots.values():
            shape(spot.space, "eth0", SWARM_MBIT)
        async with nodes_at(spots) as nodes:
            await introduce(nodes)
            everybody = [node.peer for node in nodes.values()]
            single = await nodes["origin"].do("make", num_bytes=size.swarm_bytes)
            one = await nodes[names[0]].do("fetch", **single, sources=everybody)
            factors, copies, seconds = [], [], []
            for _ in range(size.num_repeats):
                blob = await nodes["origin"].do("make", num_bytes=size.swarm_bytes)
                before = (await nodes["origin"].do("sent"))["sent_bytes"]
                fetched = await asyncio.gather(*(nodes[name].do("fetch", **blob, sources=everybody) for name in names))
                seconds.append(max(each["seconds"] for each in fetched))
                factors.append(seconds[-1] / one["seconds"])
                sent = (await nodes["origin"].do("sent"))["sent_bytes"] - before
                copies.append(sent / size.swarm_bytes)
    return {
        "swarm_factor": statistics.median(factors),
        "swarm_single_seconds": one["seconds"],
        "swarm_seconds": statistics.median(seconds),
        "swarm_origin_copies": statistics.median(copies),
        "swarm_all_factors": factors,
        "swarm_num_peers": size.num_peers,
    }


async def _beside_iperf(
    nodes: dict[str, NodeProcess], source: Spot, asker: Spot, num_bytes: int, num_repeats: int, part: str
) -> dict[str, Any]:
    """In turns; the median of each."""
    await introduce(nodes)
    blob = await nodes["source"].do("make", num_bytes=num_bytes)
    ours, theirs = [], []
    for _ in range(num_repeats):
        theirs.append(await asyncio.to_thread(_iperf_mbit, source, asker, num_bytes))
        with apart(source, asker) if part == "relay_link" else contextlib.nullcontext():
            fetched = await nodes["asker"].do("fetch", **blob, sources=[nodes["source"].peer])
        ours.append(num_bytes * 8 / 1e6 / fetched["seconds"])
        await nodes["asker"].do("drop", name=blob["name"])
    return {
        f"{part}_ratio": statistics.median(ours) / statistics.median(theirs),
        f"{part}_mbit_s": statistics.median(ours),
        f"{part}_iperf3_mbit_s": statistics.median(theirs),
        f"{part}_all_mbit_s": {"ours": ours, "iperf3": theirs},
    }


def _iperf_mbit(sender: Spot, receiver: Spot, num_bytes: int) -> float:
    """What iperf3 reaches with so many bytes, as its receiver counts them."""
    server = subprocess.Popen([*receiver.before, "iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        while b"listening" not in server.stdout.readline():
            pass
        command = [*sender.before, "iperf3", "-c", receiver.address, "-n", str(num_bytes), "-J"]
        done = subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=False)
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise ChildFailed(f"iperf3: {answer['error']}")
        return float(answer["end"]["sum_received"]["bits_per_second"]) / 1e6
    finally:
        server.kill()
        server.communicate()


def _needs_nothing() -> str:
    return ""


def _needs_network() -> str:
    return missing()


def _needs_iperf() -> str:
    return missing() or ("" if shutil.which("iperf3") else "iperf3 not found: apt-get install iperf3")


_PARTS: list[tuple[str, Callable[[], str], Callable[[_Size], Coroutine[Any, Any, dict[str, Any]]]]] = [
    ("loopback", _needs_nothing, loopback),
    ("grpc_link", _needs_iperf, grpc_link),
    ("relay_link", _needs_iperf, relay_link),
    ("swarm", _needs_network, swarm),
    ("beats", _needs_network, beats),
]
