"""`spes-peer chaos`: starts a run of real processes on this machine, strikes it by a schedule, and reports on it.

It prints a line for each fault and for each round. When the time is over, all that is away comes back, and the run has
`SETTLE_SECONDS` in which every volunteer must hold a state that was made since. Whatever way it ends, it ends its
processes and removes its networks and its temporary folder.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer.chaos.network import Loopback, Network, Switched
from spes_peer.chaos.nodes import Nodes, end_leftovers
from spes_peer.chaos.observer import Observer
from spes_peer.chaos.report import SeenFault, build_report, is_good
from spes_peer.chaos.run_file import RUN_FILE
from spes_peer.chaos.schedule import schedule, volunteer_names
from spes_peer.chaos.striking import strike
from spes_peer.chaos.watching import Watching
from spes_peer.errors import ChildFailed, SpesError, first_in
from spes_peer.files import write_whole
from spes_peer.local_run import (
    START_SECONDS,
    check_enough_peers,
    check_report_folder,
    create_run,
    in_folder,
    leave_all,
)
from spes_peer.organize import run_file_text
from spes_peer.run.certificates import Checks

SETTLE_SECONDS = 180.0


@dataclass(frozen=True)
class ChaosSettings:
    num_peers: int
    minutes: float
    fault_every_seconds: float
    seed: int
    report: Path | None
    config: Path | None
    keep: Path | None
    may_part: bool


def run_chaos(settings: ChaosSettings) -> int:
    """0 only if no certified record was lost, all ended on one root, and no process outlived its node."""
    check_report_folder(settings.report)
    return asyncio.run(_Chaos(settings).run())


class _Chaos:
    def __init__(self, settings: ChaosSettings) -> None:
        self.settings = settings
        self.network: Network = Loopback()
        self.nodes = Nodes(Path(), self.network)

    async def run(self) -> int:
        return await in_folder(self.settings.keep, "spes-chaos-", self._run_in, self._stop)

    def _stop(self) -> None:
        self.nodes.stop_all()
        self.network.close()

    async def _run_in(self, folder: Path) -> int:
        end_leftovers()
        run_toml = RUN_FILE if self.settings.config is None else run_file_text(None, self.settings.config)
        check_enough_peers(run_toml, self.settings.num_peers)
        self.network = _network(self.settings.may_part)
        self.nodes = Nodes(folder, self.network)
        print("making a run: tokenizing the corpus, drawing the first weights", flush=True)
        signed = await create_run(folder, run_toml)
        print(f"bootstrap node at {await self.nodes.start_bootstrap()}", flush=True)
        for name in volunteer_names(self.settings.num_peers):
            self.nodes.add_volunteer(name)
        print(f"volunteers are starting: {self.settings.num_peers}", flush=True)
        observer = Observer(Checks.of(signed.open(), signed.run_id), self.nodes.chain_folder)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = Watching(self.nodes, observer)
                looking = tasks.create_task(watching.run())
                await self._strike_by_schedule(watching, tasks)
                looking.cancel()
        except* SpesError as failures:
            raise first_in(failures) from None
        await leave_all(self.nodes.volunteers.values())
        self.nodes.stop_all()
        return self._conclude(observer)

    async def _strike_by_schedule(self, watching: Watching, tasks: asyncio.TaskGroup) -> None:
        """From the first round until all hold one state again after the last fault."""
        settings, seen = self.settings, watching.observer.seen
        if not await watching.until_all_hold_a_state_since(0.0, START_SECONDS):
            raise ChildFailed(f"not all volunteers made a round within {START_SECONDS:.0f} s; see their logs (--keep)")
        seen.started_at = time.time()
        seconds, every_seconds = 60 * settings.minutes, settings.fault_every_seconds
        faults = schedule(settings.seed, settings.num_peers, seconds, every_seconds, self.network.can_part)
        watching.say(f"{len(faults)} faults in {seconds:.0f} s, seed {settings.seed}")
        striking = []
        for fault in faults:
            await asyncio.sleep(seen.started_at + fault.at_seconds - time.time())
            watching.say(fault.text())
            seen.faults.append(SeenFault(fault, time.time()))
            striking.append(tasks.create_task(self._strike(seen.faults[-1])))
        await asyncio.sleep(seen.started_at + seconds - time.time())
        await asyncio.gather(*striking)
        watching.say("no more faults; waiting until all hold one state")
        calm_at = time.time()
        if await watching.until_all_hold_a_state_since(calm_at, SETTLE_SECONDS):
            seen.settled_seconds = round(time.time() - calm_at, 1)
        seen.ended_at = time.time()

    async def _strike(self, seen: SeenFault) -> None:
        seen.note = await strike(seen.fault, self.nodes, self.network)
        seen.ended_at = time.time()

    def _conclude(self, observer: Observer) -> int:
        settings = self.settings
        observer.conclude(list(self.nodes.nodes), self.nodes.volunteers.keys())
        observer.seen.orphans = self.nodes.orphans
        chosen = {
            "peers": settings.num_peers,
            "minutes": settings.minutes,
            "fault_every_seconds": settings.fault_every_seconds,
            "seed": settings.seed,
            "partitions": self.network.can_part,
        }
        report = {**chosen, **build_report(observer.seen)}
        if settings.report is not None:
            write_whole(settings.report, json.dumps(report, indent=2).encode() + b"\n")
        _print_summary(report)
        return 0 if is_good(report) else 1


def _network(may_part: bool) -> Network:
    if may_part:
        try:
            return Switched()
        except ChildFailed as error:
            print(f"no partitions: {error}", flush=True)
    return Loopback()


def _print_summary(report: Mapping[str, Any]) -> None:
    recovery, goodput, settled = report["recovery_seconds"], report["goodput"], report["settled_seconds"]
    print(
        f"{report['rounds_completed']} rounds certified, {report['rounds_lost']} lost,"
        f" {report['rounds_uncertified']} uncertified; goodput {'?' if goodput is None else f'{goodput:.3f}'}"
    )
    if recovery:
        print(f"recovered from a fault in {recovery['median']:.1f} s (median), {recovery['worst']:.1f} s (worst)")
    print(f"settled in {settled:.0f} s" if settled is not None else "did not settle")
    print("all hold one state" if report["roots_equal"] else "the states differ")
    print(f"orphans: {report['orphans']}; ended by themselves: {len(report['unexpected_ends'])}", flush=True)
