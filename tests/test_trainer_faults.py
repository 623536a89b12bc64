"""A real trainer process that is frozen, killed or starved of memory, and the host that keeps one running."""

import asyncio
import contextlib
import dataclasses
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from exchange_nodes import eventually
from training_swarm import PEERS, Swarm

from spes_peer import troubles
from spes_peer.daemon.trainer_host import BUDGET_FILE, TrainerHost, TrainerSettings
from spes_peer.errors import ChildFailed, ChildOutOfMemory, DiskTrouble
from spes_peer.files import UNFINISHED
from spes_peer.run.records import DataRange
from spes_peer.training import checkpoint
from spes_peer.training.client import TrainerProcess
from spes_peer.training.trainer import CHECKPOINT_FILE
from spes_peer.training.work import TrainRound

pytestmark = pytest.mark.slow

PEER = PEERS[0]
STEPS = 100_000  # more than any test waits for


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    return Swarm.create(tmp_path, (0, 1))


@contextlib.asynccontextmanager
async def hosted(swarm: Swarm, folder: Path, **settings: float) -> AsyncIterator[TrainerHost]:
    """A host that supervises, and no process left after it."""
    content, state = swarm.manifest.to_bytes(), folder / "state"
    state.mkdir()
    opened_with = TrainerSettings(content, swarm.blobs.folder, state, folder / "trainer.log", PEER, "cpu", 1)
    host = TrainerHost(dataclasses.replace(opened_with, **settings))  # type: ignore[arg-type]
    await host.start()
    supervising = asyncio.create_task(host.supervise())
    try:
        yield host
    finally:
        supervising.cancel()
        await asyncio.gather(supervising, return_exceptions=True)
        await host.stop()
        assert not [child for child in psutil.Process().children() if is_a_trainer(child)]


def is_a_trainer(process: psutil.Process) -> bool:
    try:
        return "spes_peer.training" in process.cmdline()
    except psutil.NoSuchProcess:  # it has ended, a zombie too
        return False


async def until_replaced(host: TrainerHost, process: TrainerProcess) -> TrainerProcess:
    await eventually(lambda: host._process not in (None, process), 60)
    return host.get()


def endless(swarm: Swarm) -> TrainRound:
    work = swarm.work(PEER)
    ranges = (DataRange(0, STEPS * work.sequences_per_step),)
    return dataclasses.replace(work, num_steps=STEPS, stop_at=time.time() + 600, ranges=ranges)


async def training(host: TrainerHost, swarm: Swarm) -> "asyncio.Task[object]":
    """A round that goes on until something ends it."""
    progress = asyncio.Event()
    host.on_progress = lambda _progress: progress.set()
    await host.get().load_state(0, swarm.genesis)
    task: asyncio.Task[object] = asyncio.create_task(host.get().train_round(endless(swarm)))
    async with asyncio.timeout(60):
        await progress.wait()
    return task


async def test_a_frozen_trainer_is_replaced_and_one_that_works_is_not(swarm: Swarm, tmp_path: Path) -> None:
    async with hosted(swarm, tmp_path, stall_seconds=8.0) as host:
        round_ = await training(host, swarm)
        first = host.get()
        await asyncio.sleep(9.0)  # longer than it may be silent
        assert host.get() is first
        os.kill(first.child.pid, signal.SIGSTOP)
        with pytest.raises(ChildFailed):
            await round_
        assert re.fullmatch(r"stalled \d+ s: it does not run", first.why_killed)
        second = await until_replaced(host, first)
        assert await second.load_state(0, swarm.genesis) == swarm.trainers[PEER]._public.root()
        assert (host.service.state, host.service.why) == ("running", first.why_killed)


async def test_a_trainer_killed_again_and_again_also_while_it_starts_comes_back(swarm: Swarm, tmp_path: Path) -> None:
    async with hosted(swarm, tmp_path) as host:
        round_ = await training(host, swarm)
        process = host.get()
        os.kill(process.child.pid, signal.SIGKILL)
        with pytest.raises(ChildFailed):
            await round_
        killed = {process.child.pid}
        for seconds in (0.0, 0.3, 1.0):  # into its start
            await eventually(lambda: any(child.pid not in killed for child in trainers()), 60)
            await asyncio.sleep(seconds)
            for child in trainers():
                child.kill()
                killed.add(child.pid)
            await eventually(lambda: not any(child.pid in killed for child in trainers()))
        await until_replaced(host, process)
        assert host.get().child.pid != process.child.pid
        assert "killed by somebody" in host.service.why
        await (await training_ends(host, swarm))


def trainers() -> list[psutil.Process]:
    alive = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    return [child for child in alive if "spes_peer.training" in child.cmdline()]


async def training_ends(host: TrainerHost, swarm: Swarm) -> "asyncio.Task[object]":
    await host.get().load_state(0, swarm.genesis)
    return asyncio.create_task(host.get().train_round(swarm.work(PEER)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can limit another process")
async def test_a_trainer_that_runs_out_of_memory_comes_back_with_a_smaller_plan(swarm: Swarm, tmp_path: Path) -> None:
    async with hosted(swarm, tmp_path) as host:
        first = host.get()
        await first.load_state(0, swarm.genesis)
        host._beat = None
        await eventually(lambda: host._beat is not None)
        assert host._beat is not None
        planned = host._beat.planned_bytes
        size = psutil.Process(first.child.pid).memory_info().vms
        resource.prlimit(first.child.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
        with pytest.raises(ChildOutOfMemory, match="out of memory"):
            await first.train_round(endless(swarm))
        second = await until_replaced(host, first)
        assert host._budget.size_bytes <= 0.85 * max(planned, host._beat.planned_bytes)
        assert host.service.why == f"out of memory; planning with {host._budget.size_bytes / 1e9:.1f} GB now"
        assert (tmp_path / "state" / BUDGET_FILE).exists()
        await second.load_state(0, swarm.genesis)
        assert (await second.train_round(swarm.work(PEER))).offers


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 4 MiB."""
    with tempfile.TemporaryDirectory() as name:
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", name]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("only root can mount a file system")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)


def unfinished(folder: Path) -> list[Path]:
    return list(folder.rglob(f".*{UNFINISHED}"))


async def test_a_full_disk_costs_a_round_and_neither_the_trainer_nor_what_it_kept(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "board", troubles.Troubles())
    swarm = Swarm.create(small_disk, (0, 1))
    async with hosted(swarm, small_disk) as host:
        process, filler = host.get(), small_disk / "filler"
        await process.load_state(0, swarm.genesis)
        with contextlib.suppress(OSError):
            filler.write_bytes(b"x" * (8 << 20))
        with pytest.raises(DiskTrouble, match="disk full: 0 of 4 MB free at"):
            await process.train_round(swarm.work(PEER))
        assert unfinished(small_disk) == []
        await eventually(lambda: any(text.startswith("disk full") for text in troubles.board.texts))
        filler.unlink()
        trained = await process.train_round(swarm.work(PEER))
        record = swarm.record_of(1, swarm.updates({PEER: trained}))
        with contextlib.suppress(OSError):
            filler.write_bytes(b"x" * (8 << 20))
        assert (await process.apply_record(record.seal().content, keep_snapshot=False)).state_root
        assert checkpoint.load(small_disk / "state" / CHECKPOINT_FILE, "", PEER) is None
        filler.unlink()
        after = await process.apply_record(swarm.record_of(2).seal().content, keep_snapshot=False)
        saved = checkpoint.load(small_disk / "state" / CHECKPOINT_FILE, swarm.trainers[PEER]._run_id, PEER)
        assert saved is not None
        assert (saved.round, saved.state_root) == (2, after.state_root)
        assert host.get() is process
