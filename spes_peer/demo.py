"""`spes-peer demo`: a bootstrap node and volunteers as real processes on this machine, over real sockets.

Everything here is what a person could type in several terminals: `run create`, `spes-bootstrap`, `join`, `status`,
`leave`. The demo watches each volunteer through its control API, prints a line a round, and writes a report. Whatever
way it ends, it ends its processes and removes its temporary folder.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer.control import ControlClient
from spes_peer.errors import BadConfiguration, ChildFailed, SpesError, UserError, first_in
from spes_peer.files import write_whole
from spes_peer.organize import read_manifest, run_file_text
from spes_peer.process import ending_signals
from spes_peer.run.manifest import Manifest, SignedManifest, parse_manifest, parse_run_file
from spes_peer.wire.control_pb2 import RoundStatus, Status

logger = logging.getLogger(__name__)

_START_SECONDS = 180.0
_STOP_SECONDS = 20.0
_FAILED_LOG_LINES = 15


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
    if settings.report is not None and not settings.report.absolute().parent.is_dir():
        raise UserError(f"there is no folder {settings.report.absolute().parent} for the report; make it first")
    return asyncio.run(_Demo(settings).run())


class _Process:
    """One node of the demo: its process and its log."""

    def __init__(self, name: str, folder: Path, module: str, *arguments: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, "--with-parent"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(temporary)},  # what libraries leave there goes with the demo's folder
                start_new_session=True,  # Ctrl-C is the demo's to handle
            )

    def check(self) -> None:
        """Raise `ChildFailed`, with the end of its log on stderr, if the process has ended."""
        if self.popen.poll() is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines()[-_FAILED_LOG_LINES:]
            print("\n".join(lines), file=sys.stderr)
            raise ChildFailed(f"{self.name} ended with code {self.popen.returncode}")


class _Volunteer(_Process):
    """A volunteer, and what its control API last said."""

    def __init__(self, name: str, folder: Path, address: str, is_reachable: bool) -> None:
        self.data_dir = folder / name
        self.status: Status | None = None
        options = ["--bootstrap", address, "--data-dir", str(self.data_dir), "--name", name, "--host", "127.0.0.1"]
        options += ["--device", "cpu", "--threads", "1", "--max-subsets", "1", "--no-tui"]
        super().__init__(name, folder, "spes_peer", "join", *options, *([] if is_reachable else ["--no-inbound"]))

    def client(self) -> ControlClient:
        return ControlClient(self.data_dir / "control.sock")


class _Demo:
    def __init__(self, settings: DemoSettings) -> None:
        self.settings = settings
        self.bootstrap: _Process | None = None
        self.volunteers: list[_Volunteer] = []
        self.changed = asyncio.Event()
        self.printed_round = -1
        self.is_drawn = False
        """Whether the dashboard has the terminal."""
        self.started_at = time.monotonic()

    async def run(self) -> int:
        main = asyncio.current_task()
        assert main is not None
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, main.cancel)
        folder = self._make_folder()
        try:
            return await self._run_in(folder)
        except asyncio.CancelledError:
            print("stopping", file=sys.stderr)
            return 130
        finally:
            self._stop_all()
            if self.settings.keep is None:
                shutil.rmtree(folder, ignore_errors=True)

    def _make_folder(self) -> Path:
        if self.settings.keep is None:
            return Path(tempfile.mkdtemp(prefix="spes-demo-"))
        if self.settings.keep.exists() and any(self.settings.keep.iterdir()):
            raise UserError(f"{self.settings.keep} is not empty; name a new folder with --keep")
        self.settings.keep.mkdir(parents=True, exist_ok=True)
        return self.settings.keep.absolute()

    async def _run_in(self, folder: Path) -> int:
        self._say("making a run: tokenizing the corpus, drawing the first weights")
        run_toml = run_file_text("demo", self.settings.config)
        min_peers = parse_run_file(run_toml).run.min_peers
        if min_peers > self.settings.num_peers:
            raise UserError(
                f"the run waits for {min_peers} volunteers (min_peers);"
                " start as many with --peers, or give another run file with --config"
            )
        signed = await self._create_run(folder, run_toml)
        address = await self._start_bootstrap(folder)
        self._say(f"bootstrap node at {address}")
        for number in range(1, self.settings.num_peers + 1):
            is_reachable = number == 1 or number < self.settings.num_peers
            self.volunteers.append(_Volunteer(f"volunteer-{number}", folder, address, is_reachable))
        last = "; the last one takes no inbound connections" if self.settings.num_peers > 1 else ""
        self._say(f"volunteers are starting: {self.settings.num_peers}{last}")
        self._say(f"join from another terminal: spes-peer join --bootstrap {address}")
        await self._follow()
        manifest = parse_manifest(signed.manifest)
        report = build_report(manifest, [volunteer.status for volunteer in self.volunteers if volunteer.status])
        if self.settings.report is not None:
            write_whole(self.settings.report, json.dumps(report, indent=2).encode() + b"\n")
        await self._leave_all()
        self._print_summary(report)
        return 0 if report["state_roots_equal"] else 1

    async def _create_run(self, folder: Path, run_toml: str) -> SignedManifest:
        """In a process, which can be ended at any moment."""
        write_whole(folder / "run.toml", run_toml.encode())
        options = ["--config", str(folder / "run.toml"), "--log-level", "ERROR"]
        if self.settings.corpus is not None:
            options += ["--corpus", str(self.settings.corpus)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "spes_peer", "run", "create", str(folder / "run"), *options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            why = errors.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("spes-peer: ")
            raise BadConfiguration(why) if process.returncode == BadConfiguration.exit_code else ChildFailed(why)
        return read_manifest(folder / "run")

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
        options = ["--run", str(folder / "run"), "--host", "127.0.0.1", "--port", "0"]
        self.bootstrap = _Process("bootstrap", folder, "bootstrap", *options, *finish)
        address_file = folder / "run" / "address"
        deadline = time.monotonic() + _START_SECONDS
        while not address_file.exists():
            self.bootstrap.check()
            if time.monotonic() > deadline:
                raise ChildFailed(f"the bootstrap node did not start in {_START_SECONDS:.0f} s")
            await asyncio.sleep(0.1)
        return address_file.read_text().strip()

    async def _watch(self, volunteer: _Volunteer) -> None:
        """Keep the volunteer's newest status; a crash of it ends the demo."""
        deadline = time.monotonic() + _START_SECONDS
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

    async def _draw(self, volunteer: _Volunteer) -> None:
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

    async def _leave_all(self) -> None:
        async def leave(volunteer: _Volunteer) -> None:
            with contextlib.suppress(SpesError):
                async with volunteer.client() as client:
                    await client.leave(at_once=True)

        await asyncio.gather(*(leave(volunteer) for volunteer in self.volunteers))

    def _stop_all(self) -> None:
        """End what is still there: a request first, then force."""
        nodes = [*self.volunteers, *([self.bootstrap] if self.bootstrap else [])]
        processes = [node.popen for node in nodes]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

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
