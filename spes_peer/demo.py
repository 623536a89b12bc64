"""`spes-peer demo`: a bootstrap node and volunteers as real processes on this machine, over real sockets.

It watches each volunteer through its control API, prints a line a round, and writes a report. Whatever way it ends, it
ends its processes and removes its temporary folder (`local_run`).
"""

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer.errors import SpesError, UserError, first_in
from spes_peer.files import write_whole
from spes_peer.local_run import (
    START_SECONDS,
    NodeProcess,
    Volunteer,
    address_of,
    bootstrap_node,
    check_enough_peers,
    check_report_folder,
    create_run,
    in_folder,
    leave_all,
    stop_all,
)
from spes_peer.organize import run_file_text
from spes_peer.run.manifest import Manifest, parse_manifest
from spes_peer.wire.control_pb2 import RoundStatus, Status


@dataclass(frozen=True)
class DemoSettings:
    num_peers: int
    num_rounds: int
    """Rounds to make; 0 goes on to the end of the run."""
    report: Path | None
    config: Path | None
    corpus: Path | None
    keep: Path | None
    draws: bool


def run_demo(settings: DemoSettings) -> int:
    """0 only if all rounds were made and all volunteers ended on one state root."""
    if settings.num_peers < 1 or settings.num_rounds < 0:
        raise UserError("a demo needs at least one volunteer and a number of rounds that is not negative")
    check_report_folder(settings.report)
    return asyncio.run(_Demo(settings).run())


class _Demo:
    def __init__(self, settings: DemoSettings) -> None:
        self.settings = settings
        self.bootstrap: NodeProcess | None = None
        self.volunteers: list[Volunteer] = []
        self.changed = asyncio.Event()
        self.printed_round = -1
        self.is_drawn = False
        """Whether the dashboard has the terminal."""
        self.started_at = time.monotonic()

    async def run(self) -> int:
        return await in_folder(self.settings.keep, "spes-demo-", self._run_in, self._stop_all)

    async def _run_in(self, folder: Path) -> int:
        self._say("making a run: tokenizing the corpus, drawing the first weights")
        run_toml = run_file_text("demo", self.settings.config)
        check_enough_peers(run_toml, self.settings.num_peers)
        signed = await create_run(folder, run_toml, self.settings.corpus)
        address = await self._start_bootstrap(folder)
        self._say(f"bootstrap node at {address}")
        for number in range(1, self.settings.num_peers + 1):
            is_reachable = number == 1 or number < self.settings.num_peers
            self.volunteers.append(Volunteer(f"volunteer-{number}", folder, address, is_reachable=is_reachable))
        last = "; the last one takes no inbound connections" if self.settings.num_peers > 1 else ""
        self._say(f"volunteers are starting: {self.settings.num_peers}{last}")
        self._say(f"join from another terminal: spes-peer join --bootstrap {address}")
        await self._follow()
        manifest = parse_manifest(signed.manifest)
        report = build_report(manifest, [volunteer.status for volunteer in self.volunteers if volunteer.status])
        if self.settings.report is not None:
            write_whole(self.settings.report, json.dumps(report, indent=2).encode() + b"\n")
        await leave_all(self.volunteers)
        self._print_summary(report)
        return 0 if report["state_roots_equal"] else 1

    async def _follow(self) -> None:
        """Watch all volunteers until the run is finished; `ChildFailed` when a process of the demo ends before."""
        try:
            async with asyncio.TaskGroup() as tasks:
                watchers = [tasks.create_task(self._watch(volunteer)) for volunteer in self.volunteers]
                if self.settings.draws:
                    await self._draw(self.volunteers[0])
                await self._until_done()
                for watcher in watchers:
                    watcher.cancel()
        except* SpesError as failures:
            raise first_in(failures) from None

    async def _start_bootstrap(self, folder: Path) -> str:
        finish = ["--finish-after", str(self.settings.num_rounds)] if self.settings.num_rounds else []
        self.bootstrap = bootstrap_node(folder, *finish)
        return await address_of(self.bootstrap, folder)

    async def _watch(self, volunteer: Volunteer) -> None:
        """Keep the volunteer's newest status; a crash of it ends the demo."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            volunteer.check()
            try:
                async with volunteer.client() as client:
                    async for status in client.watch():
                        volunteer.status = status
                        self._print_rounds()
                        self.changed.set()
            except SpesError:
                if volunteer.status is None and time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.2)

    async def _until_done(self) -> None:
        """Until every volunteer says that the run is finished."""
        while not all(v.status and v.status.phase.name == "finished" for v in self.volunteers):
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.changed.wait()
            assert self.bootstrap is not None
            self.bootstrap.check()

    async def _draw(self, volunteer: Volunteer) -> None:
        """The dashboard on the first volunteer, in a process of its own; closing it leaves the demo running."""
        while volunteer.status is None:
            self.changed.clear()
            await self.changed.wait()
        self.is_drawn = True
        dashboard = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "spes_peer", "watch", "--data-dir", str(volunteer.data_dir)
        )
        finished = asyncio.create_task(self._until_done())
        closed = asyncio.create_task(dashboard.wait())
        try:
            await asyncio.wait({finished, closed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_finished = finished.done()
            finished.cancel()
            if dashboard.returncode is None:
                dashboard.terminate()
                await dashboard.wait()
            closed.cancel()
            self.is_drawn = False
        if not is_finished:
            self._say("the demo goes on, with a line for each round; Ctrl-C ends it")

    def _print_rounds(self) -> None:
        """One line for each round that every volunteer has applied."""
        statuses = [volunteer.status for volunteer in self.volunteers]
        if self.is_drawn or not all(statuses):
            return
        for merged in merge_rounds([status for status in statuses if status]):
            if merged["round"] <= self.printed_round:
                continue
            self.printed_round = merged["round"]
            sent = sum(t["bytes_sent"] for peer in merged["traffic"].values() for t in peer.values())
            loss = merged["held_out_loss"]
            print(
                f"round {merged['round']:3d}  held-out loss {'?' if loss is None else f'{loss:.3f}'}"
                f"  {merged['tokens']:,} tokens  {merged['seconds']:.1f} s"
                f"  {merged['tokens'] / max(merged['seconds'], 1e-9):,.0f} tokens/s"
                f"  {sent / 1e6:.1f} MB sent  root {merged['state_root'][:12]}"
                f"  {'equal on all' if merged['roots_equal'] else 'ROOTS DIFFER'}",
                flush=True,
            )

    def _print_summary(self, report: dict[str, Any]) -> None:
        start, end = report["held_out_loss_start"], report["held_out_loss_end"]
        if report["rounds"] and start is not None and end is not None:
            self._say(
                f"{len(report['rounds'])} rounds, held-out loss {start:.3f} → {end:.3f} nats per token,"
                f" {report['tokens_per_second']:,.0f} tokens/s, {time.monotonic() - self.started_at:.0f} s in all"
            )
        self._say("all volunteers hold one state" if report["state_roots_equal"] else "the volunteers' states differ")

    def _stop_all(self) -> None:
        stop_all([*self.volunteers, *([self.bootstrap] if self.bootstrap else [])])

    def _say(self, text: str) -> None:
        if not self.is_drawn:
            print(text, flush=True)


def merge_rounds(statuses: list[Status]) -> list[dict[str, Any]]:
    """The rounds that all volunteers have applied, oldest first, with what each of them says of it."""
    by_round = [{entry.round: entry for entry in status.rounds} for status in statuses]
    common = sorted(set.intersection(*(set(rounds) for rounds in by_round))) if by_round else []
    merged = []
    for number in common:
        entries = [rounds[number] for rounds in by_round]
        roots = {entry.state_root for entry in entries}
        merged.append(
            {
                "round": number,
                "state_root": entries[0].state_root,
                "roots_equal": len(roots) == 1,
                "held_out_loss": _held_out_loss(entries),
                "train_loss": entries[0].train_loss,
                "tokens": entries[0].tokens,
                "seconds": entries[0].seconds,
                "traffic": {
                    status.name: {
                        traffic.transport: {"bytes_sent": traffic.bytes_sent, "bytes_received": traffic.bytes_received}
                        for traffic in entry.traffic
                    }
                    for status, entry in zip(statuses, entries, strict=True)
                },
            }
        )
    return merged


def _held_out_loss(entries: list[RoundStatus]) -> float | None:
    """Mean over the slices that the volunteers measured; None before any has."""
    tokens = sum(entry.own_held_out_tokens for entry in entries)
    return sum(entry.own_held_out_loss_sum for entry in entries) / tokens if tokens else None


def build_report(manifest: Manifest, statuses: list[Status]) -> dict[str, Any]:
    """What was measured, from the volunteers' own statuses."""
    rounds = merge_rounds(statuses)
    for entry in rounds:
        traffic = entry.pop("traffic")
        for direction in ("bytes_sent", "bytes_received"):
            entry[direction] = {
                peer: {transport: counts[direction] for transport, counts in transports.items()}
                for peer, transports in traffic.items()
            }
    seconds = sum(entry["seconds"] for entry in rounds)
    starts = [status.held_out_loss_start for status in statuses if status.held_out_loss_start > 0]
    roots = {status.state_root for status in statuses}
    return {
        "run": manifest.run.name,
        "peers": [
            {
                "name": status.name,
                "peer_id": status.peer_id,
                "reachability": status.reachability,
                "bytes_sent": {traffic.transport: traffic.bytes_sent for traffic in status.traffic},
                "bytes_received": {traffic.transport: traffic.bytes_received for traffic in status.traffic},
            }
            for status in statuses
        ],
        "rounds": rounds,
        "held_out_loss_start": starts[0] if starts else None,
        "held_out_loss_end": rounds[-1]["held_out_loss"] if rounds else None,
        "tokens_per_second": sum(entry["tokens"] for entry in rounds) / seconds if seconds else 0.0,
        "state_roots_equal": len(roots) == 1 and all(entry["roots_equal"] for entry in rounds),
    }
