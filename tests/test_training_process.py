"""The trainer as its daemon sees it: a real process at the other end of a socket."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from training_swarm import PEERS, Swarm, record_of

from spes_peer.blobs import BlobStore
from spes_peer.errors import ChildFailed
from spes_peer.identity import Identity
from spes_peer.run.manifest import sign_manifest
from spes_peer.run.offers import ReduceInput, ReduceTask
from spes_peer.run.records import DataRange, Snapshot
from spes_peer.training.client import TrainerProcess
from spes_peer.training.genesis import make_genesis
from spes_peer.training.work import TrainProgress, TrainRound
from spes_peer.wire import convert

PEER = PEERS[0]
LONG_ROUND_STEPS = 100_000  # longer than any test


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    return Swarm.create(tmp_path, (0, 1))


@pytest_asyncio.fixture
async def trainer(tmp_path: Path) -> AsyncIterator[TrainerProcess]:
    process = TrainerProcess.start(tmp_path / "trainer.log")
    yield process
    await process.stop()


async def opened(trainer: TrainerProcess, swarm: Swarm, folder: Path) -> None:
    await trainer.open(swarm.manifest.to_bytes(), swarm.blobs.folder, folder / "state", PEER, "cpu", num_threads=1)
    await trainer.load_state(0, swarm.genesis)


def long_round(swarm: Swarm) -> TrainRound:
    work = dataclasses.replace(swarm.work(PEER), num_steps=LONG_ROUND_STEPS, stop_at=time.time() + 60)
    return dataclasses.replace(work, ranges=(DataRange(0, LONG_ROUND_STEPS * work.sequences_per_step),))


def progress_of(trainer: TrainerProcess) -> "asyncio.Future[TrainProgress]":
    first: asyncio.Future[TrainProgress] = asyncio.get_running_loop().create_future()
    trainer.on_progress = lambda progress: first.set_result(progress) if not first.done() else None
    return first


async def test_a_process_does_what_the_same_trainer_does_in_ours(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    twin = swarm.trainers[PEER]
    facts = await trainer.open(swarm.manifest.to_bytes(), swarm.blobs.folder, tmp_path / "state", PEER, "cpu", 1)
    assert facts.device == "cpu"
    assert 1 <= facts.max_subsets <= 2
    assert await trainer.load_state(0, swarm.genesis) == twin._public.root()
    work = swarm.work(PEER)
    progress = progress_of(trainer)
    trained = await trainer.train_round(work)
    assert trained.offers == twin.train_round(work).offers
    assert (await progress).steps_done >= 1
    assert (await progress).memory_bytes > 1 << 20
    updates = swarm.updates({PEER: trained})
    record = record_of(1, updates, merge_alpha=0.05)
    applied = await trainer.apply_record(record.seal().content, keep_snapshot=True)
    assert applied == twin.apply_record(record, keep_snapshot=True)
    assert all(swarm.blobs.size_bytes(name.blob) == name.size_bytes for name in applied.blocks)
    held_out = await trainer.measure_held_out(0, 1)
    assert 0 < held_out.loss_sum / held_out.tokens < 5.7


async def test_a_reduce_is_served_between_the_steps_and_a_record_ends_the_round(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    await opened(trainer, swarm, tmp_path)
    offers = swarm.trainers[PEER].train_round(swarm.work(PEER)).offers
    inputs = tuple(
        ReduceInput(peer_id, offers[0].blob, offers[0].size_bytes, offers[0].norm, 100, 1.0) for peer_id in PEERS
    )
    progress = progress_of(trainer)
    training = asyncio.create_task(trainer.train_round(long_round(swarm)))
    await asyncio.wait_for(progress, 20)
    reduced = await trainer.reduce_block(ReduceTask(offers[0].block, PEERS[:1], inputs))
    assert reduced.rejected == ()
    assert reduced.blob
    assert not training.done()
    applied = await trainer.apply_record(record_of(1).seal().content, keep_snapshot=False)
    assert training.done()
    trained = training.result()
    assert 0 < trained.steps < LONG_ROUND_STEPS
    assert trained.offers
    assert applied.state_root == swarm.trainers[PEER]._public.root()


async def test_an_error_costs_the_request_and_not_the_process(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    with pytest.raises(ChildFailed, match="the trainer is not open yet"):
        await trainer.load_state(0, swarm.genesis)
    with pytest.raises(ChildFailed, match="the manifest is not JSON"):
        await trainer.open(b"nonsense", swarm.blobs.folder, tmp_path / "state", PEER, "cpu", 1)
    await trainer.open(swarm.manifest.to_bytes(), swarm.blobs.folder, tmp_path / "state", PEER, "cpu", 1)
    with pytest.raises(ChildFailed, match="load one first"):
        await trainer.train_round(swarm.work(PEER))
    with pytest.raises(ChildFailed, match="a state without block"):
        await trainer.load_state(0, swarm.genesis[1:])
    with pytest.raises(ChildFailed, match="not a Record"):
        await trainer.apply_record(b"\xff", keep_snapshot=False)
    assert await trainer.load_state(0, swarm.genesis) == swarm.trainers[PEER]._public.root()


async def test_the_end_of_the_parent_ends_it_in_the_middle_of_a_round(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    await opened(trainer, swarm, tmp_path)
    progress = progress_of(trainer)
    training = asyncio.create_task(trainer.train_round(long_round(swarm)))
    await asyncio.wait_for(progress, 20)
    trainer.child._socket.shutdown(2)  # what the kernel does when the parent is killed
    code = await asyncio.wait_for(asyncio.to_thread(trainer.child.process.wait), 5)
    assert code == 0
    with pytest.raises(ChildFailed):
        await training


async def test_a_process_that_is_killed_fails_what_it_was_asked(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    await opened(trainer, swarm, tmp_path)
    progress = progress_of(trainer)
    training = asyncio.create_task(trainer.train_round(long_round(swarm)))
    await asyncio.wait_for(progress, 20)
    os.kill(trainer.child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailed, match="has ended"):
        await training
    await asyncio.wait_for(trainer.wait_ended(), 5)


def test_the_organizer_makes_the_first_weights_in_a_process_of_its_own(swarm: Swarm, tmp_path: Path) -> None:
    organizer = Identity.generate()
    manifest = swarm.manifest.model_copy(update={"organizers": (organizer.peer_id,)})
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-m", "spes_peer.training.genesis", str(folder)]
    (folder / "manifest.spes").write_bytes(sign_manifest(manifest, organizer).to_bytes())
    subprocess.run(command, check=True, timeout=100)
    made = convert.decode(Snapshot, (folder / "genesis.spes").read_bytes())
    assert made == Snapshot(0, make_genesis(manifest, BlobStore(tmp_path / "again")))
    assert all(BlobStore(folder / "blobs").has(name.blob) for name in made.blocks)


def test_the_daemons_end_needs_no_torch() -> None:
    code = (
        "import sys, spes_peer.training.client, spes_peer.data.ranges; print([m for m in sys.modules if m == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "[]"
