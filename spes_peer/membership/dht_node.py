"""The DHT node's process: hivemind's `DHTNode` with rules of our own about what it stores.

Run as `python -m spes_peer.membership.dht_node` by `directory.py`, which signs what is stored. Neither the answers of
`hivemind.DHT`, which forks and leaves orphans, nor its validators can be used (each reason stands where it matters
below). The process ends within a second of its parent's end of the socket, and p2pd ends with its last client.

hivemind swallows most errors and reports them as "no answer"; a dead p2pd ends this process, and the parent starts a
new one.
"""

import asyncio
import contextlib
import logging
import os
import random
import shutil
import socket
import struct
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from hivemind.dht import DHTNode
from hivemind.dht.crypto import DHTRecord, RecordValidatorBase
from hivemind.dht.protocol import ValidationError
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.proto import crypto_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.multiaddr.exceptions import Error as MultiaddrError

from spes_peer.clock import HeldClock
from spes_peer.errors import BadMessage, ChildFailed, SpesError
from spes_peer.files import write_whole
from spes_peer.identity import Identity, peer_id_of, public_key_of
from spes_peer.logs import log_of_child
from spes_peer.membership.directory import socket_folder
from spes_peer.membership.entries import (
    CLOCK_MARGIN_SECONDS,
    DICTIONARIES,
    MAX_VALUE_BYTES,
    check_entry,
    dictionary_key,
)
from spes_peer.process import socket_to_parent
from spes_peer.wire import frames
from spes_peer.wire.children_pb2 import (
    AddDhtPeers,
    DhtHealth,
    DhtStarted,
    Dictionary,
    DictionaryEntry,
    Done,
    EntryStored,
    Frame,
    ReadDictionary,
    SetDhtTime,
    StartDht,
    StoreEntry,
)

logger = logging.getLogger(__name__)

_SIGNATURE_BYTES = 64
_PUBLIC_KEY_BYTES = 32
# A frozen peer costs a request 3 s, after which hivemind avoids it.
_RPC_SECONDS = 3.0
_CONNECT_SECONDS = 5.0
# Frozen peers make a read take 3 s and a store 12 s; the daemon waits a little longer than this.
READ_SECONDS = 12.0
STORE_SECONDS = 18.0
# Between attempts of a node that has lost everybody: go-libp2p backs off from addresses that it dials more often.
_RETRY_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_MAX_KNOWN_PEERS = 64
_DIALS_PER_HEALING = 16
# p2pd leaves by itself when nobody connects to it for so long, should we be killed while it starts.
_P2PD_IDLE_SECONDS = 10
_END_SECONDS = 0.9


# A peer has one in each dictionary. A dictionary travels whole, and p2pd carries 4 MiB at a time.
MOST_ENTRIES = 1024


class EntryValidator(RecordValidatorBase):  # type: ignore[misc]  # hivemind has no types
    """Admits signed entries of this run's dictionaries and nothing else: no plain value, no unknown key; and nobody new
    to a dictionary that is full, since keys cost nothing. Who is in it keeps its place as long as its entry lives.

    hivemind asks it about everything that is stored here or found elsewhere. It sees only the hash of a key. Every
    byte string has one form that passes, because hivemind would hang on a value that it cannot unpack.
    """

    def __init__(self, run_id: bytes, ttl_seconds: float, clock: HeldClock) -> None:
        self._run_id = run_id
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._names = {key_id_of(run_id, name).to_bytes(): name for name in DICTIONARIES}
        self._places: dict[bytes, dict[bytes, float]] = {key: {} for key in self._names}
        """Until when who is in each dictionary."""

    def validate(self, record: DHTRecord) -> bool:
        try:
            self._find_place(record)
            self.check(record)
        except SpesError as error:
            logger.debug("refused a record reason=%s", error)
            return False
        places = self._places[record.key]
        places[record.subkey] = max(record.expiration_time, places.get(record.subkey, 0.0))
        return True

    def _find_place(self, record: DHTRecord) -> None:
        """Before its signature is looked at, which takes a thousand times as long."""
        places = self._places.get(record.key, {})
        if record.subkey in places or len(places) < MOST_ENTRIES:
            return
        now = self._clock.time()
        for subkey in [subkey for subkey, until in places.items() if until < now]:
            del places[subkey]
        if len(places) >= MOST_ENTRIES:
            raise BadMessage("an entry for which there is no room")

    def check(self, record: DHTRecord) -> None:
        """`BadMessage` if the entry itself is not sound."""
        if record.key not in self._names:
            raise BadMessage("a key that is not of this run")
        header = b"\xc4" + bytes([_PUBLIC_KEY_BYTES])  # msgpack's for so many bytes
        if len(record.subkey) != len(header) + _PUBLIC_KEY_BYTES or not record.subkey.startswith(header):
            raise BadMessage("a subkey that is not a public key")
        signed = unpacked(record.value)
        if not isinstance(record.expiration_time, float):
            raise BadMessage("an expiration that is not a number")
        if not record.expiration_time <= self._clock.time() + self._ttl_seconds + CLOCK_MARGIN_SECONDS:
            raise BadMessage("an entry that would live too long")
        check_entry(
            self._names[record.key],
            self._run_id,
            peer_id_of(record.subkey[len(header) :]),
            signed[:-_SIGNATURE_BYTES],
            record.expiration_time,
            signed[-_SIGNATURE_BYTES:],
        )


def use_clock(clock: HeldClock) -> None:
    """Let hivemind take the time from `clock`; it asks the wall clock, by a name that its modules import."""
    for module in list(sys.modules.values()):
        if getattr(module, "get_dht_time", None) is get_dht_time and module.__name__.startswith("hivemind"):
            module.get_dht_time = clock.time  # type: ignore[attr-defined]


def key_id_of(run_id: bytes, dictionary: str) -> DHTID:
    return DHTID.generate(source=dictionary_key(run_id.hex(), dictionary))


def unpacked(stored: bytes) -> bytes:
    """The value and signature in msgpack's canonical `bin`; `BadMessage` otherwise."""
    length = len(stored) - 3
    if length >= 0 and stored[:1] == b"\xc5" and struct.unpack(">H", stored[1:3])[0] == length > 255:
        signed = stored[3:]
    elif len(stored) >= 2 and stored[:1] == b"\xc4" and stored[1] == len(stored) - 2:
        signed = stored[2:]
    else:
        raise BadMessage("a value that is not one byte string")
    if not _SIGNATURE_BYTES <= len(signed) <= MAX_VALUE_BYTES + _SIGNATURE_BYTES:
        raise BadMessage(f"a value of {len(signed)} bytes")
    return signed


class Node:
    """This process's part of the DHT."""

    def __init__(self, request: StartDht, report: Callable[[DhtHealth], None]) -> None:
        self._run_id = bytes.fromhex(request.run_id)
        self._report = report
        self._reported: tuple[int, str] | None = None
        self._watchdog_seconds = request.watchdog_seconds
        self.clock = HeldClock()
        self._validator = EntryValidator(self._run_id, request.ttl_seconds, self.clock)
        self._healing = asyncio.Lock()
        self._bootstraps = by_peer(request.initial_peers)
        self._known: dict[PeerID, list[Multiaddr]] = {}
        self._wake = asyncio.Event()
        self._sockets = socket_folder(Path(request.identity_path).parent)
        shutil.rmtree(self._sockets, ignore_errors=True)  # of a start that was killed
        self._sockets.mkdir(mode=0o700)
        self.addresses: list[str] = []

    async def start(self, host: str, port: int, identity_path: Path) -> None:
        """Listen. Whether any other node can be reached is the watchdog's to find out."""
        use_clock(self.clock)
        create_dht_identity(identity_path)
        # hivemind puts its sockets openly into /tmp, where they stay if p2pd is killed
        P2P._UNIX_SOCKET_PREFIX = f"/unix{self._sockets}/"
        family = "ip6" if ":" in host else "ip4"
        is_local = host in ("127.0.0.1", "::1")
        self._p2p = await P2P.create(
            host_maddrs=[f"/{family}/{host}/tcp/{port}"],
            identity_path=str(identity_path),
            check_if_identity_free=False,  # True can only read RSA keys
            nat_port_map=False,  # the daemon asks the router, for all ports (exchange/port_mapping.py)
            auto_nat=not is_local,
            idle_timeout=_P2PD_IDLE_SECONDS,
        )
        await self._unless_p2pd_ends(self._open(is_local))

    async def _open(self, is_local: bool) -> None:
        addresses = await self._visible_addresses(is_local)
        self._node = await DHTNode.create(
            p2p=self._p2p,
            wait_timeout=_RPC_SECONDS,
            record_validator=self._validator,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            reuse_get_requests=False,
        )
        # Others may still store into our cache, which would hide the dictionary from readers; hivemind takes a
        # `cache_size` of 0 for "no limit".
        self._node.protocol.cache.maxsize = 0
        self.addresses = addresses

    @property
    def num_neighbours(self) -> int:
        return len(self._node.protocol.routing_table.uid_to_peer_id)

    async def store(self, entry: StoreEntry) -> bool:
        """Keep an entry here and bring it to other nodes; whether one of them has it now.

        Not by `DHTNode.store`: it says True when this node is alone, and else what the last node to answer said.
        """
        key_id, subkey = key_id_of(self._run_id, entry.dictionary), public_key_of(entry.peer_id)
        packed = MSGPackSerializer.dumps(entry.value + entry.signature)
        try:  # there is always room for our own
            self._validator.check(
                DHTRecord(key_id.to_bytes(), MSGPackSerializer.dumps(subkey), packed, entry.expires_at)
            )
        except BadMessage as error:
            raise BadMessage(f"an entry that no node would store: {error}") from None
        self._node.protocol.storage.store_subkey(key_id, subkey, packed, entry.expires_at)
        answers: list[bool] = []

        async def bring_to(peer: PeerID) -> None:
            answer = await self._node.protocol.call_store(peer, [key_id], [packed], [entry.expires_at], [subkey])
            answers.extend(answer or ())

        await self._with_nearest(key_id, self._node.num_replicas, bring_to, STORE_SECONDS)
        if not any(answers):
            self._wake.set()
        return any(answers)

    async def read(self, dictionary: str) -> Dictionary:
        """All live entries that this node or those nearest to the key have.

        Not by `DHTNode.get`: there one malformed answer ends the search without a result, and an answer that claims
        to be the latest hides the others.
        """
        if dictionary not in DICTIONARIES:
            raise BadMessage(f"no dictionary is called {dictionary[:80]!r}")
        key_id = key_id_of(self._run_id, dictionary)
        found: dict[bytes, tuple[bytes, float]] = {}
        _take_later(found, self._node.protocol.storage.get(key_id))

        async def ask(peer: PeerID) -> None:
            if answer := await self._node.protocol.call_find(peer, [key_id]):  # validated there
                _take_later(found, answer[key_id][0])

        await self._with_nearest(key_id, self._node.protocol.bucket_size, ask, READ_SECONDS)
        now = self.clock.time()
        return Dictionary(
            entries=[
                DictionaryEntry(peer_id=peer_id_of(subkey), value=unpacked(packed)[:-_SIGNATURE_BYTES], expires_at=at)
                for subkey, (packed, at) in found.items()
                if at > now
            ]
        )

    async def _with_nearest(
        self, key_id: DHTID, num_nodes: int, act: Callable[[PeerID], Awaitable[None]], timeout_seconds: float
    ) -> None:
        """Let `act` speak to the other nodes nearest to a key, all at once; what it got by the time-out must do."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                nearest = await self._node.find_nearest_nodes([key_id], k_nearest=num_nodes, exclude_self=True)
                peers = [peer for peer in nearest[key_id].values() if peer not in self._node.blacklist]
                await asyncio.gather(*(act(peer) for peer in peers))

    def add_peers(self, addresses: Iterable[str]) -> None:
        """Keep in touch with these nodes too; the newest count when there are too many."""
        for peer, maddrs in by_peer(addresses).items():
            if peer != self._p2p.peer_id:
                self._known.pop(peer, None)
                self._known[peer] = maddrs
        while len(self._known) > _MAX_KNOWN_PEERS:
            del self._known[next(iter(self._known))]
        self._wake.set()

    async def watch(self) -> None:
        """Keep the DHT in one piece, for ever.

        hivemind forgets a peer after one failed request and does nothing to find it again, though connections live;
        a restarted bootstrap node would split the swarm for good. Raises `ChildFailed` when p2pd is dead.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            await self.heal()
            due_at = loop.time() + self._watchdog_seconds
            if self._is_lonely():
                await asyncio.sleep(_RETRY_SECONDS)
            while loop.time() < due_at and not self._is_lonely():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._wake.wait()
                    break

    async def until_p2pd_ends(self) -> None:
        """Raises `ChildFailed` when it does: hivemind itself would go on without an error."""
        code = await self._p2p._child.wait()
        raise ChildFailed(f"p2pd ended with code {code}")

    async def _unless_p2pd_ends(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, which would wait for a dead p2pd for as long as its time-outs take."""
        working, ending = asyncio.create_task(work), asyncio.create_task(self.until_p2pd_ends())
        try:
            done, _ = await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            (working if working in done else ending).result()
        finally:
            working.cancel()
            ending.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)

    async def close(self) -> None:
        p2p = getattr(self, "_p2p", None)
        try:
            if p2p is not None:
                await p2p.shutdown()
        finally:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def _is_lonely(self) -> bool:
        return self.num_neighbours == 0 and bool(self._bootstraps or self._known)

    async def heal(self) -> None:
        """Find every node again: known ones by address, connected ones by a ping, the rest by a random lookup."""
        async with self._healing:
            await self._heal()

    async def _heal(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                connected = {info.peer_id for info in await self._p2p.list_peers()}
        except (OSError, EOFError, TimeoutError, P2PDaemonError, ControlFailure) as error:
            raise ChildFailed(f"p2pd does not answer: {error!r}") from error
        sample = dict(random.sample(list(self._known.items()), min(len(self._known), _DIALS_PER_HEALING)))
        targets = {**sample, **self._bootstraps}
        pings = [self._node.protocol.call_ping(peer) for peer in connected - targets.keys()]
        reached, *_ = await asyncio.gather(
            asyncio.gather(*(self._reach(peer, maddrs) for peer, maddrs in targets.items())), *pings
        )
        await asyncio.sleep(0)  # call_ping enters peers into the table in a task of its own
        if self.num_neighbours:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    await self._node.find_nearest_nodes([DHTID.generate()])
        troubles = {trouble for trouble in reached if trouble}
        if self._is_lonely():
            troubles.add(f"none of {len(self._bootstraps) + len(self._known)} known DHT nodes answers")
        self._tell("; ".join(sorted(troubles)))

    async def _reach(self, peer: PeerID, maddrs: list[Multiaddr]) -> str:
        """Connect to a known node and enter it into the table; what it finds wrong with us."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._p2p._client.connect(peer, maddrs)  # P2P itself connects only when it is created
        except (OSError, EOFError, TimeoutError, P2PDaemonError, ControlFailure) as error:
            logger.info("cannot reach a DHT node peer=%s reason=%s", peer, error)
            return ""
        try:
            # only a bootstrap node's clock and its view of us are worth a person's attention
            await self._node.protocol.call_ping(peer, validate=peer in self._bootstraps)
        except ValidationError as error:
            await self._node.protocol.call_ping(peer)
            return str(error)
        return ""

    def _tell(self, trouble: str) -> None:
        health = (self.num_neighbours, trouble)
        if health != self._reported:
            self._reported = health
            self._report(DhtHealth(num_neighbours=health[0], trouble=trouble))

    async def _visible_addresses(self, is_local: bool) -> list[str]:
        addresses = [str(maddr) for maddr in await self._p2p.get_visible_maddrs(latest=True)]
        if not addresses:
            raise ChildFailed("p2pd listens on no address")
        far = [address for address in addresses if not address.startswith(("/ip4/127.", "/ip6/::1/"))]
        return addresses if is_local or not far else far


def _take_later(found: dict[bytes, tuple[bytes, float]], answer: "tuple[object, float] | None") -> None:
    """Merge an answer's entries into `found`; of two for one subkey the later expiration counts."""
    value = answer[0] if answer is not None else None
    if isinstance(value, DictionaryDHTValue):
        for subkey, (packed, expires_at) in value.data.items():
            if subkey not in found or expires_at > found[subkey][1]:
                found[subkey] = packed, expires_at


def by_peer(addresses: Iterable[str]) -> dict[PeerID, list[Multiaddr]]:
    """Multiaddrs by the peer id at their end, which `entries.check_dht_address` has seen there; without those that
    hivemind cannot read, some names for instance: they come from entries, and one must cost no other."""
    result: dict[PeerID, list[Multiaddr]] = {}
    for address in addresses:
        try:
            maddr = Multiaddr(address)
            peer = PeerID.from_base58(maddr["p2p"])
            result.setdefault(peer, []).append(maddr.decapsulate(Multiaddr(f"/p2p/{peer}")))
        except (MultiaddrError, LookupError, ValueError) as error:
            logger.info("ignored an address reason=%s", error)
    return result


def create_dht_identity(path: Path) -> None:
    """Write a new Ed25519 key in libp2p's format (0600) unless there is one; hivemind would make an RSA key.

    The DHT's host must not share the peer's own key: two libp2p hosts with one id confuse all others.
    """
    if path.exists():
        return
    identity = Identity.generate()
    data = identity.seed + identity.key.public_key().public_bytes_raw()
    key = crypto_pb2.PrivateKey(key_type=crypto_pb2.Ed25519, data=data)
    write_whole(path, key.SerializeToString(), mode=0o600)


class _ParentGoneError(Exception):
    """The parent closed the socket."""


class Session:
    """Requests of the parent, served concurrently: a slow store never blocks a read."""

    def __init__(self, end: socket.socket, group: asyncio.TaskGroup) -> None:
        self._end = end
        self._group = group
        self._sending = asyncio.Lock()
        self._node: Node | None = None

    async def serve(self) -> None:
        """Until the parent is gone."""
        loop = asyncio.get_running_loop()
        reader = frames.FrameReader()
        while content := await loop.sock_recv(self._end, 1 << 16):
            for frame in reader.feed(content):
                self._group.create_task(self._answer(frame))
        raise _ParentGoneError

    async def close(self) -> None:
        if self._node is not None:
            await self._node.close()

    async def _answer(self, frame: Frame) -> None:
        try:
            answer = frames.answer(frame, await self._do(frames.message_in(frame)))
        except Exception as error:
            # hivemind raises errors of many kinds; whichever it was, the parent hears of it
            logger.exception("could not serve a request kind=%s", frame.kind)
            answer = frames.failure(frame, str(error) or repr(error))
        await self._send(answer)

    async def _do(self, request: Message) -> Message:
        if isinstance(request, StartDht):
            return await self._start(request)
        if self._node is None or not self._node.addresses:
            raise ChildFailed("the DHT node has not started")
        if isinstance(request, StoreEntry):
            return EntryStored(stored_elsewhere=await self._node.store(request))
        if isinstance(request, ReadDictionary):
            return await self._node.read(request.dictionary)
        if isinstance(request, SetDhtTime):
            self._node.clock.tell(request.now)
            if request.find_all:
                await self._node.heal()
            return Done()
        if isinstance(request, AddDhtPeers):
            self._node.add_peers(request.addresses)
            return Done()
        raise BadMessage(f"the DHT node does not serve {request.DESCRIPTOR.name}")

    async def _start(self, request: StartDht) -> DhtStarted:
        if self._node is not None:
            raise ChildFailed("the DHT node has already started")
        self._node = Node(request, self._report)
        await self._node.start(request.host, request.port, Path(request.identity_path))
        self._group.create_task(self._node.until_p2pd_ends())
        self._group.create_task(self._node.watch())
        return DhtStarted(addresses=self._node.addresses)

    def _report(self, health: DhtHealth) -> None:
        self._group.create_task(self._send(frames.event(health)))

    async def _send(self, frame: Frame) -> None:
        with contextlib.suppress(OSError):  # the parent is gone, which `serve` sees too
            async with self._sending:
                await asyncio.get_running_loop().sock_sendall(self._end, frames.pack(frame))


async def run(end: socket.socket) -> None:
    """Serve the parent at `end` until it is gone; an error that is no request's ends the process."""
    end.setblocking(False)
    session = None
    try:
        async with asyncio.TaskGroup() as group:
            session = Session(end, group)
            await session.serve()
    except* _ParentGoneError:
        logger.info("the parent is gone")
    finally:
        # whatever hangs now, p2pd included, ends with its last client
        deadline = threading.Timer(_END_SECONDS, os._exit, (1,))
        deadline.daemon = True
        deadline.start()
        if session is not None:
            await session.close()


def main() -> None:
    log_of_child()
    asyncio.run(run(socket_to_parent()))


if __name__ == "__main__":
    main()
