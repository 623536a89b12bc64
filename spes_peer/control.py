"""The control API of a daemon: gRPC on a Unix socket in its state folder. Dashboards and commands are its clients.

Only the user who runs the daemon can connect: the socket is made 0600. A watcher gets the present status at once, then
again after every change, bursts collapsed to at most four a second, and every `REFRESH_SECONDS` when nothing changes;
so a watcher that hears nothing for `SILENCE_SECONDS` knows that the daemon hangs.

    async with ControlClient(folder.control_socket) as client:
        async for status in client.watch():
            print(status.round, status.phase.why)
"""

import asyncio
import contextlib
import os
import socket
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from spes_peer.errors import BadConfiguration, SpesError, UserError
from spes_peer.events.words import last_end
from spes_peer.lock import holder_of
from spes_peer.ports import MAX_SOCKET_PATH_BYTES
from spes_peer.wire import control_pb2_grpc
from spes_peer.wire.control_pb2 import (
    CommandReply,
    LeaveRequest,
    PauseRequest,
    ResumeRequest,
    Status,
    WatchRequest,
)

MIN_GAP_SECONDS = 0.25
REFRESH_SECONDS = 2.0
SILENCE_SECONDS = 15.0
COMMAND_SECONDS = 30.0
_STOP_SECONDS = 1.0
_PROBE_SECONDS = 2.0
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.max_send_message_length", 32 << 20),
)


class StatusBoard:
    """Where a daemon's present status is read. It is built when somebody looks and something may have changed, so
    many watchers cost as much as one."""

    def __init__(self, build: Callable[[], Status]) -> None:
        self._build = build
        self._shown: Status | None = None
        self._built_at = 0.0
        self._bells: set[asyncio.Event] = set()
        self._is_closed = False

    def look(self) -> Status:
        """The present status; nobody may change it."""
        now = time.monotonic()
        if self._shown is None or now - self._built_at >= MIN_GAP_SECONDS:
            self._shown, self._built_at = self._build(), now
        return self._shown

    def touch(self) -> None:
        """Say that something changed. Cheap, and called from the daemon's loop as often as it likes."""
        self._shown = None
        for bell in self._bells:
            bell.set()

    def close(self) -> None:
        """Send every watcher the last status, then end its stream."""
        self._is_closed = True
        self.touch()

    async def watch(self) -> AsyncIterator[Status]:
        """The present status at once, then the newest after changes, never two within `MIN_GAP_SECONDS`."""
        bell = asyncio.Event()
        self._bells.add(bell)
        try:
            while True:
                bell.clear()
                is_last = self._is_closed
                yield self.look()
                if is_last:
                    return
                await asyncio.sleep(MIN_GAP_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_SECONDS):
                        await bell.wait()
        finally:
            self._bells.discard(bell)


class Controlled(Protocol):
    """What a daemon offers to those who control it. Commands answer soon, with a sentence; `SpesError` refuses."""

    @property
    def board(self) -> StatusBoard: ...
    async def pause(self) -> str: ...
    async def resume(self) -> str: ...
    async def leave(self, at_once: bool) -> str: ...


class _Service(control_pb2_grpc.ControlServicer):
    """The four calls of service Control, for one program."""

    def __init__(self, program: Controlled) -> None:
        self._program = program

    async def Watch(self, request: WatchRequest, context: Any) -> AsyncIterator[Status]:
        async for status in self._program.board.watch():
            yield status

    async def Pause(self, request: PauseRequest, context: Any) -> CommandReply:
        return await _said(self._program.pause(), context)

    async def Resume(self, request: ResumeRequest, context: Any) -> CommandReply:
        return await _said(self._program.resume(), context)

    async def Leave(self, request: LeaveRequest, context: Any) -> CommandReply:
        return await _said(self._program.leave(request.at_once), context)


async def _said(command: Awaitable[str], context: Any) -> CommandReply:
    try:
        return CommandReply(said=await command)
    except SpesError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError("abort raises") from error


class ControlServer:
    """Serves one program on one Unix socket until stopped."""

    def __init__(self, server: grpc.aio.Server, socket_path: Path, program: Controlled) -> None:
        self._server = server
        self._socket_path = socket_path
        self._program = program

    @classmethod
    async def start(cls, socket_path: Path, program: Controlled) -> "ControlServer":
        """Listen; `BadConfiguration` when the path is too long, cannot be used, or another daemon answers on it."""
        address = _address(socket_path)
        await _refuse_a_second(socket_path)
        server = grpc.aio.server(options=_OPTIONS)
        control_pb2_grpc.add_ControlServicer_to_server(_Service(program), server)  # type: ignore[no-untyped-call]
        try:
            _bind(server, address, socket_path)
        except (OSError, RuntimeError) as error:
            raise BadConfiguration(f"cannot listen on {socket_path}: {error}; choose another --data-dir") from None
        await server.start()
        return cls(server, socket_path, program)

    async def stop(self) -> None:
        """Send watchers the last status, end their streams, remove the socket."""
        self._program.board.close()
        await self._server.stop(_STOP_SECONDS)
        self._socket_path.unlink(missing_ok=True)


def _address(socket_path: Path) -> str:
    path = os.fsencode(socket_path.absolute())
    if len(path) > MAX_SOCKET_PATH_BYTES:
        raise BadConfiguration(
            f"the socket path {socket_path} has {len(path)} bytes, and the system takes at most"
            f" {MAX_SOCKET_PATH_BYTES}; choose a shorter --data-dir"
        )
    return f"unix:{urllib.parse.quote(path)}"


def _bind(server: grpc.aio.Server, address: str, socket_path: Path) -> None:
    """Bind with the socket and its folder closed to other users."""
    socket_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket_path.unlink(missing_ok=True)
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(address)
    finally:
        os.umask(mask)


async def _refuse_a_second(socket_path: Path) -> None:
    """`BadConfiguration` when a living daemon listens; gRPC by itself would take its socket away in silence."""
    if not is_live(socket_path):
        return
    try:
        async with ControlClient(socket_path) as client:
            pid = str((await client.status_once(_PROBE_SECONDS)).pid)
    except UserError:
        pid = "unknown"
    raise BadConfiguration(f"already running (pid {pid}) on {socket_path.parent}; end it with: spes-peer leave")


def none_runs(folder: Path) -> UserError:
    """For whoever asks a daemon that is not there: what to do, which a small screen must not cut off, and how the last
    one ended, if there was one; or that one is starting or ending, and cannot be asked."""
    if pid := holder_of(folder):
        return UserError(f"the daemon on {folder} (pid {pid}) is starting or ending; ask again in a few seconds")
    ended = last_end(folder)
    return UserError(
        f"no daemon runs on this state folder ({folder}); start one with: spes-peer join{f'; {ended}' if ended else ''}"
    )


def is_live(socket_path: Path) -> bool:
    """Whether a daemon listens on `socket_path`; a socket that a dead one left is not live."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(os.fsencode(socket_path))
        except TimeoutError:
            return True  # its queue is full, so it lives
        except OSError:
            return False
    return True


class ControlClient:
    """A connection to the daemon on one state folder. Every failure is a `UserError` of one line."""

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path

    async def __aenter__(self) -> "ControlClient":
        # a pool of its own: a later connection must not inherit the back-off of an earlier one that failed
        options = (*_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.aio.insecure_channel(_address(self._socket_path), options=options)
        self._stub = control_pb2_grpc.ControlStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def watch(self, silence_seconds: float = SILENCE_SECONDS) -> AsyncIterator[Status]:
        """Statuses until the daemon ends its stream; `UserError` when it dies or is silent for `silence_seconds`."""
        call = self._stub.Watch(WatchRequest())
        try:
            while True:
                async with asyncio.timeout(silence_seconds):
                    status = await call.read()
                if not isinstance(status, Status):  # the end of the stream
                    return
                yield status
        except TimeoutError:
            raise UserError(f"the daemon on {self._socket_path.parent} is silent for {silence_seconds:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        finally:
            call.cancel()

    async def status_once(self, timeout_seconds: float = SILENCE_SECONDS) -> Status:
        """The present status."""
        async with contextlib.aclosing(self.watch(timeout_seconds)) as statuses:  # type: ignore[type-var]
            async for status in statuses:
                return status
        raise UserError(f"the daemon on {self._socket_path.parent} is ending")

    async def pause(self) -> str:
        """Ask to take no part after the open round; the daemon's answer."""
        return await self._command(self._stub.Pause, PauseRequest())

    async def resume(self) -> str:
        """Ask to take part again; the daemon's answer."""
        return await self._command(self._stub.Resume, ResumeRequest())

    async def leave(self, at_once: bool = False) -> str:
        """Ask to leave the run after the round, or at once, and to end; the daemon's answer."""
        return await self._command(self._stub.Leave, LeaveRequest(at_once=at_once))

    async def _command(self, call: Callable[..., Awaitable[CommandReply]], request: object) -> str:
        try:
            return (await call(request, timeout=COMMAND_SECONDS)).said
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None

    def _failure(self, error: grpc.aio.AioRpcError) -> UserError:
        folder = self._socket_path.parent
        if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
            return UserError(" ".join((error.details() or "the daemon refused").split()))
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            return none_runs(folder)
        return UserError(f"the daemon on {folder} failed: {error.code().name.lower()} {error.details()}")
