"""What a run of real processes survives: coordinators that die, freeze and leave, most of it gone at once, a network in
two parts, owners that die, damaged and full disks. A test is a story of several parts, for processes start slowly;
each part says what it wants. Conditions are eventual, with deadlines."""

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_swarm import START_SECONDS, Place, Run, organize, place, small_run, until

from spes_peer.blobs import BlobStore, check_name
from spes_peer.chaos.network import Switched
from spes_peer.control import ControlClient
from spes_peer.errors import ChildFailed
from spes_peer.folder import SNAPSHOTS_FILE, StateFolder
from spes_peer.organize import read_manifest
from spes_peer.run.layout import Layout
from spes_peer.run.records import Record
from spes_peer.wire.peer_pb2 import Snapshots

__all__ = ["place"]

pytestmark = [pytest.mark.slow, pytest.mark.timed]

COORDINATOR_TIMEOUT_SECONDS = 9.0
STALL_SECONDS = 15.0
ROUND_SECONDS = 15.0
LEASE_SECONDS = 60.0
SMALL_DISK_BYTES = 64 << 20


def quick_run(training: str = "", **values: Any) -> str:
    """A small run with short time-outs, which obey the ladder; `training` is added to that section."""
    timing = {
        "heartbeat_seconds": 1,
        "round_seconds": ROUND_SECONDS,
        "fetch_stall_seconds": 4,
        "round_grace_seconds": 6,
        "coordinator_timeout_seconds": COORDINATOR_TIMEOUT_SECONDS,
        "stall_timeout_seconds": STALL_SECONDS,
        "dht_beat_seconds": 4,
        "dht_ttl_seconds": 14,
        "lease_seconds": LEASE_SECONDS,
    }
    return small_run(min_peers=1, **timing, **values).replace("[training]\n", f"[training]\n{training}\n")


# ---- what a chain says ----


def members(record: Record) -> set[str]:
    return {entry.peer_id for entry in record.roster}


def contributors(record: Record) -> set[str]:
    return {one.peer_id for update in record.updates for one in update.contributors}


def next_coordinator(run: Run, seen_by: str, among: list[str]) -> str:
    """Who coordinates the round that is open, by the newest record, when it is a volunteer."""
    names = {run.peer_id(name): name for name in among}
    found: str = until(lambda: names.get(run.newest(seen_by).candidates[0]), "a volunteer coordinates")
    return found


def until_record(run: Run, name: str, wanted: Callable[[Record], bool], what: str, after: int = -1) -> Record:
    """The first certified record of `name` that is `wanted`, and newer than record `after`."""

    def found() -> Record | None:
        chain = run.chain(name)
        records = (chain.record(round).sealed.record for round in range(after + 1, chain.certified_round + 1))
        return next(filter(wanted, records), None)

    record: Record = until(found, what)
    return record


def until_on_roster(run: Run, seen_by: str, *names: str) -> Record:
    """The newest certified record names them all."""

    def found() -> Record | None:
        chain = run.chain(seen_by)
        record = chain.record(chain.certified_round).sealed.record
        return record if {run.peer_id(name) for name in names} <= members(record) else None

    record: Record = until(found, f"{names} are on the roster")
    return record


def until_all_train(run: Run, *names: str) -> None:
    """A round closes to which all of them contributed, and all have one state after it."""
    seen_by, peers = names[0], {run.peer_id(name) for name in names}
    after = run.chain(seen_by).head.round  # type: ignore[union-attr]
    until_record(run, seen_by, lambda record: peers <= contributors(record), f"{names} contribute", after)
    run.until_equal(*names)


def troubles_of(place: Place, name: str) -> str:
    return " ".join(place.status(name).get("troubles", []))


def assert_one_chain(run: Run, *names: str) -> None:
    """What is certified is the same everywhere."""
    chains = [run.chain(name) for name in names]
    round = min(chain.certified_round for chain in chains)
    assert len({chain.record(round).sealed.hash for chain in chains}) == 1


@pytest.fixture
def network() -> Iterator[Switched]:
    """Comes before `place`, whose processes must have ended when it goes."""
    try:
        made = Switched()
    except ChildFailed as error:
        pytest.skip(f"no network to part: {error}")
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own at `folder`, until the block ends."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def read_only(folder: Path, process: psutil.Process) -> Iterator[None]:
    """Nothing in `folder` can be changed by `process` until the block ends, but for what it has open already."""
    within = ["nsenter", "--mount", "--target", str(process.pid)]  # a process in a network of its own has its mounts
    subprocess.run([*within, "mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run([*within, "mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run([*within, "umount", "--lazy", str(folder)], check=True)


# ---- the tests ----


@pytest.mark.timeout(900)
def test_whoever_coordinates_may_die_freeze_or_leave_and_the_next_takes_over(place: Place) -> None:
    run = organize(place, quick_run())
    names = ["ada", "bo", "cy", "di"]
    for name in names:
        run.join(name)
    record = until_on_roster(run, "ada", *names)
    began_with = record.round

    # more peers than subsets: two own one, and their offers are averaged
    assert sorted(len(record.owners_of(subset)) for subset in range(3)) == [1, 1, 2]

    def experts_with_two(record: Record) -> bool:
        experts = [update for update in record.updates if update.block.startswith("expert/")]
        return any(len(update.contributors) == 2 for update in experts)

    until_record(run, "ada", experts_with_two, "an expert is averaged")

    # all bootstrap nodes die: a volunteer coordinates
    run.bootstrap.kill()
    run.bootstrap.wait()
    coordinator = next_coordinator(run, "ada", names)

    # kill -9 to the coordinator: the next takes over, and no round is lost
    seen_by = next(name for name in names if name != coordinator)
    killed_at, killed = time.time(), run.peer_id(coordinator)
    before = run.newest(seen_by).round
    run.kill(coordinator)
    record = until_record(run, seen_by, lambda record: record.opened_at > killed_at, "the next coordinates", before)
    assert record.candidates[0] != killed
    assert record.opened_at - killed_at < COORDINATOR_TIMEOUT_SECONDS + ROUND_SECONDS + 15

    # a joiner with nothing but its cache of earlier peers gets in
    run.come_back(coordinator)
    until_on_roster(run, seen_by, *names)
    assert "going on from our own folder" not in place.read(f"{coordinator}.log")

    # the coordinator freezes with all its processes: the next takes over; it notices, comes back and trains on
    frozen = next_coordinator(run, seen_by, names)
    seen_by = next(name for name in names if name != frozen)
    frozen_at = time.time()
    before = run.newest(seen_by).round
    processes = run.processes_of(frozen)
    for process in processes:
        process.suspend()
    record = until_record(run, seen_by, lambda record: record.opened_at > frozen_at, "the next coordinates", before)
    assert record.candidates[0] != run.peer_id(frozen)
    assert record.opened_at - frozen_at < COORDINATOR_TIMEOUT_SECONDS + ROUND_SECONDS + 15
    until(lambda: time.time() > frozen_at + 15, "it is frozen for so long that it must notice")
    for process in reversed(processes):
        process.resume()
    until(lambda: "this machine slept for" in place.read(f"{frozen}.log"), "it notices")
    until_all_train(run, seen_by, *(name for name in names if name != seen_by))
    assert "Traceback" not in place.read(f"{frozen}.log")

    # the coordinator leaves: it hands over at once
    leaving = next_coordinator(run, seen_by, names)
    seen_by = next(name for name in names if name != leaving)
    before, left_at = run.newest(seen_by).round, time.time()
    daemon = run.daemon(leaving)
    daemon.send_signal(signal.SIGINT)
    daemon.wait(timeout=60)
    record = until_record(run, seen_by, lambda record: record.opened_at > left_at, "the next coordinates", before)
    assert record.opened_at - left_at < COORDINATOR_TIMEOUT_SECONDS
    rest = [name for name in names if name != leaving]
    until_all_train(run, *rest)

    # no round is lost, by any of those faults
    chain = run.chain(seen_by)
    for round in range(began_with + 1, chain.certified_round + 1):
        assert len(contributors(chain.record(round).sealed.record)) >= 2, round

    # a second Ctrl-C ends a volunteer at once, and nothing of it is left
    victim = run.processes_of(rest[0])
    before = run.newest(rest[0]).round
    until(lambda: run.newest(rest[0]).round > before, "a round begins, which the first Ctrl-C would see to its end")
    victim[0].send_signal(signal.SIGINT)
    until(lambda: "asked to end by a signal" in place.read(f"{rest[0]}.log"), "it has heard")
    victim[0].send_signal(signal.SIGINT)
    victim[0].wait(timeout=12)  # its three children are given 3 s each
    until(lambda: not [one for one in victim if one.is_running()], "nothing is left")


async def until_it_has_contributed(folder: Path) -> None:
    """Right after it, at the end of the next training."""
    was_training = False
    async with asyncio.timeout(START_SECONDS), ControlClient(StateFolder(folder).control_socket) as client:
        async for status in client.watch():
            if was_training and status.phase.name == "closing":
                return
            was_training = was_training or status.phase.name == "training"
    raise AssertionError("its daemon has ended")


def flip_a_byte(path: Path) -> None:
    """In the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def damage_state(folder: Path) -> None:
    """One byte in a block of every snapshot, and one in the trainer's newest checkpoint."""
    blobs = BlobStore(folder / "blobs")
    snapshots = Snapshots.FromString((folder / SNAPSHOTS_FILE).read_bytes()).snapshots
    for blob in {check_name(snapshot.blocks[0].blob) for snapshot in snapshots}:
        flip_a_byte(blobs.path(blob))
    flip_a_byte(max((folder / "trainer").glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns))


@pytest.mark.timeout(900)
def test_what_is_left_of_a_run_goes_on_and_is_certified_late_when_the_others_come_back(place: Place) -> None:
    run = organize(place, quick_run(steps_per_round=30, merge_interval_steps=30))
    names = ["ada", "bo", "cy"]
    for name in names:
        run.join(name)
    until_on_roster(run, "ada", *names)
    until_all_train(run, *names)

    # more than half of the roster and all bootstrap nodes are gone at once, while they train: had they signed a record
    # that only they have, what the others make could not be certified
    gone = {run.peer_id(name) for name in ("bo", "cy")}
    daemons = [psutil.Process(run.bootstrap.pid), run.daemon("bo"), run.daemon("cy")]
    before = run.newest("ada").round
    until(lambda: run.newest("ada").round > before, "a round begins")
    for daemon in daemons:
        daemon.kill()
    psutil.wait_procs(daemons, timeout=60)
    killed_at = time.time()

    # the rest says for whom it waits, until when, and what it does then
    def waiting() -> dict[str, Any] | None:
        phase = place.status("ada").get("round_phase", {})
        return phase if "without them it goes on uncertified" in phase.get("why", "") else None

    phase = until(waiting, "it says what it waits for")
    assert set(phase["waiting_for"]) >= gone
    assert 0 < phase["until_at"] - killed_at < ROUND_SECONDS + STALL_SECONDS
    certified = run.chain("ada").certified_round

    # it goes on uncertified
    until(lambda: run.newest("ada").round >= certified + 2, "it goes on alone")
    chain = run.chain("ada")
    assert chain.certified_round == certified
    first = chain.record(certified + 1).sealed
    assert first.record.opened_at >= phase["until_at"] - 1
    assert contributors(run.newest("ada")) == {run.peer_id("ada")}

    # the others come back: what went on without them is certified after all, and all train on one chain
    for name in ("bo", "cy"):
        run.come_back(name)
    until(lambda: run.chain("ada").certified_round > certified, "it is certified late")
    assert run.chain("ada").record(certified + 1).sealed.hash == first.hash
    assert "record certified late" in place.read("ada.log")
    until_all_train(run, *names)
    assert "Traceback" not in "".join(place.read(f"{name}.log") for name in names)
    for name in ("bo", "cy"):
        assert run.chain(name).record(certified + 1).sealed.hash == first.hash


@pytest.mark.timeout(900)
def test_owners_come_and_go_and_every_subset_is_trained(place: Place) -> None:
    run = organize(place, quick_run("rotation_rounds = 2"))

    # one peer alone, with room for one of three subsets: it learns, and all are trained in turn
    run.join("ada")
    ada = run.peer_id("ada")
    layout = Layout(read_manifest(place.path / "run").open())
    until(lambda: all(run.chain("ada").rounds_trained(layout).values()), "every subset has been trained")
    chain = run.chain("ada")
    assert {len(chain.record(round).sealed.record.roster[0].subsets) for round in range(1, chain.num_records)} == {1}
    losses = [chain.record(round).sealed.record.train_loss for round in range(2, chain.num_records)]
    assert losses[-1] < losses[0] - 0.5
    assert chain.certified_round == chain.num_records - 1

    # killed, and damaged on disk while it is down: what is bad is fetched again, and it goes on where it was
    run.kill("ada")
    damage_state(place.path / "ada")
    before = run.newest("ada").round
    run.come_back("ada")
    until_record(run, "ada", lambda record: ada in contributors(record), "it goes on", before)
    assert "repaired: " in place.read("ada.log")
    assert "its checksum is wrong" in (place.path / "ada/logs/trainer.log").read_text()
    run.until_rounds_more("ada", 1)

    # later joiners get in, and what nobody owns comes first
    run.join("bo", "--max-upload", "20kB")  # so that it can be met at it
    until_on_roster(run, "ada", "ada", "bo")
    run.join("cy", "--max-subsets", "2")
    until_on_roster(run, "ada", "ada", "bo", "cy")
    until_record(
        run,
        "ada",
        lambda record: [len(record.owners_of(subset)) for subset in range(3)] == [1, 1, 1],
        "every subset has one owner",
    )
    until_all_train(run, "ada", "bo", "cy")

    # the only owner of a subset dies in the middle of its uploads, while it is a reducer, too
    bo, cy = run.peer_id("bo"), run.peer_id("cy")
    orphaned = next(subset for subset in range(3) if run.newest("ada").owners_of(subset) == (bo,))
    experts = {f"expert/{expert:02d}" for expert in layout.manifest.experts_of(orphaned)}

    def is_trained_by(peer: str) -> Callable[[Record], bool]:
        return lambda record: any(
            update.block.rpartition("/")[0] in experts and peer in {one.peer_id for one in update.contributors}
            for update in record.updates
        )

    daemon = run.daemon("bo")
    asyncio.run(until_it_has_contributed(place.path / "bo"))
    daemon.kill()
    killed_at, opened = time.time(), run.newest("ada")
    reduced = {one.block for one in opened.reducers if bo in one.reducers}
    assert reduced

    # the round closes without it: others reduce what it would have
    closed = until_record(run, "ada", lambda record: record.round == opened.round + 1, "the round closes")
    assert closed.opened_at - killed_at < ROUND_SECONDS
    assert [update for update in closed.updates if update.block in reduced and bo not in update.reducers]

    # who has room trains the subset within the lease
    record = until_record(run, "ada", is_trained_by(cy), "another trains it", opened.round + 1)
    assert record.opened_at - killed_at < LEASE_SECONDS + ROUND_SECONDS

    # the owner comes back and has its place again
    run.come_back("bo")
    record = until_on_roster(run, "ada", "bo")
    assert bo in record.owners_of(orphaned)
    until_record(run, "ada", is_trained_by(bo), "it trains it again", record.round)
    run.until_equal("ada", "bo", "cy")


@pytest.mark.timeout(900)
def test_a_network_in_two_parts_heals_to_one_chain_and_a_bad_disk_holds_nobody_up(
    network: Switched, place: Place
) -> None:
    spot = network.add("bootstrap")
    run = organize(place, quick_run(), spot.address, 4510, spot.before)
    names = ["ada", "bo", "cy"]
    run.befores = {name: network.add(name).before for name in names}
    with small_disk(place.path / "cy"):
        for name in names:
            run.join(name)
        until_on_roster(run, "ada", *names)
        until_all_train(run, *names)

        # unequal halves: the larger elects a coordinator and goes on
        network.part(["bootstrap", "ada"])
        parted_at, before = time.time(), run.newest("bo").round
        until_record(run, "bo", lambda record: record.opened_at > parted_at + 1, "the larger half goes on", before)

        # the smaller certifies nothing; when it has stalled it goes on uncertified
        until(lambda: run.newest("ada").round > run.chain("ada").certified_round + 1, "the smaller goes on uncertified")
        for name in ("ada", "run"):
            chain = run.chain(name)
            assert chain.record(chain.certified_round).sealed.record.opened_at < parted_at

        # after healing there is one chain, the smaller half reports what it lost, and everybody trains
        network.heal()
        until(lambda: "ours is given up" in place.read("ada.log"), "the smaller half reports its loss")
        assert "tokens=0" not in next(line for line in place.read("ada.log").splitlines() if "is given up" in line)
        until_all_train(run, *names)
        assert_one_chain(run, "run", *names)

        # a full disk: its daemon lives and says what is wrong, and the others go on
        filler, cy = place.path / "cy/filler", run.peer_id("cy")
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
        until(lambda: "disk full" in troubles_of(place, "cy"), "it says what is wrong")
        run.until_rounds_more("ada", 2)

        # with room again it takes part again
        filler.unlink()
        before = run.newest("ada").round
        until_record(run, "ada", lambda record: cy in contributors(record), "it takes part again", before)
        until(lambda: not troubles_of(place, "cy"), "the trouble has passed")

        # one that turns read-only: the same
        with read_only(place.path / "cy", run.daemon("cy")):
            until(lambda: "disk read-only" in troubles_of(place, "cy"), "it says what is wrong")
            run.until_rounds_more("ada", 1)
        before = run.newest("ada").round
        until_record(run, "ada", lambda record: cy in contributors(record), "it takes part again", before)

        # killed, it has nothing half-written on its disk, and all of it loads
        run.kill("cy")
        blobs = BlobStore(place.path / "cy/blobs")
        assert all(blobs.is_sound(name) for name in blobs.names())
        run.come_back("cy")
        until_all_train(run, *names)
        assert "damaged" not in place.read("cy.log")
        assert_one_chain(run, "run", *names)
