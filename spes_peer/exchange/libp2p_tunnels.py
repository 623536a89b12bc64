"""Outbound tunnels: a Unix socket each connection to which becomes a stream to one peer."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID

from spes_peer.errors import BadMessage, Unreachable
from spes_peer.exchange.libp2p_dial import Dialler, Route, routes_to
from spes_peer.exchange.libp2p_pipe import SocketEnd, StreamEnd, join

logger = logging.getLogger(__name__)

OnRoute = Callable[[str, str], Awaitable[None]]
"""Takes a peer to which a stream was opened, and the peer id of the relay that carries it, or nothing."""

_SUFFIX = ".sock"
_ID_CHARACTERS = 12
_BACKLOG = 128  # a Unix socket refuses at once what it cannot queue


class Tunnels:
    """All tunnels of this node; their sockets lie in one folder of mode 0700."""

    def __init__(self, host: IHost, folder: Path, nursery: trio.Nursery, on_route: OnRoute) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for stale in folder.glob(f"*{_SUFFIX}"):
            stale.unlink()
        self._dialler = Dialler(host)
        self._on_route = on_route
        self._folder = folder
        self._nursery = nursery
        self._tunnels: dict[ID, _Tunnel] = {}

    async def open(self, peer_id: str, addresses: Iterable[str]) -> Path:
        """The socket of the tunnel to `peer_id`; a tunnel that is there learns the new addresses."""
        try:
            peer = ID.from_base58(peer_id)
        except ValueError:
            raise BadMessage(f"{peer_id[:64]!r} is not a peer id") from None
        tunnel = self._tunnels.get(peer)
        if tunnel is None:
            path = self._folder / f"{peer_id[-_ID_CHARACTERS:]}{_SUFFIX}"
            listener = trio.SocketListener(await _listen(path))
            tunnel = self._tunnels[peer] = _Tunnel(self._dialler, peer, path, self._on_route)
            self._nursery.start_soon(trio.serve_listeners, tunnel.carry, [listener])
        tunnel.routes = routes_to(peer, addresses)
        return tunnel.path

    def remove_sockets(self) -> None:
        for tunnel in self._tunnels.values():
            tunnel.path.unlink(missing_ok=True)


class _Tunnel:
    def __init__(self, dialler: Dialler, peer: ID, path: Path, on_route: OnRoute) -> None:
        self.path = path
        self.routes: tuple[Route, ...] = ()
        self._dialler = dialler
        self._on_route = on_route
        self._peer = peer
        self._dialling = trio.Lock()  # connections that come together share one dial

    async def carry(self, connection: trio.SocketStream) -> None:
        """Pipe one accepted connection. A peer that cannot be reached shows as a connection that closes at once."""
        async with connection:
            try:
                async with self._dialling:
                    stream = await self._dialler.open_stream(self._peer, self.routes)
            except Unreachable as error:
                logger.warning("%s", error)
                return
            await self._on_route(str(self._peer), self._dialler.relay_of(stream, self._peer))
            await join(SocketEnd(connection), StreamEnd(stream))


async def _listen(path: Path) -> trio.socket.SocketType:
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen(_BACKLOG)
    return listener
