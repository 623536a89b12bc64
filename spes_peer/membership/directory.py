"""The daemon's view of the DHT: publishes what this peer says of itself, reads what the others say.

What is published stays published: it is stored again every beat, when the DHT node has found new neighbours, and
after the DHT node's process was started again; but after a time in which this peer did not run, or its clock was set,
only when the others have been found and read again. Entries expire by the others' time. A bad value of one peer costs
that peer's entry only.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from spes_peer.clock import SwarmClock
from spes_peer.errors import BadMessage, ChildFailed, DiskTrouble
from spes_peer.files import write_whole
from spes_peer.identity import Identity, PeerId
from spes_peer.membership.entries import (
    CLOCK_MARGIN_SECONDS,
    DICTIONARIES,
    MAX_VALUE_BYTES,
    check_dht_address,
    dht_addresses_in,
    sign_entry,
)
from spes_peer.ports import MAX_SOCKET_PATH_BYTES, check_port_free
from spes_peer.process import Backoff, Child, Service, start_surely
from spes_peer.run.manifest import Timing
from spes_peer.run.peers import Claim, Head, PeerEntry
from spes_peer.wire import convert
from spes_peer.wire.children_pb2 import (
    AddDhtPeers,
    DhtHealth,
    DhtStarted,
    Dictionary,
    Done,
    EntryStored,
    ReadDictionary,
    SetDhtTime,
    StartDht,
    StoreEntry,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)

_START_SECONDS = 40.0
_STORE_SECONDS = 20.0
_READ_SECONDS = 15.0
_ADD_SECONDS = 5.0
_RELEASE_SECONDS = 2.0
_FIND_SECONDS = 30.0
_UNDER_WAY_SECONDS = 5.0  # at most, from a peer that signs its entry to one that reads it
_LONGEST_SOCKET_NAME = "p2pclient-0123456789a.sock"
_MAX_CACHED_ADDRESSES = 64
_ADDRESSES_PER_PEER = 4


class Memory:
    """What must survive a restart: last expirations, and nodes to find the DHT by when no bootstrap node is up.

    A node refuses an entry that expires no later than the one it has, so expirations rise over restarts too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: dict[str, float] = {}
        self.addresses: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            try:
                content = json.loads(path.read_bytes())
                self._last = {str(name): float(at) for name, at in content["last_expirations"].items()}
                self.addresses = [check_dht_address(address) for address in content["addresses"]]
            except (
                ArithmeticError,
                RecursionError,
                LookupError,
                ValueError,
                TypeError,
                AttributeError,
                BadMessage,
            ) as error:
                logger.warning("starting without what was known of the DHT path=%s reason=%s", path, error)

    def next_expiration(self, dictionary: str, ttl_seconds: float, now: float) -> float:
        """max(now + ttl, last + 0.001), kept on disk before it is used, if the disk takes it.

        A last expiration that others would refuse comes from a clock that was ahead, and nobody holds it.
        """
        expires_at = now + ttl_seconds
        last = self._last.get(dictionary, 0.0)
        if last < expires_at + CLOCK_MARGIN_SECONDS - 1.0:
            expires_at = max(expires_at, last + 0.001)
        self._last[dictionary] = expires_at
        self._save()
        return expires_at

    def add_addresses(self, addresses: Iterable[str]) -> list[str]:
        """Remember DHT nodes, the newest when there are too many; those that are new."""
        new = [address for address in dict.fromkeys(addresses) if address not in self.addresses]
        if new:
            self.addresses = [*self.addresses, *new][-_MAX_CACHED_ADDRESSES:]
            self._save()
        return new

    def _save(self) -> None:
        content = {"last_expirations": self._last, "addresses": self.addresses}
        try:
            write_whole(self._path, json.dumps(content, sort_keys=True).encode())
        except DiskTrouble as error:  # to be found by the others counts for more than to be found after a restart
            logger.debug("cannot keep what is known of the DHT reason=%s", error)


class Directory:
    """Owns the DHT node's process. Calls raise `ChildFailed` when it does not answer in time or is being restarted."""

    def __init__(
        self,
        identity: Identity,
        run_id: bytes,
        host: str,
        port: int,
        initial_peers: Sequence[str],
        timing: Timing,
        folder: Path,
        clock: SwarmClock | None = None,
    ) -> None:
        """Use `start`, which also checks what comes in."""
        self.health = ""
        """What is wrong with the DHT, in words; empty when all is well."""
        self.num_neighbours = 0
        self.addresses: tuple[str, ...] = ()
        """Multiaddrs of the DHT node, for this peer's entry."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when health or neighbours have changed."""
        self.on_read_again: Callable[[dict[PeerId, Claim]], None] = lambda _claims: None
        """Called with everybody's claims after `look_again`, before anything is published."""
        self.clock = clock or SwarmClock()
        """By which entries expire; it learns from them what the others' wall clocks show."""
        self.service = Service("DHT node")
        self._must_look_again = False
        self._looking_again = asyncio.Lock()
        self._read_at = -math.inf
        self._written_at: dict[PeerId, float] = {}
        """When the others' entries were written, by their clocks, as of the last read."""
        self._identity = identity
        self._run_id = run_id
        self._timing = timing
        self._folder = folder.absolute()
        self._request = StartDht(
            host=host,
            port=port,
            run_id=run_id.hex(),
            initial_peers=initial_peers,
            watchdog_seconds=2 * timing.dht_beat_seconds,
            ttl_seconds=timing.dht_ttl_seconds,
            identity_path=str(self._folder / "dht.key"),
        )
        self._memory = Memory(self._folder / "dht.json")
        self._published: dict[str, bytes] = {}
        self._storing = {dictionary: asyncio.Lock() for dictionary in DICTIONARIES}
        self._beat_now = asyncio.Event()
        self._child: Child | None = None
        self._supervising: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        identity: Identity,
        run_id: bytes,
        host: str,
        port: int,
        initial_peers: Sequence[str],
        timing: Timing,
        folder: Path,
        clock: SwarmClock | None = None,
    ) -> "Directory":
        """Start the DHT node at `host`:`port`; its files are in `folder`, its output in `folder`/logs/dht.log.

        Works without any reachable initial peer; `health` says so. Raises `BadConfiguration` for a port in use,
        `ChildFailed` when the process does not start.
        """
        check_port_free(host, port)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        peers = dht_addresses_in(initial_peers)
        directory = cls(identity, run_id, host, port, peers, timing, folder, clock)
        await start_surely("the DHT node", directory._launch)
        directory._supervising = asyncio.create_task(directory._supervise(), name="supervise the DHT node")
        return directory

    async def publish_entry(self, entry: PeerEntry) -> bool:
        """Say how this peer is reached, from now on; whether another node holds it already.

        Like all that is published it is stored later if this call fails.
        """
        if entry.peer_id != self._identity.peer_id:
            raise BadMessage(f"an entry of {entry.peer_id}, which only that peer can publish")
        return await self._publish("peers", entry)

    async def publish_claim(self, claim: Claim) -> bool:
        """Claim subsets, from now on; whether another node holds the claim already."""
        return await self._publish("claims", claim)

    async def publish_head(self, head: Head) -> bool:
        """Say which record is the newest here, from now on; whether another node holds it already."""
        return await self._publish("head", head)

    async def release(self) -> None:
        """Take back all that is published, before it expires."""
        dictionaries = tuple(self._published)
        self._published.clear()
        self._must_look_again = False
        await asyncio.gather(*(self._store(dictionary) for dictionary in dictionaries))

    async def read_entries(self) -> dict[PeerId, PeerEntry]:
        """Everybody's newest entry, this peer's own among them; also remembers their DHT nodes."""
        entries = await self._read("peers", PeerEntry)
        entries = {peer_id: entry for peer_id, entry in entries.items() if entry.peer_id == peer_id}
        self._note_times(entries.values())
        await self._remember(entries.values())
        return entries

    def _note_times(self, entries: Iterable[PeerEntry]) -> None:
        """An entry that was not there at the last read was written since then, but for the time it was under way."""
        now = time.monotonic()
        late_seconds = min(now - self._read_at, self._timing.dht_ttl_seconds) + _UNDER_WAY_SECONDS
        others = {entry.peer_id: entry.written_at for entry in entries if entry.peer_id != self._identity.peer_id}
        for peer_id, written_at in others.items():
            if self._written_at.get(peer_id) != written_at:
                self.clock.note_wall(peer_id, written_at, late_seconds)
        self._read_at, self._written_at = now, others

    async def meet(self, entry: PeerEntry) -> None:
        """Let the DHT node keep in touch with the DHT node of a peer that was met outside of the DHT."""
        await self._remember([entry])

    async def read_claims(self) -> dict[PeerId, Claim]:
        return await self._read("claims", Claim)

    async def read_heads(self) -> dict[PeerId, Head]:
        return await self._read("head", Head)

    @property
    def child(self) -> Child | None:
        """The DHT node's process; None while it is started again."""
        return self._child

    def look_again(self) -> None:
        """This peer did not run for a while, or its clock was set: who is here, and who claims what, is read before
        anything is published again, which is soon."""
        self._must_look_again = True
        self._beat_now.set()

    def restart(self) -> None:
        """Give up every connection: end the process, which is then started again."""
        if self._child is not None:
            self._child.kill()

    async def close(self) -> None:
        """Release what is published, if that is quickly done, and end the process."""
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self.release()
        except (TimeoutError, ChildFailed) as error:
            logger.info("left entries to expire reason=%s", error)
        await self._end_child()

    # ---- the process ----

    async def _launch(self) -> None:
        """Start the process and let it join; on failure nothing is left of it."""
        self._child = Child.start("DHT", "spes_peer.membership.dht_node", self._folder / "logs" / "dht.log")
        self._child.on_event = self._take_event
        try:
            started = await self._child.call(self._request, DhtStarted, _START_SECONDS)
            self.addresses = tuple(started.addresses)
            await self._tell_time()
            if self._memory.addresses:
                await self._child.call(AddDhtPeers(addresses=self._memory.addresses), Done, _ADD_SECONDS)
        except BaseException:
            await self._end_child()
            raise
        self.service.say("running")

    async def _end_child(self) -> None:
        if self._child is not None:
            if self._child.ended.is_set():
                self._child.kill()  # what it started lives in its session
            await self._child.stop()
            self._child = None
        shutil.rmtree(socket_folder(self._folder), ignore_errors=True)  # where the child was killed

    async def _supervise(self) -> None:
        """Beat while the process lives, start it again when it does not, for ever."""
        backoff = Backoff()
        while True:
            if self._child is not None:
                await self._beat_until_ended(self._child)
            await self._end_child()
            self._restarting("has ended and is started again")
            await backoff.pause("the DHT node")
            try:
                await self._launch()
            except (ChildFailed, OSError) as error:
                logger.warning("the DHT node does not start reason=%s", error)
                self._restarting(f"does not start: {error}")

    def _restarting(self, why: str) -> None:
        self.service.say("restarting", why)
        self._change(f"the DHT node {why}", 0)

    async def _beat_until_ended(self, child: Child) -> None:
        """Store all that is published again, every beat and whenever there are new neighbours."""
        ended = asyncio.create_task(child.ended.wait())
        try:
            while not ended.done():
                self._beat_now.clear()
                await self._store_all()
                beat_now = asyncio.create_task(self._beat_now.wait())
                await asyncio.wait(
                    (ended, beat_now),
                    timeout=self._timing.dht_beat_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                beat_now.cancel()
        finally:
            ended.cancel()

    async def _store_all(self) -> None:
        with contextlib.suppress(ChildFailed):  # the stores say it
            await self._tell_time()
        results = await asyncio.gather(*map(self._store, tuple(self._published)), return_exceptions=True)
        for result in results:
            if isinstance(result, ChildFailed):
                logger.info("a beat failed reason=%s", result)
            elif isinstance(result, BaseException):
                raise result

    def _take_event(self, event: Message) -> None:
        if isinstance(event, DhtHealth):
            if event.num_neighbours > self.num_neighbours:
                self._beat_now.set()
            self._change(event.trouble, event.num_neighbours)

    def _change(self, health: str, num_neighbours: int) -> None:
        if (health, num_neighbours) != (self.health, self.num_neighbours):
            self.health, self.num_neighbours = health, num_neighbours
            self.on_change()

    # ---- calls ----

    async def _call(self, request: Message, reply: type[Any], timeout_seconds: float) -> Any:
        if self._child is None:
            raise ChildFailed("the DHT node is being started again")
        return await self._child.call(request, reply, timeout_seconds)

    async def _tell_time(self, find_all: bool = False) -> None:
        timeout_seconds = _FIND_SECONDS if find_all else _ADD_SECONDS
        await self._call(SetDhtTime(now=self.clock.time(), find_all=find_all), Done, timeout_seconds)

    async def _look_again(self) -> None:
        async with self._looking_again:
            if self._must_look_again:
                await self._tell_time(find_all=True)
                await self.read_entries()
                claims = await self.read_claims()
                self._must_look_again = False
                self.on_read_again(claims)

    async def _publish(self, dictionary: str, value: PeerEntry | Claim | Head) -> bool:
        content = convert.encode(value)
        if len(content) > MAX_VALUE_BYTES:
            raise BadMessage(f"{type(value).__name__} has {len(content)} bytes, more than {MAX_VALUE_BYTES}")
        self._published[dictionary] = content
        return await self._store(dictionary)

    async def _store(self, dictionary: str) -> bool:
        """Store what is published now, or its release; one store at a time, so that expirations rise."""
        async with self._storing[dictionary]:
            await self._look_again()
            value = self._published.get(dictionary, b"")
            expires_at = self._memory.next_expiration(dictionary, self._timing.dht_ttl_seconds, self.clock.time())
            request = StoreEntry(
                dictionary=dictionary,
                peer_id=self._identity.peer_id,
                value=value,
                expires_at=expires_at,
                signature=sign_entry(self._identity, dictionary, self._run_id, value, expires_at),
            )
            stored: EntryStored = await self._call(request, EntryStored, _STORE_SECONDS)
            return stored.stored_elsewhere

    async def _read(self, dictionary: str, cls: type[T]) -> dict[PeerId, T]:
        """The values of all peers that have one and wrote it well."""
        found: Dictionary = await self._call(ReadDictionary(dictionary=dictionary), Dictionary, _READ_SECONDS)
        values: dict[PeerId, T] = {}
        for entry in found.entries:
            if entry.value:
                try:
                    values[PeerId(entry.peer_id)] = convert.decode(cls, entry.value)
                except BadMessage as error:
                    logger.info("ignored an entry dictionary=%s peer=%s reason=%s", dictionary, entry.peer_id, error)
        return values

    async def _remember(self, entries: Iterable[PeerEntry]) -> None:
        """Let the DHT node keep in touch with the others' DHT nodes."""
        addresses: list[str] = []
        for entry in entries:
            addresses += dht_addresses_in(entry.dht_addresses[:_ADDRESSES_PER_PEER])
        own = (*self.addresses, *self._request.initial_peers)
        new = self._memory.add_addresses(address for address in addresses if address not in own)
        if new:
            await self._call(AddDhtPeers(addresses=new), Done, _ADD_SECONDS)


def socket_folder(folder: Path) -> Path:
    """Where p2pd's socket of a state folder lies: in it, or in the temporary folder if the path grows too long."""
    inside = folder / "p2pd"
    if len(os.fsencode(inside / _LONGEST_SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES:
        return inside
    return Path(tempfile.gettempdir()) / f"spes-peer-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
