"""What an owner should know of a run and of this machine in it, before anything of it is here."""

import asyncio
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spes_peer.collector import MOST_AHEAD_BYTES, least_bytes, refuse_if_no_room
from spes_peer.daemon.program import JoinSettings
from spes_peer.errors import NoBootstrap
from spes_peer.exchange.addresses import parse_address
from spes_peer.exchange.introduction import Introduction
from spes_peer.exchange.newcomer import newest_of, refuse_if_over
from spes_peer.following.arrival import Arrival, Say, Unanswered
from spes_peer.node import usable_name
from spes_peer.ports import address_towards
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import Record
from spes_peer.snapshots import KEPT_SNAPSHOTS
from spes_peer.training.device import DeviceReport, report_of
from spes_peer.training.plan import Plan, choices_for, fitting_plan, memory_plan, refuse_if_too_large
from spes_peer.training.traffic import TrafficPlan, traffic_plan

_PATIENCE_SECONDS = 30.0
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 1.0, 5.0
_KEPT_CHECKPOINTS = 2
_LOGS_BYTES = 64 << 20  # four of 8 MB, and as many that were moved aside
_HOUR = 3600.0


@dataclass(frozen=True)
class Facts:
    introduction: Introduction
    folder: Path
    name: str
    own_address: str
    """Of this machine, on the way to the run."""
    device: DeviceReport
    plan: Plan
    traffic: TrafficPlan
    num_volunteers: int
    """In the open round; 0 before the first."""
    round_seconds: float
    is_measured: bool
    """Whether rounds take so long; else it is the longest that they may."""
    disk_bytes: int
    sent_bytes_per_hour: float
    received_bytes_per_hour: float

    @property
    def manifest(self) -> Manifest:
        return self.introduction.manifest


async def look(settings: JoinSettings, folder: Path, say: Say) -> Facts:
    """Ask the run's nodes and this machine. `NoBootstrap` when none answers for half a minute, `NotAdmitted` where the
    run is over, `NoDevice` where the smallest part of it does not fit."""
    device_asked = asyncio.create_task(report_of(settings.device))
    try:
        introduction = await _introduced(settings, say)
        say("looking at this machine's device", 0.0)
        device = await device_asked
    finally:
        device_asked.cancel()
        await asyncio.gather(device_asked, return_exceptions=True)
    manifest, records = introduction.manifest, await newest_of(introduction)
    refuse_if_over(records)
    refuse_if_no_room(folder, Layout(manifest))
    plan = plan_for(manifest, device, settings)
    num_volunteers = len(records[-1].roster) if records else 0
    traffic = traffic_plan(manifest, max(num_volunteers, manifest.run.min_peers, 2))
    measured_seconds = pace(records)
    round_seconds = measured_seconds or manifest.timing.round_seconds
    return Facts(
        introduction=introduction,
        folder=folder,
        name=usable_name(settings.name),
        own_address=address_towards(introduction.endpoint.host, introduction.endpoint.port),
        device=device,
        plan=plan,
        traffic=traffic,
        num_volunteers=num_volunteers,
        round_seconds=round_seconds,
        is_measured=measured_seconds > 0,
        disk_bytes=min(disk_bytes(manifest, plan, traffic), settings.max_disk or 1 << 62),
        sent_bytes_per_hour=_capped(traffic.sent_bytes / round_seconds, settings.max_upload) * _HOUR,
        received_bytes_per_hour=_capped(traffic.received_bytes / round_seconds, settings.max_download) * _HOUR,
    )


async def _introduced(settings: JoinSettings, say: Say) -> Introduction:
    """A person looks on: not for ever, as a daemon asks."""
    named = [parse_address(text) for text in settings.bootstraps]
    arrival = Arrival(named, known=lambda: (), accept=lambda _introduction: None, say=say)
    loop = asyncio.get_running_loop()
    until, pause_seconds = loop.time() + _PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
    say(f"asking {', '.join(str(one.endpoint) for one in named)}", 0.0)
    while True:
        try:
            return await arrival.ask()
        except Unanswered as error:
            if loop.time() + pause_seconds > until:
                raise NoBootstrap(
                    f"{error}; asked for {_PATIENCE_SECONDS:.0f} s in vain; with --yes it is waited for"
                ) from None
            say(f"{error}; trying again in {pause_seconds:.0f} s", 0.0)
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LAST_PAUSE_SECONDS)


def plan_for(manifest: Manifest, device: DeviceReport, settings: JoinSettings) -> Plan:
    """What this machine would take on; `NoDevice` if not one subset fits, however it is done."""
    choices = choices_for(device.is_gpu, settings.resident, settings.checkpointing, settings.optimizer_bits)
    allowed_bytes = settings.memory_bytes or int(settings.memory_part * device.total_bytes)
    memory_bytes = allowed_bytes or device.free_bytes
    plan, choices = fitting_plan(manifest, memory_bytes, choices, may_be_coarser=not settings.resident)
    refuse_if_too_large(plan, allowed_bytes or device.most_bytes, device.name)
    if settings.max_subsets and settings.max_subsets < plan.num_subsets:
        plan = memory_plan(manifest, memory_bytes, choices, settings.max_subsets)
    return plan


def pace(records: Sequence[Record]) -> float:
    """Seconds from round to round, as of late; 0 where there have been too few."""
    opened = [record.opened_at for record in records if record.round > 0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(opened)]
    return max(0.0, statistics.median(gaps)) if gaps else 0.0


def disk_bytes(manifest: Manifest, plan: Plan, traffic: TrafficPlan) -> int:
    """About what the folder will take: snapshots, the updates behind the older of them, what a restart takes up again,
    data, logs."""
    rows = {row.what: row.size_bytes for row in (*plan.rows, *plan.host_rows)}
    layout, sync = Layout(manifest), manifest.sync
    updates = KEPT_SNAPSHOTS * sync.snapshot_rounds * traffic.applied_bytes
    checkpoint = rows["masters"] + rows["moments"] + 4 * layout.num_shared
    data = min(manifest.data.shard_bytes, MOST_AHEAD_BYTES) + sum(manifest.data.kept_by_all.values())
    kept = _KEPT_CHECKPOINTS * checkpoint
    return least_bytes(layout) + updates + kept + data + _LOGS_BYTES


def _capped(bytes_per_second: float, most: int) -> float:
    return min(bytes_per_second, most) if most else bytes_per_second
