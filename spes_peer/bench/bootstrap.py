"""What one bootstrap node takes to hold so many volunteers: memory, processor, and how long its answers take.

One real `spes-bootstrap` with its child processes; the volunteers are simulated (`crowd`), with real connections over
the loopback, all from this process, which shares the machine: what is measured of the node is by its process ids.
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from spes_peer.bench.crowd import Client, Figures, attending, calls_of
from spes_peer.bench.crowd_dht import dht_nodes, keep_stored
from spes_peer.bench.report import write_report
from spes_peer.blobs import PIECE_BYTES
from spes_peer.errors import BadConfiguration, SpesError
from spes_peer.exchange.addresses import NodeAddress, parse_address
from spes_peer.exchange.introduction import Introduction, describe
from spes_peer.local_run import address_of, bootstrap_node, create_run, stop_all
from spes_peer.process import use_all_descriptors
from spes_peer.run.presets import PRESETS

HEARTBEAT_SECONDS = 5.0  # of the presets for real runs
_ADMITTED_SECONDS = 600.0
_SAMPLE_SECONDS = 1.0
_TIMING = {  # of the presets for real runs, so that a round lasts longer than the measure
    "heartbeat_seconds": HEARTBEAT_SECONDS,
    "round_seconds": 7200,
    "round_grace_seconds": 300,
    "fetch_stall_seconds": 60,
    "coordinator_timeout_seconds": 600,
    "stall_timeout_seconds": 7200,
    "dht_beat_seconds": 15,
    "dht_ttl_seconds": 60,
    "lease_seconds": 15_000,
}


def run_bench(options: argparse.Namespace) -> None:
    """Measure, print, and write the report; `SpesError` where it cannot be."""
    num_clients, seconds = (20, 5.0) if options.quick else (options.clients, options.seconds)
    use_all_descriptors()
    report = asyncio.run(_measure(num_clients, seconds, options.dht_nodes, options.calls_per_second))
    print(table(report))
    if options.report:
        write_report(options.report, report)


async def _measure(num_clients: int, seconds: float, num_dht_nodes: int, calls_per_second: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="spes-bench-") as name:
        folder = Path(name)
        _say("making a run")
        await create_run(folder, _run_file(num_clients))
        bootstrap = bootstrap_node(folder, "--log-level", "WARNING")
        try:
            address = parse_address((await address_of(bootstrap, folder)).split(",")[0])
            measure = Measure(folder, bootstrap.popen.pid, address)
            await measure.run(num_clients, seconds, num_dht_nodes, calls_per_second)
            bootstrap.check()
        finally:
            stop_all([bootstrap])
    return measure.report


def _run_file(num_clients: int) -> str:
    """The demo's model with the clocks of a real run and a place for everybody."""
    values: dict[str, object] = {"min_peers": num_clients, "batch_sequences": 2 * num_clients, **_TIMING}
    lines = []
    for line in PRESETS["demo"].splitlines():
        key = line.partition("=")[0].strip()
        lines.append(f"{key} = {values.pop(key)}" if key in values else line)
    if values:
        raise BadConfiguration(f"the preset demo lacks {', '.join(values)}")
    return "\n".join(lines)


@dataclass
class _Use:
    """Of the bootstrap node's processes, by what they are."""

    cpu_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    resident_bytes: Counter[str] = field(default_factory=Counter)


def _cpu_between(before: _Use, after: _Use) -> dict[str, float]:
    return {name: seconds - before.cpu_seconds.get(name, 0.0) for name, seconds in after.cpu_seconds.items()}


def _use_of(pid: int) -> _Use:
    use, node = _Use(), psutil.Process(pid)
    for process in (node, *node.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times, words = process.cpu_times(), process.cmdline()
            modules = [word.rpartition(".")[2] for word in words if word.startswith("spes_peer.")]
            name = "node" if process == node else modules[-1] if modules else process.name()
            use.cpu_seconds[name] += times.user + times.system
            use.resident_bytes[name] += process.memory_info().rss
    return use


class Measure:
    """One bootstrap node under one crowd."""

    def __init__(self, folder: Path, pid: int, address: NodeAddress) -> None:
        self.report: dict[str, Any] = {}
        self._folder = folder
        self._pid = pid
        self._address = address
        self._figures = Figures()
        self._most_bytes: Counter[str] = Counter()

    async def run(self, num_clients: int, seconds: float, num_dht_nodes: int, calls_per_second: float) -> None:
        before = _use_of(self._pid)
        introduction = await describe(self._address)
        num_subsets = introduction.manifest.training.num_subsets
        clients = [Client(introduction, self._figures, number % num_subsets) for number in range(num_clients)]
        sampling = asyncio.create_task(self._sample())
        try:
            heartbeat_seconds = introduction.manifest.timing.heartbeat_seconds
            began_at = time.monotonic()
            async with attending(clients, self._address, heartbeat_seconds) as all_in:
                _say(f"{num_clients} clients arrive, and are admitted to round 1")
                async with asyncio.timeout(_ADMITTED_SECONDS):
                    await all_in.wait()
                admitted_seconds, joined = time.monotonic() - began_at, _use_of(self._pid)
                self._figures.seconds.pop("beat heard", None)
                self._figures.num_beats = 0
                use = await self._steady(clients, introduction, seconds, num_dht_nodes, calls_per_second)
        except TimeoutError:
            raise SpesError(
                f"not all are admitted in {_ADMITTED_SECONDS:g} s: {dict(self._figures.failures)}"
            ) from None
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
        joining = _cpu_between(before, joined)
        self.report = {
            "clients": num_clients,
            "seconds": seconds,
            "heartbeat_seconds": heartbeat_seconds,
            "calls_per_second": calls_per_second,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "admitted_seconds": admitted_seconds,
            "joining_cpu_seconds": joining,
            **use,
            "most_resident_bytes": dict(self._most_bytes),
            "latency_seconds": {name: _quantiles(found) for name, found in sorted(self._figures.seconds.items())},
            "failures": dict(self._figures.failures),
        }

    async def _sample(self) -> None:
        while True:
            with contextlib.suppress(psutil.Error):
                self._most_bytes |= _use_of(self._pid).resident_bytes
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _steady(
        self,
        clients: list[Client],
        introduction: Introduction,
        seconds: float,
        num_dht_nodes: int,
        calls_per_second: float,
    ) -> dict[str, Any]:
        """Beats, calls and the DHT for so long; what the node took of the processor."""
        data = introduction.manifest.data
        shard = data.held_out.blob, -(-data.size_bytes(data.held_out) // PIECE_BYTES)
        async with contextlib.AsyncExitStack() as stack:
            nodes: Any = ()
            background = []
            if num_dht_nodes:
                _say(f"starting {num_dht_nodes} DHT nodes")
                opening = dht_nodes(num_dht_nodes, self._folder, introduction, self._figures)
                nodes = await stack.enter_async_context(opening)
                identities = [client.identity for client in clients]
                storing = keep_stored(nodes, identities, introduction.manifest.timing.dht_beat_seconds)
                background.append(asyncio.create_task(storing))
            _say(f"measuring for {seconds:g} s")
            self._figures.seconds.pop("beat heard", None)
            before, began_at, num_beats = _use_of(self._pid), time.monotonic(), self._figures.num_beats
            calls = calls_of(self._figures, self._address, shard)
            background.append(asyncio.create_task(self._call(clients, calls, calls_per_second)))
            background += [asyncio.create_task(_read(node)) for node in nodes]
            await asyncio.sleep(seconds)
            lasted, use = time.monotonic() - began_at, _use_of(self._pid)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        return {
            "measured_seconds": lasted,
            "cpu_seconds": _cpu_between(before, use),
            "resident_bytes": dict(use.resident_bytes),
            "beats_per_second": (self._figures.num_beats - num_beats) / lasted,
            "bytes_fetched": self._figures.bytes_fetched,
        }

    async def _call(self, clients: list[Client], calls: Any, calls_per_second: float) -> None:
        """Calls of every kind in turn, by clients of chance, at that rate whatever the answers take."""
        loop, kinds = asyncio.get_running_loop(), list(calls.items())
        began_at, number = loop.time(), 0
        async with asyncio.TaskGroup() as tasks:
            while True:
                name, call = kinds[number % len(kinds)]
                if (link := random.choice(clients).link) is not None:
                    tasks.create_task(self._figures.timed(name, call(link)))
                number += 1
                await asyncio.sleep(began_at + number / calls_per_second - loop.time())


async def _read(node: Any) -> None:
    while True:
        await node.read()
        await asyncio.sleep(1.0)


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at: Callable[[float], float] = lambda part: ordered[min(len(ordered) - 1, int(part * len(ordered)))]  # noqa: E731
    return {"count": len(ordered), "median": statistics.median(ordered), "p99": at(0.99), "most": ordered[-1]}


def table(report: dict[str, Any]) -> str:
    """What was measured, for people."""
    lasted = report["measured_seconds"]
    lines = [
        f"{report['clients']} clients, a beat each {report['heartbeat_seconds']:g} s,"
        f" {report['calls_per_second']:g} calls/s beside, {lasted:.0f} s; {report['cores']} cores shared with the"
        f" clients, load {report['load']:.1f}",
        f"all in round 1 {report['admitted_seconds']:.1f} s after the first came;"
        f" {report['beats_per_second']:.0f} beats/s",
        "",
        "| process | joining, CPU s | then, cores | memory, MB | at most |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in sorted(report["resident_bytes"]):
        joining, steady = report["joining_cpu_seconds"].get(name, 0.0), report["cpu_seconds"].get(name, 0.0)
        now, most = report["resident_bytes"][name] / 1e6, report["most_resident_bytes"].get(name, 0) / 1e6
        lines.append(f"| {name} | {joining:.1f} | {steady / lasted:.3f} | {now:.0f} | {most:.0f} |")
    total_bytes = sum(report["resident_bytes"].values()) / 1e6
    total = sum(report["cpu_seconds"].values()) / lasted
    joining = sum(report["joining_cpu_seconds"].values())
    lines += [f"| all | {joining:.1f} | {total:.3f} | {total_bytes:.0f} | |", ""]
    lines += ["| call | number | median, ms | 99th percentile | longest |", "|---|---:|---:|---:|---:|"]
    for name, found in report["latency_seconds"].items():
        ms = {key: 1_000 * value for key, value in found.items()}
        lines.append(f"| {name} | {found['count']} | {ms['median']:.1f} | {ms['p99']:.1f} | {ms['most']:.0f} |")
    if report["failures"]:
        lines += ["", "failed:", *(f"  {number} × {name}" for name, number in report["failures"].items())]
    return "\n".join(lines)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)
