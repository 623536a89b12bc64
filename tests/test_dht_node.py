"""The DHT as it really runs: processes of hivemind and p2pd on loopback."""

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from spes_peer.errors import BadConfiguration, BadMessage, ChildFailed, DiskTrouble
from spes_peer.identity import Identity, PeerId
from spes_peer.membership.directory import Directory, Memory, socket_folder
from spes_peer.run.manifest import Timing
from spes_peer.run.peers import Claim, Head, PeerEntry, PeerState, Role
from spes_peer.wire.children_pb2 import EntryStored, StoreEntry

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUN_ID = bytes(range(32))
MOST_ENTRIES = 1024  # of membership.dht_node, which no process imports that has libp2p's part
TIMING = Timing(dht_beat_seconds=3, dht_ttl_seconds=300)  # nothing expires here, though a machine be slow

# A hivemind node that checks nothing and stores what it likes into the run's dictionary, here and elsewhere.
ATTACKER = """
import asyncio, sys, time
from hivemind.dht import DHTNode
from spes_peer.identity import Identity
from spes_peer.membership.entries import dictionary_key, sign_entry
from spes_peer.run.peers import Claim
from spes_peer.wire import convert

async def main(bootstrap, run_id, victim):
    node = await DHTNode.create(initial_peers=[bootstrap])
    mine, honest = Identity.generate(), Identity.generate()
    key, value, now = dictionary_key(run_id.hex(), "claims"), convert.encode(Claim((666,), 1.0)), time.time()
    mine_key = mine.key.public_key().public_bytes_raw()
    far = now + 50 * 365 * 86400
    def signed(at): return value + sign_entry(mine, "claims", run_id, value, at)
    honest_value = value + sign_entry(honest, "claims", run_id, value, now + 250)
    accepted = [
        await node.store(key, honest_value, now + 250, subkey=honest.key.public_key().public_bytes_raw()),
        await node.store(key, signed(now + 250), now + 250, subkey=victim, exclude_self=True),
        await node.store(key, value, now + 250, subkey=mine_key, exclude_self=True),
        await node.store(key, signed(now + 2000), now + 2000, subkey=mine_key, exclude_self=True),
        await node.store(key, signed(far), far, subkey=mine_key, exclude_self=True),
        await node.store(key, signed(now + 250), now + 250, subkey=bytes(1 << 20), exclude_self=True),
        await node.store(key, signed(now + 250), now + 250, subkey="me", exclude_self=True),
        await node.store(key, signed(now + 250), now + 250, exclude_self=True),
        await node.store("a key of its own", signed(now + 250), now + 250, subkey=mine_key, exclude_self=True),
    ]
    from hivemind.dht.routing import DHTID
    for subkey in (victim, mine_key):
        packed = node.protocol.serializer.dumps(value)
        node.protocol.storage.store_subkey(DHTID.generate(source=key), subkey, packed, now + 250)
    print(honest.peer_id, *accepted, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await node.shutdown()

asyncio.run(main(sys.argv[1], bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])))
"""

# Fills a dictionary with claims of keys that it makes, and says how many of so many were taken.
FLOODER = """
import asyncio, sys, time
from hivemind.dht import DHTNode
from spes_peer.identity import Identity
from spes_peer.membership.entries import dictionary_key, sign_entry
from spes_peer.run.peers import Claim
from spes_peer.wire import convert

async def main(bootstrap, run_id, number):
    node = await DHTNode.create(initial_peers=[bootstrap])
    key, value, at = dictionary_key(run_id.hex(), "claims"), convert.encode(Claim((7,), 1.0)), time.time() + 250
    keys = [Identity.generate() for _ in range(number)]
    taken = 0
    for start in range(0, number, 100):
        some = keys[start : start + 100]
        answers = await node.store_many(
            [key] * len(some),
            [value + sign_entry(one, "claims", run_id, value, at) for one in some],
            [at] * len(some),
            subkeys=[one.key.public_key().public_bytes_raw() for one in some],
            exclude_self=True,
        )
        taken += sum(answers.values())
    print(taken, flush=True)
    await node.shutdown()

asyncio.run(main(sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])))
"""

# A daemon that only starts a directory, for the tests to kill.
DAEMON = """
import asyncio, sys
from pathlib import Path
from spes_peer.identity import Identity
from spes_peer.membership.directory import Directory
from spes_peer.run.manifest import Timing

async def main(folder, port):
    await Directory.start(Identity.generate(), bytes(32), "127.0.0.1", port, [], Timing(), Path(folder))
    print("started", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(holds: Callable[[], Awaitable[bool]], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.1)


def processes_of(parent: psutil.Process) -> list[psutil.Process]:
    """The DHT node of a daemon, and its p2pd."""
    return parent.children(recursive=True)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@dataclass
class Peer:
    identity: Identity
    directory: Directory
    folder: Path

    @classmethod
    async def start(cls, folder: Path, initial_peers: tuple[str, ...] = ()) -> "Peer":
        identity = Identity.generate()
        directory = await Directory.start(identity, RUN_ID, "127.0.0.1", free_port(), initial_peers, TIMING, folder)
        return cls(identity, directory, folder)

    def entry(self, name: str) -> PeerEntry:
        return PeerEntry(
            peer_id=self.identity.peer_id,
            name=name,
            version="0",
            protocol=1,
            role=Role.VOLUNTEER,
            state=PeerState.ONLINE,
            incarnation=1,
            grpc_addresses=(),
            certificate=b"",
            libp2p_addresses=(),
            dht_addresses=self.directory.addresses,
            max_subsets=1,
            written_at=time.time(),
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def peers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Peer]]:
    """Three peers of one run; the second and third know only the first."""
    folder = tmp_path_factory.mktemp("dht")
    of_others = set(processes_of(psutil.Process()))  # such as a tracker that multiprocessing keeps to the end
    first = await Peer.start(folder / "0")
    others = await asyncio.gather(*(Peer.start(folder / str(i), first.directory.addresses) for i in (1, 2)))
    yield [first, *others]
    started = set(processes_of(psutil.Process())) - of_others
    assert len(started) >= 6
    await asyncio.gather(*(peer.directory.close() for peer in (first, *others)))
    await until(lambda: _true(all(map(gone, started))), 30, "every process has ended")
    assert list(folder.rglob("*.sock")) == []


async def test_entries_of_all_peers_are_visible_from_all(peers: list[Peer]) -> None:
    for number, peer in enumerate(peers):
        await peer.directory.publish_entry(peer.entry(f"peer {number}"))
        await peer.directory.publish_claim(Claim((number,), 5.0))
        await peer.directory.publish_head(Head(number, b"h" * 32))

    async def seen_by_all() -> bool:
        reads = [await peer.directory.read_entries() for peer in peers]
        return all({entry.name for entry in read.values()} == {"peer 0", "peer 1", "peer 2"} for read in reads)

    await until(seen_by_all, 60, "three entries everywhere")
    claims = await peers[0].directory.read_claims()
    assert claims[peers[2].identity.peer_id] == Claim((2,), 5.0)
    assert (await peers[1].directory.read_heads())[peers[0].identity.peer_id] == Head(0, b"h" * 32)


async def test_a_later_value_replaces_the_earlier_and_a_release_takes_it_away(peers: list[Peer]) -> None:
    me, other = peers[1], peers[2]
    assert await me.directory.publish_claim(Claim((1,), 5.0))
    assert await me.directory.publish_claim(Claim((7,), 6.0))
    assert (await other.directory.read_claims())[me.identity.peer_id] == Claim((7,), 6.0)
    await me.directory.release()
    assert me.identity.peer_id not in await other.directory.read_claims()
    assert me.identity.peer_id not in await me.directory.read_entries()
    await me.directory.publish_entry(me.entry("peer 1"))
    await me.directory.publish_claim(Claim((1,), 5.0))


async def test_after_a_suspension_the_others_are_read_before_anything_is_published(
    peers: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    me = peers[1]
    asked: list[str] = []
    call = me.directory._call

    async def recorded(request: Message, reply: type[Any], timeout_seconds: float) -> Any:
        asked.append(request.DESCRIPTOR.name + (" all" if getattr(request, "find_all", False) else ""))
        return await call(request, reply, timeout_seconds)

    monkeypatch.setattr(me.directory, "_call", recorded)
    seen: list[dict[PeerId, Claim]] = []
    monkeypatch.setattr(me.directory, "on_read_again", seen.append)
    me.directory.look_again()
    assert await me.directory.publish_claim(Claim((1,), 5.0))
    assert await me.directory.publish_claim(Claim((1,), 5.0))
    told = [name for name in asked if name != "SetDhtTime"]
    assert told[:4] == ["SetDhtTime all", "ReadDictionary", "ReadDictionary", "StoreEntry"]
    assert "SetDhtTime all" not in told[1:]
    assert peers[0].identity.peer_id in seen[0]


async def test_a_peer_learns_from_the_others_entries_that_its_clock_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(Identity.generate(), RUN_ID, "127.0.0.1", 1, (), TIMING, tmp_path)
    peer = Peer(Identity.generate(), directory, tmp_path)
    entries: list[PeerEntry] = []

    async def read(_dictionary: str, _cls: type[PeerEntry]) -> dict[PeerId, PeerEntry]:
        return {entry.peer_id: entry for entry in entries}

    monkeypatch.setattr(directory, "_read", read)
    entries.append(dataclasses.replace(peer.entry("old"), written_at=time.time() - 30))
    await directory.read_entries()
    await directory.read_entries()
    assert directory.clock.offset() == (0.0, 1)  # written before the first look
    entries[0] = dataclasses.replace(entries[0], written_at=time.time() - 3600)
    await directory.read_entries()
    assert directory.clock.offset()[0] == pytest.approx(3600 - 5, abs=10)
    assert "ahead of the others'" in directory.clock.trouble


@pytest.mark.parametrize("ahead_seconds", [-3600.0, 3600.0])
async def test_peers_whose_clock_is_an_hour_off_see_each_other_by_the_time_of_the_run(
    tmp_path: Path, ahead_seconds: float
) -> None:
    first = await Peer.start(tmp_path / "0")
    second = await Peer.start(tmp_path / "1", first.directory.addresses)
    try:
        await until(lambda: _true(second.directory.num_neighbours == 1), 60, "they have met")
        for peer in (first, second):
            peer.directory.clock.tell(time.time() - ahead_seconds)
            await peer.directory._tell_time()
        for peer in (first, second):
            assert await peer.directory.publish_claim(Claim((1,), 5.0))
        for peer in (first, second):
            assert len(await peer.directory.read_claims()) == 2
    finally:
        await asyncio.gather(first.directory.close(), second.directory.close())


async def test_a_full_disk_keeps_nobody_from_being_seen(peers: list[Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskTrouble(28, "disk full")

    monkeypatch.setattr("spes_peer.membership.directory.write_whole", full)
    assert await peers[1].directory.publish_claim(Claim((1,), 5.0))
    assert await peers[1].directory.publish_claim(Claim((1,), 5.0))


async def test_a_forged_entry_never_appears(peers: list[Peer]) -> None:
    victim = peers[1].identity
    attacker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ATTACKER, peers[0].directory.addresses[0]),
        *(RUN_ID.hex(), victim.key.public_key().public_bytes_raw().hex()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert attacker.stdout is not None
        accepted = await asyncio.wait_for(attacker.stdout.readline(), 60)
        outsider, *answers = accepted.decode().split()
        assert answers == ["True"] + ["False"] * 8
        for peer in peers:
            claims = await peer.directory.read_claims()
            assert claims.pop(PeerId(outsider)).subsets == (666,)  # what is well signed passes, whoever brings it
            assert claims == {p.identity.peer_id: Claim((number,), 5.0) for number, p in enumerate(peers)}
    finally:
        assert attacker.stdin is not None
        attacker.stdin.close()
        await asyncio.wait_for(attacker.wait(), 30)


async def test_addresses_that_are_none_cost_nobody_but_who_says_them(peers: list[Peer], tmp_path: Path) -> None:
    """Entries say at which nodes to keep in touch with the DHT: from one bad one alone the DHT node would take none."""
    author, other = peers[1], peers[2]
    peer_id = author.identity.peer_id
    nonsense = (
        "10.0.0.1:4001",
        f"/ip4/10.0.0.1/tcp/4001/p2p/{peer_id[:20]}{peer_id[19:]}",
        f"/ip4/10.0.0.999/tcp/4001/p2p/{peer_id}",
        f"/ip6/::1/tcp/99999/p2p/{peer_id}",
    )
    entry = dataclasses.replace(author.entry("nonsense"), dht_addresses=nonsense)
    await author.directory.publish_entry(entry)
    try:
        await until(lambda: _reads(other, entry), 10, "the entry is read")
        assert not set(nonsense) & set(other.directory._memory.addresses)
        newcomer = await Peer.start(tmp_path, (*nonsense, *other.directory.addresses))
        try:
            await until(lambda: _true(newcomer.directory.num_neighbours > 0), 10, "the newcomer is in")
        finally:
            await newcomer.directory.close()
    finally:
        await author.directory.publish_entry(author.entry("peer 1"))


async def _reads(peer: Peer, entry: PeerEntry) -> bool:
    return entry in (await peer.directory.read_entries()).values()


async def test_the_dht_node_itself_refuses_what_others_would(peers: list[Peer]) -> None:
    child = peers[0].directory._child
    assert child is not None
    request = StoreEntry(dictionary="claims", peer_id=peers[1].identity.peer_id, expires_at=time.time() + 20)
    with pytest.raises(ChildFailed, match="no node would store"):
        await child.call(request, EntryStored, 10)
    with pytest.raises(BadMessage):
        await peers[0].directory.publish_entry(peers[1].entry("not mine"))


@pytest.mark.parametrize("victim", ["python", "p2pd"])
async def test_a_killed_dht_node_is_started_again_and_heals(peers: list[Peer], victim: str) -> None:
    me, other = peers[0], peers[2]  # the first peer is the others' bootstrap
    child = me.directory._child
    assert child is not None
    node = psutil.Process(child.pid)
    (p2pd,) = node.children()
    changes: list[str] = []
    me.directory.on_change = lambda: changes.append(me.directory.health)
    os.kill(node.pid if victim == "python" else p2pd.pid, signal.SIGKILL)
    await until(lambda: _true(gone(node) and gone(p2pd)), 30, "the DHT node and p2pd have ended")

    async def restarted() -> bool:
        return me.directory._child not in (None, child) and me.directory.num_neighbours == 2

    await until(restarted, 60, "the DHT node is back with two neighbours")
    assert "the DHT node has ended and is started again" in changes
    assert me.directory.health == ""
    await me.directory.publish_claim(Claim((0,), 5.0 if victim == "p2pd" else 4.0))
    assert (await other.directory.read_claims())[me.identity.peer_id].subsets == (0,)
    assert other.identity.peer_id in await me.directory.read_claims()


async def _true(value: bool) -> bool:
    return value


async def test_nothing_outlives_a_killed_daemon(tmp_path: Path) -> None:
    daemon = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DAEMON, str(tmp_path), str(free_port())), stdout=asyncio.subprocess.PIPE
    )
    assert daemon.stdout is not None
    assert await asyncio.wait_for(daemon.stdout.readline(), 60) == b"started\n"
    started = processes_of(psutil.Process(daemon.pid))
    assert {"p2pd"} < {process.name() for process in started}
    daemon.kill()
    await daemon.wait()
    await until(lambda: _true(all(map(gone, started))), 30, "DHT node and p2pd have ended")
    assert list(socket_folder(tmp_path).glob("*.sock")) == []


async def test_a_peer_starts_and_names_the_trouble_when_no_bootstrap_answers(tmp_path: Path) -> None:
    address = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{Identity.generate().peer_id}"
    peer = await Peer.start(tmp_path, (address,))
    try:
        await until(lambda: _true(bool(peer.directory.health)), 60, "the trouble is named")
        assert peer.directory.health == "none of 1 known DHT nodes answers"
        assert not await peer.directory.publish_claim(Claim((3,), 5.0))
        assert await peer.directory.read_claims() == {peer.identity.peer_id: Claim((3,), 5.0)}
    finally:
        await peer.directory.close()


async def test_a_busy_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    identity = Identity.generate()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadConfiguration, match="choose another port"):
            await Directory.start(identity, RUN_ID, "127.0.0.1", taken.getsockname()[1], [], TIMING, tmp_path)
    assert os.listdir(tmp_path) == []


async def test_expirations_rise_over_restarts_and_recover_from_a_clock_that_was_ahead(tmp_path: Path) -> None:
    path = tmp_path / "dht.json"
    first = Memory(path).next_expiration("claims", ttl_seconds=30, now=1000.0)
    again = Memory(path).next_expiration("claims", ttl_seconds=30, now=1000.0)
    slower = Memory(path).next_expiration("claims", ttl_seconds=30, now=990.0)
    assert first == 1030.0
    assert first < again < slower < 1031.0
    assert Memory(path).next_expiration("peers", ttl_seconds=30, now=990.0) == 1020.0
    Memory(path).next_expiration("claims", ttl_seconds=30, now=90_000.0)
    assert Memory(path).next_expiration("claims", ttl_seconds=30, now=1001.0) == 1031.0
    path.write_text("{")
    assert Memory(path).next_expiration("claims", ttl_seconds=30, now=1001.0) == 1031.0


async def test_the_dht_identity_is_readable_by_its_owner_only(peers: list[Peer]) -> None:
    assert (peers[0].folder / "dht.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
async def test_a_flood_of_keys_takes_the_room_that_there_is_and_hides_nobody(tmp_path: Path) -> None:
    first = await Peer.start(tmp_path / "0")
    second = await Peer.start(tmp_path / "1", first.directory.addresses)
    both = {peer.identity.peer_id for peer in (first, second)}
    try:
        for peer in (first, second):
            await peer.directory.publish_claim(Claim((1,), 5.0))

        async def met() -> bool:
            return (await first.directory.read_claims()).keys() == both == (await second.directory.read_claims()).keys()

        await until(met, 60, "they see each other")
        flooder = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FLOODER, first.directory.addresses[0], RUN_ID.hex(), str(MOST_ENTRIES + 200)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        said, _ = await asyncio.wait_for(flooder.communicate(), 120)
        assert MOST_ENTRIES - len(both) <= int(said) <= MOST_ENTRIES

        # who was in before is heard as ever
        assert await first.directory.publish_claim(Claim((2,), 5.0))
        claims = await second.directory.read_claims()
        assert len(claims) == MOST_ENTRIES
        assert (claims[first.identity.peer_id].subsets, claims[second.identity.peer_id].subsets) == ((2,), (1,))
    finally:
        await asyncio.gather(first.directory.close(), second.directory.close())
