"""The daemon's side of the libp2p node: it owns the child process, and gets Unix sockets that lead to peers.

A gRPC channel to `unix:<socket>` reaches the peer however libp2p gets there. The rule: the daemon never waits for the
process. While it is started again calls fail at once with `ChildFailed`, and tunnels are opened again when asked for.
"""

import asyncio
import contextlib
import dataclasses
import ipaddress
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from google.protobuf.message import Message

from spes_peer.errors import BadConfiguration, ChildFailed
from spes_peer.exchange.relay_limits import RelayLimits
from spes_peer.identity import Identity
from spes_peer.ports import MAX_SOCKET_PATH_BYTES, check_port_free
from spes_peer.process import Backoff, Child, Service, start_surely
from spes_peer.wire import children_pb2
from spes_peer.wire.children_pb2 import (
    Done,
    Libp2pStarted,
    OpenTunnel,
    Relayed,
    RelayedAddresses,
    RouteTaken,
    StartLibp2p,
    TunnelOpened,
    UseRelays,
)

logger = logging.getLogger(__name__)

_MODULE = "spes_peer.exchange.libp2p_node"
_START_SECONDS = 60.0  # imports take a second, on a machine that starts everything at once many
_OPEN_SECONDS = 10.0  # only makes a socket; the peer is dialled when something connects to it
_TUNNELS = "tunnels"
_LONGEST_SOCKET_NAME = "x" * 12 + ".sock"


class Libp2pNode:
    """Owns the libp2p node's process. Make it with `start`."""

    def __init__(
        self,
        request: StartLibp2p,
        log_path: Path,
        on_addresses: Callable[[tuple[str, ...]], None],
        on_relayed: Callable[[int], None],
    ) -> None:
        self.service = Service("libp2p node")
        self._request = request
        self._log_path = log_path
        self._on_addresses = on_addresses
        self._on_relayed = on_relayed
        self._own: tuple[str, ...] = ()
        self._relayed: tuple[str, ...] = ()
        self._relay_of: dict[str, str] = {}
        """By peer: the relay of the newest stream to it; empty if none carries it, or the next needs none."""
        self._punched: set[str] = set()
        self.num_circuits = 0
        """That it carries for others now, and the bytes that it has carried since the start."""
        self.relayed_bytes = 0
        self._child: Child | None = None
        self._told: tuple[Child | None, UseRelays] = None, UseRelays(relays=request.relays)
        self._supervising: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        identity: Identity,
        host: str,
        port: int,
        relay: RelayLimits | None,
        relays: Sequence[str],
        inbound_socket: Path,
        folder: Path,
        on_addresses: Callable[[tuple[str, ...]], None] = lambda _addresses: None,
        on_relayed: Callable[[int], None] = lambda _num_bytes: None,
    ) -> "Libp2pNode":
        """Start the process; its sockets are in `folder`/tunnels, its output in `folder`/logs/libp2p.log.

        `relay` is what it relays for others, if anything. `relays` are multiaddrs of relays to be reached through;
        empty for a peer that can be dialled. `on_addresses` is called with all addresses whenever they change,
        `on_relayed` now and then with the bytes that were relayed for others. `BadConfiguration` for a port in use, a
        host that is no IP address, or a folder whose path is too long; `ChildFailed` when the process does not start.
        """
        folder, inbound_socket = absolute_paths(folder, inbound_socket)
        _check_host(host)
        check_port_free(host, port)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        request = StartLibp2p(
            host=host,
            port=port,
            seed=identity.seed,
            relay=children_pb2.RelayLimits(**dataclasses.asdict(relay)) if relay is not None else None,
            relays=relays,
            inbound_socket=str(inbound_socket),
            tunnel_folder=str(folder / _TUNNELS),
        )
        node = cls(request, folder / "logs" / "libp2p.log", on_addresses, on_relayed)
        await start_surely("the libp2p node", node._launch)
        node._supervising = asyncio.create_task(node._supervise(), name="supervise the libp2p node")
        return node

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs at which peers reach this node now, its own first, then those through relays."""
        return self._own + self._relayed

    async def open_tunnel(self, peer_id: str, addresses: Sequence[str]) -> Path:
        """A Unix socket that leads to `peer_id`; the same each time, with the newest addresses.

        The peer is dialled when something connects; if that fails the connection is closed.
        """
        if self._child is None:
            raise ChildFailed("the libp2p node is being started again")
        opened = await self._child.call(
            OpenTunnel(peer_id=peer_id, addresses=addresses), TunnelOpened, timeout_seconds=_OPEN_SECONDS
        )
        return Path(opened.socket_path)

    def relay_of(self, peer_id: str) -> str:
        """Peer id of the relay that carries the newest stream to `peer_id`; empty if none does."""
        return self._relay_of.get(peer_id, "")

    def is_punched(self, peer_id: str) -> bool:
        """Whether a hole was punched to `peer_id`."""
        return peer_id in self._punched

    @property
    def standing_relays(self) -> tuple[str, ...]:
        """Multiaddrs of those at which this node has a place now."""
        return tuple(address.partition("/p2p-circuit")[0] for address in self._relayed)

    async def use_relays(self, relays: Sequence[str], seen_at: str = "") -> None:
        """Keep places at these relays from now on, and at no others; also in the process's next lives. Punch holes,
        where others see this machine at `seen_at`."""
        wanted = UseRelays(relays=relays, seen_at=seen_at)
        if self._child is None or (self._child, wanted) == self._told:
            return
        del self._request.relays[:]
        self._request.relays.extend(relays)
        child = self._child
        with contextlib.suppress(ChildFailed):  # told again at the next call
            await child.call(wanted, Done, _OPEN_SECONDS)
            self._told = child, wanted

    def restart(self) -> None:
        """Give up every connection: end the process, which is then started again."""
        if self._child is not None:
            self._child.kill()

    async def close(self) -> None:
        """End the process."""
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
        await self._end_child()

    async def _launch(self) -> None:
        """Start the process; on failure nothing is left of it."""
        child = Child.start("libp2p", _MODULE, self._log_path)
        child.on_event = self._take_event
        try:
            started = await child.call(self._request, Libp2pStarted, _START_SECONDS)
        except BaseException:
            await child.stop()
            raise
        self._child = child
        self.service.say("running")
        self._change(tuple(started.addresses), self._relayed)

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        self._relay_of.clear()
        self._punched.clear()
        self.num_circuits = 0
        if child is not None:
            await child.stop()
        self._change((), ())

    async def _supervise(self) -> None:
        """Start the process again whenever it ends, for ever."""
        backoff = Backoff()
        while True:
            if self._child is not None:
                await self._child.ended.wait()
            await self._end_child()
            self.service.say("restarting", "has ended and is started again")
            await backoff.pause("the libp2p node")
            try:
                await self._launch()
            except (ChildFailed, OSError) as error:
                logger.warning("the libp2p node does not start reason=%s", error)
                self.service.say("restarting", f"does not start: {error}")

    def _take_event(self, event: Message) -> None:
        if isinstance(event, RelayedAddresses):
            self._change(self._own, tuple(event.addresses))
        elif isinstance(event, RouteTaken):
            self._relay_of[event.peer_id] = event.relay
            if event.is_punched:
                self._punched.add(event.peer_id)
        elif isinstance(event, Relayed):
            self.num_circuits, self.relayed_bytes = event.num_circuits, self.relayed_bytes + event.num_bytes
            self._on_relayed(event.num_bytes)

    def _change(self, own: tuple[str, ...], relayed: tuple[str, ...]) -> None:
        before = self.addresses
        self._own, self._relayed = own, relayed
        if self.addresses != before:
            self._on_addresses(self.addresses)


def absolute_paths(folder: Path, inbound_socket: Path) -> tuple[Path, Path]:
    """Both as absolute paths; `BadConfiguration` if they are too long for the sockets there."""
    folder, inbound_socket = folder.absolute(), inbound_socket.absolute()
    for path in (folder / _TUNNELS / _LONGEST_SOCKET_NAME, inbound_socket):
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            raise BadConfiguration(
                f"the path of the socket {path} is too long; choose a state folder with a shorter one"
            )
    return folder, inbound_socket


def _check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise BadConfiguration(f"the libp2p node listens at an IP address, which {host!r} is not") from None
