"""Claims under way: peers that claim and reconsider at once, through a DHT in which others see late what one writes.

The clock is virtual: when nothing can run, it jumps to the next moment at which something can. So a race of a minute
takes milliseconds, and a seed gives the same race every time.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from rounds_swarm import changed, genesis, replaced

from spes_peer.daemon.joining import Claiming
from spes_peer.errors import ChildFailed
from spes_peer.identity import PeerId
from spes_peer.rounds.admission import Crowd, admit
from spes_peer.rounds.messages import AdmissionRequest
from spes_peer.rounds.ownership import Past, seats_after
from spes_peer.run.layout import Layout
from spes_peer.run.leases import Leases
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.peers import Claim
from spes_peer.run.records import Record, RosterEntry, SealedRecord

START = 1_000_000.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while something runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine under the virtual clock, which also is the wall clock."""

    def run(scenario: Coroutine[Any, Any, None]) -> None:
        loop = VirtualLoop()
        monkeypatch.setattr(time, "time", loop.time)
        try:
            loop.run_until_complete(scenario)
        finally:
            loop.close()

    return run


class Dht:
    """Entries reach each reader some time after they were written, at most `longest_delay_seconds`."""

    def __init__(self, seed: int, longest_delay_seconds: float = 0.9) -> None:
        self.chance = random.Random(seed)
        self.longest_delay_seconds = longest_delay_seconds
        self.written: dict[PeerId, list[tuple[float, Claim]]] = {}
        self.delays: dict[tuple[PeerId, PeerId], float] = {}
        self.num_stores = 0
        self.num_reads = 0

    def delay(self, writer: PeerId, reader: PeerId) -> float:
        if writer == reader:
            return 0.0
        return self.delays.setdefault((writer, reader), self.chance.uniform(0, self.longest_delay_seconds))

    async def store(self, writer: PeerId, claim: Claim) -> None:
        self.num_stores += 1
        self.written.setdefault(writer, []).append((asyncio.get_running_loop().time(), claim))
        await asyncio.sleep(self.chance.uniform(0, 0.1))

    async def read(self, reader: PeerId) -> dict[PeerId, Claim]:
        self.num_reads += 1
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        now = asyncio.get_running_loop().time()
        seen = {
            writer: [claim for at, claim in claims if at + self.delay(writer, reader) <= now]
            for writer, claims in self.written.items()
        }
        return {writer: claims[-1] for writer, claims in seen.items() if claims}


@dataclass
class Directory:
    """One peer's view of the DHT."""

    peer_id: PeerId
    dht: Dht
    is_broken: bool = False

    async def publish_claim(self, claim: Claim) -> None:
        if self.is_broken:
            raise ChildFailed("the DHT node is being started again")
        await self.dht.store(self.peer_id, claim)

    async def read_claims(self) -> dict[PeerId, Claim]:
        if self.is_broken:
            raise ChildFailed("the DHT node is being started again")
        return await self.dht.read(self.peer_id)


@dataclass
class Records:
    """What claiming asks of a chain."""

    head: SealedRecord
    leases: Leases = field(default_factory=Leases)

    def rounds_trained(self, layout: Layout) -> dict[int, int]:
        return {}


class World:
    """Peers of capacity one or more, a DHT, and a coordinator that makes a record whenever it is told to."""

    def __init__(self, manifest: Manifest, num_subsets: int, seed: int = 0, delay_seconds: float = 0.9) -> None:
        experts = changed(manifest, "model", num_experts=num_subsets * 4)
        self.manifest = changed(experts, "training", num_subsets=num_subsets, rotation_rounds=1_000_000)
        self.layout = Layout(self.manifest)
        self.dht = Dht(seed, delay_seconds)
        self.records = Records(replaced(genesis(self.layout), opened_at=START).seal())
        self.crowd = Crowd()
        self.claimings: dict[PeerId, Claiming] = {}

    def start(self, peer: PeerId) -> Claiming:
        directory: Any = Directory(peer, self.dht)
        chain: Any = self.records
        self.claimings[peer] = Claiming(peer, self.layout, chain, directory, lambda: self.now)
        self.crowd = self.crowd.heard(peer, 1, self.now)
        return self.claimings[peer]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def record(self) -> Record:
        return self.records.head.record

    @property
    def places(self) -> dict[PeerId, tuple[int, ...]]:
        return {entry.peer_id: entry.subsets for entry in self.record.roster}

    def ask(self, peer: PeerId, subsets: tuple[int, ...]) -> None:
        self.crowd = admit(self.crowd, peer, 1, AdmissionRequest(subsets, 1.0, PROTOCOL_VERSION))

    def open(self, places: dict[PeerId, tuple[int, ...]]) -> None:
        """A record with exactly this roster."""
        roster = tuple(RosterEntry(peer, 1, places[peer], (), 1) for peer in sorted(places))
        record = replaced(self.record, round=self.record.round + 1, roster=roster, opened_at=self.now)
        self.records.head, self.records.leases = record.seal(), self.records.leases.after(record)
        self.crowd = self.crowd.settled(record)

    async def close(self) -> None:
        """The record that the coordinator makes; members claim what it gives."""
        past = Past({}, self.records.leases)
        seats = seats_after(self.record, self.crowd, past, self.manifest, self.now)
        self.open({seat.peer_id: seat.subsets for seat in seats})
        for peer, subsets in self.places.items():
            if self.claimings[peer].subsets != subsets:
                await self.claimings[peer].keep(subsets)

    async def reconsider(self, peer: PeerId, capacity: int) -> tuple[int, ...] | None:
        await self.claimings[peer].read()
        wanted = await self.claimings[peer].reconsider(capacity)
        if wanted is not None:
            self.ask(peer, wanted)
        return wanted

    async def go_on(self, capacity: int, num_rounds: int) -> list[dict[PeerId, tuple[int, ...]]]:
        """Rounds in which all members reconsider, each at its moment; the rosters."""
        rosters = []
        for _ in range(num_rounds):

            async def soon(peer: PeerId) -> None:
                await asyncio.sleep(self.dht.chance.uniform(0, 2.0))
                await self.reconsider(peer, capacity)

            async with asyncio.TaskGroup() as tasks:
                for peer in self.places:
                    tasks.create_task(soon(peer))
            await asyncio.sleep(30.0)
            await self.close()
            rosters.append(self.places)
        return rosters


def peers_of(seed: int, count: int) -> list[PeerId]:
    return [PeerId(f"peer {seed} {number}") for number in range(count)]


Simulate = Callable[[Coroutine[Any, Any, None]], None]


async def race(world: World, peers: list[PeerId], capacity: int, within_seconds: float) -> list[int]:
    """All claim at about the same time; the subsets that they end with."""

    async def claim(peer: PeerId) -> tuple[int, ...]:
        await asyncio.sleep(world.dht.chance.uniform(0, within_seconds))
        return await world.start(peer).claim(capacity, lambda said: None)

    return sorted(itertools.chain(*await asyncio.gather(*map(claim, peers))))


@pytest.mark.parametrize("seed", range(40))
def test_eight_peers_that_race_for_64_experts_cover_all_without_a_duplicate(
    seed: int, manifest: Manifest, simulate: Simulate
) -> None:
    async def scenario() -> None:
        world = World(manifest, 64, seed)
        assert await race(world, peers_of(seed, 8), 8, within_seconds=0.5) == list(range(64))

    simulate(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_eight_peers_that_race_for_one_of_64_experts_each_have_eight(
    seed: int, manifest: Manifest, simulate: Simulate
) -> None:
    async def scenario() -> None:
        world = World(manifest, 64, seed)
        assert len(set(await race(world, peers_of(seed, 8), 1, within_seconds=0.5))) == 8
        assert world.now - START <= 5.0

    simulate(scenario())


# ---- with a place ----


@pytest.mark.parametrize("seed", range(30))
def test_five_co_owners_that_reconsider_at_once_fill_the_empty_subsets_and_then_rest(
    seed: int, manifest: Manifest, simulate: Simulate
) -> None:
    """Also where the second look comes before others' claims are seen: the coordinator grants no move too many."""

    async def scenario() -> None:
        delay_seconds = 0.9 if seed % 2 else 8.0
        world, peers = World(manifest, 4, seed, delay_seconds), peers_of(seed, 5)
        for peer in peers:
            world.start(peer)
        world.open(dict.fromkeys(peers, (0,)))
        for peer in peers:
            await world.claimings[peer].keep((0,))
        rosters = [world.places, *await world.go_on(capacity=1, num_rounds=8)]
        moves = 0
        for before, after in itertools.pairwise(rosters):
            assert {s for own in before.values() for s in own} <= {s for own in after.values() for s in own}
            moves += sum(before[peer] != after[peer] for peer in peers)
        assert moves == 3
        assert {s for own in world.places.values() for s in own} == {0, 1, 2, 3}
        assert {peer: written[-1][1].subsets for peer, written in world.dht.written.items()} == world.places
        stores = world.dht.num_stores
        assert await world.go_on(capacity=1, num_rounds=3) == [world.places] * 3
        assert world.dht.num_stores == stores

    simulate(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_what_a_dead_owner_leaves_is_taken_by_one_of_those_with_room(
    seed: int, manifest: Manifest, simulate: Simulate
) -> None:
    """Once its claim is gone from the DHT, within its lease; it takes its subset up again when it comes back."""

    async def scenario() -> None:
        world, peers = World(manifest, 4, seed), peers_of(seed, 4)
        for number, peer in enumerate(peers):
            world.start(peer)
            await world.claimings[peer].keep((number,))
        world.open({peer: (number,) for number, peer in enumerate(peers)})
        dead = peers[0]
        world.crowd = world.crowd.without({dead})
        await world.close()
        assert await world.go_on(capacity=2, num_rounds=2) == [world.places] * 2
        del world.dht.written[dead]
        await world.go_on(capacity=2, num_rounds=1)
        assert sum(0 in subsets for subsets in world.places.values()) == 1
        assert await world.start(dead).claim(1, lambda said: None) == (0,)
        world.ask(dead, (0,))
        await world.close()
        assert world.places[dead] == (0,)

    simulate(scenario())


def test_a_co_owner_moves_to_a_dead_owners_subset_only_when_its_lease_is_over(
    manifest: Manifest, simulate: Simulate
) -> None:
    async def scenario() -> None:
        world, (first, second, dead) = World(manifest, 2), peers_of(0, 3)
        for peer in (first, second, dead):
            world.start(peer)
        world.open({first: (0,), second: (0,), dead: (1,)})
        for peer, subsets in world.places.items():
            await world.claimings[peer].keep(subsets)
        seen_at = world.now
        world.crowd = world.crowd.without({dead})
        await world.close()
        del world.dht.written[dead]
        while world.places == {first: (0,), second: (0,)}:
            await world.go_on(capacity=1, num_rounds=1)
        assert sorted(world.places.values()) == [(0,), (1,)]
        assert 0 <= world.now - seen_at - manifest.timing.lease_seconds < 70

    simulate(scenario())


def test_a_member_that_has_all_it_can_asks_for_nothing_and_leaves_the_dht_alone(
    manifest: Manifest, simulate: Simulate
) -> None:
    async def scenario() -> None:
        world, (first, second) = World(manifest, 4), peers_of(0, 2)
        world.start(first)
        assert await world.claimings[first].reconsider(4) is None  # it has no place
        world.open({first: (0,), second: (1, 2, 3)})
        await world.claimings[first].keep((0,))
        assert await world.claimings[first].reconsider(4) is None
        assert await world.claimings[first].reconsider(1) is None
        assert world.dht.num_stores == 1

    simulate(scenario())


def test_two_calls_at_once_ask_once_and_what_is_asked_is_not_asked_again(
    manifest: Manifest, simulate: Simulate
) -> None:
    async def scenario() -> None:
        world, (peer,) = World(manifest, 2), peers_of(0, 1)
        claiming = world.start(peer)
        world.open({peer: (0,)})
        await claiming.keep((0,))
        assert await asyncio.gather(*(claiming.reconsider(2) for _ in range(3))) == [(0, 1), None, None]
        assert claiming.subsets == (0, 1)
        reads = world.dht.num_reads
        assert await claiming.reconsider(2) is None
        assert world.dht.num_reads == reads

    simulate(scenario())


def test_who_has_moved_lately_does_not_claim_again(manifest: Manifest, simulate: Simulate) -> None:
    async def scenario() -> None:
        world, (mover, other) = World(manifest, 3), peers_of(0, 2)
        claiming = world.start(mover)
        world.open({mover: (0,), other: (0,)})
        world.open({mover: (1,), other: (0, 1)})
        await claiming.keep((1,))
        assert await claiming.reconsider(1) is None
        await asyncio.sleep(manifest.timing.lease_seconds)
        assert await claiming.reconsider(1) == (2,)

    simulate(scenario())


def test_a_record_that_comes_between_the_looks_ends_the_wish(manifest: Manifest, simulate: Simulate) -> None:
    async def scenario() -> None:
        world, (peer,) = World(manifest, 2), peers_of(0, 1)
        claiming = world.start(peer)
        world.open({peer: (0,)})
        await claiming.keep((0,))
        looking = asyncio.create_task(claiming.reconsider(2))
        await asyncio.sleep(0.5)
        world.open({peer: (1,)})
        await claiming.keep((1,))
        assert await looking is None
        assert claiming.subsets == (1,)

    simulate(scenario())


def test_without_a_dht_a_peer_still_claims_and_reconsiders(manifest: Manifest, simulate: Simulate) -> None:
    """The coordinator sorts it out."""

    async def scenario() -> None:
        world, (peer,) = World(manifest, 2), peers_of(0, 1)
        claiming = world.start(peer)
        claiming._directory.is_broken = True  # type: ignore[attr-defined]
        assert len(await claiming.claim(1, lambda said: None)) == 1
        world.open({peer: claiming.subsets})
        assert await claiming.reconsider(2) == (0, 1)

    simulate(scenario())
