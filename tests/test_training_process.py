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
import torch
from training_swarm import PEERS, Swarm

from spes_peer.blobs import BlobStore
from spes_peer.errors import ChildFailed, ChildStalled
from spes_peer.identity import Identity
from spes_peer.run.manifest import sign_manifest
from spes_peer.run.offers import ReduceInput, ReduceTask
from spes_peer.run.records import DataRange, Snapshot
from spes_peer.training import checkpoint
from spes_peer.training.client import TrainerProcess
from spes_peer.training.genesis import make_genesis
from spes_peer.training.trainer import CHECKPOINT_FILE
from spes_peer.training.work import UNKNOWN, TrainAhead, TrainerBeat, TrainProgress, TrainRound
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
    work = dataclasses.replace(swarm.work(PEER), num_steps=LONG_ROUND_STEPS, stop_at=time.time() + 600)
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
    record = swarm.record_of(1, updates, merge_alpha=0.05)
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
    await asyncio.wait_for(progress, 60)
    reduced = await trainer.reduce_block(ReduceTask(offers[0].block, PEERS[:1], inputs))
    assert reduced.rejected == ()
    assert reduced.blob
    assert not training.done()
    applied = await trainer.apply_record(swarm.record_of(1).seal().content, keep_snapshot=False)
    assert training.done()
    trained = training.result()
    assert 0 < trained.steps < LONG_ROUND_STEPS
    assert trained.offers
    assert applied.state_root == swarm.trainers[PEER]._public.root()


async def test_who_must_stop_at_once_offers_the_steps_that_were_made(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    await opened(trainer, swarm, tmp_path)
    seen: list[int] = []
    progress = progress_of(trainer)
    training = asyncio.create_task(trainer.train_round(long_round(swarm)))
    await asyncio.wait_for(progress, 60)
    trainer.on_progress = lambda one: seen.append(one.steps_done)
    await trainer.stop_training()
    assert training.done()
    trained = training.result()
    assert 0 < trained.steps < LONG_ROUND_STEPS
    assert trained.offers
    assert all(steps <= trained.steps for steps in seen)
    await trainer.stop_training()  # with nothing under way it does nothing
    assert (await trainer.measure_held_out(0, 1)).tokens > 0


async def test_a_stop_that_comes_before_the_first_step_leaves_nothing_to_offer(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    await opened(trainer, swarm, tmp_path)
    asked = (trainer.measure_held_out(0, 1), trainer.train_round(long_round(swarm)), trainer.stop_training())
    held_out, trained, stopped = await asyncio.gather(*asked, return_exceptions=True)
    assert not isinstance(held_out, BaseException)
    assert isinstance(trained, ChildFailed)
    assert "before this peer made a step" in str(trained)
    assert stopped is None


async def test_a_record_ends_training_ahead_and_its_round_goes_on_from_there(
    trainer: TrainerProcess, tmp_path: Path
) -> None:
    swarm = Swarm.create(tmp_path, (0, 1), overlap_steps=1)
    await opened(trainer, swarm, tmp_path)
    work = dataclasses.replace(swarm.work(PEER), num_steps=1)
    await trainer.train_round(work)
    ahead, size = (DataRange(80, 80 + 8 * LONG_ROUND_STEPS),), work.sequences_per_step
    progress = progress_of(trainer)
    task = TrainAhead(0, 1, LONG_ROUND_STEPS, ahead, size, stop_at=time.time() + 600)
    training = asyncio.create_task(trainer.train_ahead(task))
    assert (await asyncio.wait_for(progress, 60)).round == 1
    await trainer.apply_record(swarm.record_of(1).seal().content, keep_snapshot=False)
    assert training.done()
    made = training.result().steps
    assert 0 < made < LONG_ROUND_STEPS
    following = TrainRound(1, 1, made, (0, 1), ahead, size, time.time() + 600, made, size)
    assert (await trainer.train_round(following)).steps == made


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
    await asyncio.wait_for(progress, 60)
    trainer.child._socket.shutdown(2)  # what the kernel does when the parent is killed
    code = await asyncio.wait_for(asyncio.to_thread(trainer.child.process.wait), 30)
    assert code == 0
    with pytest.raises(ChildFailed):
        await training


async def test_a_process_that_is_killed_fails_what_it_was_asked(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    await opened(trainer, swarm, tmp_path)
    progress = progress_of(trainer)
    training = asyncio.create_task(trainer.train_round(long_round(swarm)))
    await asyncio.wait_for(progress, 60)
    os.kill(trainer.child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailed, match="has ended"):
        await training
    await asyncio.wait_for(trainer.wait_ended(), 30)


async def test_a_process_that_hangs_is_given_up_and_killed(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(trainer, swarm, tmp_path)
    monkeypatch.setattr("spes_peer.training.client.STATE_SECONDS", 0.2)
    os.kill(trainer.child.pid, signal.SIGSTOP)
    with pytest.raises(ChildStalled, match="did not answer MeasureHeldOut"):
        await trainer.measure_held_out(0, 1)
    await asyncio.wait_for(trainer.wait_ended(), 30)


async def test_a_trainer_killed_in_a_round_goes_on_from_the_rounds_start_bit_for_bit(tmp_path: Path) -> None:
    """k steps, a record, SIGKILL in the middle of the next k, a new process: the same as 2k steps without a break."""
    swarm = Swarm.create(tmp_path, (0, 1), shared_offer_encoding="fp32", expert_encoding="fp32")
    twin, folder = swarm.trainers[PEER], tmp_path / "killed"
    works = [swarm.work(PEER), dataclasses.replace(swarm.work(PEER), round=1, first_step=10)]
    first = TrainerProcess.start(tmp_path / "first.log")
    await opened(first, swarm, folder)
    trained = await first.train_round(works[0])
    assert trained.offers == twin.train_round(works[0]).offers
    records = [swarm.record_of(1, swarm.updates({PEER: trained}))]
    applied = await first.apply_record(records[0].seal().content, keep_snapshot=True)
    twin.apply_record(records[0], keep_snapshot=False)
    endless = dataclasses.replace(works[1], num_steps=LONG_ROUND_STEPS, ranges=(DataRange(0, 10**6),))
    progress = progress_of(first)
    training = asyncio.create_task(first.train_round(endless))
    await asyncio.wait_for(progress, 60)
    os.kill(first.child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailed):
        await training
    await first.stop()
    second = TrainerProcess.start(tmp_path / "second.log")
    await second.open(swarm.manifest.to_bytes(), swarm.blobs.folder, folder / "state", PEER, "cpu", num_threads=1)
    assert await second.load_state(1, applied.blocks) == applied.state_root
    trained = await second.train_round(works[1])
    assert trained.offers == twin.train_round(works[1]).offers
    records.append(swarm.record_of(2, swarm.updates({PEER: trained})))
    after = await second.apply_record(records[1].seal().content, keep_snapshot=False)
    await second.stop()
    assert after.state_root == twin.apply_record(records[1], keep_snapshot=False).state_root
    run_id = twin._run_id
    saved = [checkpoint.load(path / CHECKPOINT_FILE, run_id, PEER) for path in (folder / "state", tmp_path / PEER)]
    assert saved[0] is not None
    assert saved[1] is not None
    assert saved[0].tensors.keys() == saved[1].tensors.keys()
    assert {name.partition("/")[0] for name in saved[0].tensors} == {"master", "moments", "residual", "rng"}
    for name, values in saved[0].tensors.items():
        assert name == "rng" or torch.equal(values, saved[1].tensors[name]), name


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


async def test_the_process_tells_of_its_device_once_it_has_chosen_one(
    trainer: TrainerProcess, swarm: Swarm, tmp_path: Path
) -> None:
    beats: asyncio.Queue[TrainerBeat] = asyncio.Queue()
    trainer.on_beat = beats.put_nowait
    assert (await beats.get()).device is None
    await opened(trainer, swarm, tmp_path)
    async with asyncio.timeout(60):
        while (device := (await beats.get()).device) is None or device.use == UNKNOWN:
            pass
    assert device.name == "cpu"
    assert 50e6 < device.own_bytes < device.total_bytes
    assert 0 < device.used_bytes < device.total_bytes
    assert 0 <= device.others_use <= device.use <= 1
