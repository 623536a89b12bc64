"""Child processes of a daemon: started, spoken to in frames, and never outliving their parent.

A child gets one end of a socket pair as its standard input. End of file there means that the parent is gone, whatever
killed it, and where Linux can the child is tied to it from its first moment (`tied`); so none is orphaned. Standard
output and error go to a log file, because C++ libraries write there as they please.
"""

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar, cast

import psutil
from google.protobuf.message import Message

from spes_peer import logs, troubles
from spes_peer.errors import (
    BadMessage,
    ChildDied,
    ChildDiskTrouble,
    ChildFailed,
    ChildOutOfMemory,
    ChildStalled,
    ChildUnfit,
    DiskTrouble,
    NoDevice,
    SpesError,
)
from spes_peer.wire import frames
from spes_peer.wire.children_pb2 import Frame

M = TypeVar("M", bound=Message)
logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
STOP_SECONDS = 3.0  # of each child, one after another, and still all ends within ten
_INTERRUPTED_EXIT = 130
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0
LONG_LIFE_SECONDS = 60.0  # a process that lived so long did not end because of how it was started
_MOST_DESCRIPTORS = 8_192  # some systems allow any number, and some programs count through all that they may have
_FEW_DESCRIPTORS = 256  # a node takes 30, and up to two for each peer
_LOW_NICE = 10
_MOST_STARTS = 4  # of a process that dies while it starts, before whoever starts us hears of it
# What a child says in `Frame.error_kind`.
OUT_OF_MEMORY = "out of memory"
DISK_TROUBLE = "disk trouble"
NO_DEVICE = "no device"
OUT_OF_MEMORY_EXIT = 70  # with which a child then ends


@dataclasses.dataclass
class Service:
    """What one of our processes is, for whoever watches: since when, and what happened last."""

    name: str
    state: Literal["starting", "running", "restarting", "resting"] = "starting"
    since_at: float = dataclasses.field(default_factory=time.time)
    why: str = ""

    def say(self, state: Literal["starting", "running", "restarting", "resting"], why: str = "") -> None:
        """Enter a state, or give a new reason in it."""
        if state != self.state:
            self.since_at = time.time()
        self.state, self.why = state, why


class Child:
    """The parent's end: calls with answers, events, and the end of the child."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", end: socket.socket) -> None:
        self.name = name
        self.process = process
        self.ended = asyncio.Event()
        self.on_event: Callable[[Message], None] = lambda _message: None
        self._socket = end
        self._has_spoken = False
        self._numbers = 0
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._sending = asyncio.Lock()
        self._reading = asyncio.create_task(self._read(), name=f"read {name}")

    @classmethod
    def start(cls, name: str, module: str, log_path: Path, environment: dict[str, str] | None = None) -> "Child":
        """Start `python -m module`; what it prints is appended to `log_path`, or lost where the disk takes no log. Call
        inside a running loop."""
        logs.bound(log_path)
        ours, theirs = socket.socketpair()
        with _opened(log_path) as log, theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "spes_peer.tied", module, str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a Ctrl-C in the terminal is the daemon's to handle
            )
        ours.setblocking(False)
        return cls(name, process, ours)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def call(self, request: Message, reply: type[M], timeout_seconds: float) -> M:
        """The child's answer; `ChildFailed` says why there is none."""
        if self.ended.is_set():
            raise ChildDied(f"the {self.name} process has ended")
        self._numbers += 1
        number = self._numbers
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._send(frames.pack(frames.request(number, request)))
                frame = await future
        except TimeoutError:
            raise ChildStalled(
                f"the {self.name} process did not answer {request.DESCRIPTOR.name} in {timeout_seconds:.0f} s"
            ) from None
        except OSError as error:
            raise ChildDied(f"the {self.name} process is gone: {error}") from None
        finally:
            del self._waiting[number]
        if frame.error:
            raise _error_in(frame)
        message = frames.message_in(frame)
        if not isinstance(message, reply):
            raise ChildFailed(f"the {self.name} process answered {frame.kind} to {request.DESCRIPTOR.name}")
        return message

    async def _send(self, content: bytes) -> None:
        async with self._sending:
            try:
                await asyncio.get_running_loop().sock_sendall(self._socket, content)
            except asyncio.CancelledError:
                # Half a frame is on its way: the child could understand nothing that came after it.
                self.kill()
                raise

    async def stop(self) -> None:
        """Close the child's input, which asks it to end; kill it if it does not within `STOP_SECONDS`.

        One that has not said a word is still importing its libraries, hears nothing and has nothing to put in order.
        """
        if not self._has_spoken:
            self.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._exited()
        except TimeoutError:
            logger.warning("killing a process that does not end name=%s pid=%d", self.name, self.pid)
            self.kill()
            await self._exited()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._socket.close()

    def kill(self) -> None:
        """Kill the child and whatever it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _exited(self) -> int:
        while self.process.poll() is None:  # noqa: ASYNC110 - the kernel tells nobody without a child watcher
            await asyncio.sleep(0.02)
        return cast(int, self.process.returncode)

    async def _read(self) -> None:
        reader = frames.FrameReader()
        loop = asyncio.get_running_loop()
        try:
            while content := await loop.sock_recv(self._socket, _READ_BYTES):
                for frame in reader.feed(content):
                    self._take(frame)
        except (OSError, BadMessage) as error:
            logger.warning("lost a process name=%s reason=%s", self.name, error)
        finally:
            self.ended.set()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ChildDied(f"the {self.name} process has ended"))

    def _take(self, frame: Frame) -> None:
        self._has_spoken = True
        if frame.id == 0:
            self.on_event(frames.message_in(frame))
        elif (future := self._waiting.get(frame.id)) and not future.done():
            future.set_result(frame)


def _opened(log_path: Path) -> BinaryIO:
    try:
        return log_path.open("ab")
    except OSError as error:
        logger.warning("a process starts without its log path=%s reason=%s", log_path, error)
        return open(os.devnull, "ab")


def kind_of(error: BaseException) -> str:
    """The `Frame.error_kind` of a child's own error."""
    if isinstance(error, NoDevice):
        return NO_DEVICE
    return DISK_TROUBLE if isinstance(error, DiskTrouble) else ""


def _error_in(frame: Frame) -> ChildFailed:
    if frame.error_kind == OUT_OF_MEMORY:
        return ChildOutOfMemory(frame.error)
    if frame.error_kind == DISK_TROUBLE:
        return ChildDiskTrouble(errno.EIO, frame.error)
    if frame.error_kind == NO_DEVICE:
        return ChildUnfit(frame.error)
    return ChildFailed(frame.error)


class Backoff:
    """Pauses before what has ended is started again: twice as long each time, short again after a long life."""

    def __init__(self) -> None:
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._started_at = time.monotonic()

    async def pause(self, name: str, longest_seconds: float = 0.0) -> None:
        """Say that `name` has ended, and wait. Its next life counts from the return.

        With `longest_seconds` a long life does not shorten the pauses, which grow up to it: for what will end again."""
        if not longest_seconds and time.monotonic() - self._started_at > LONG_LIFE_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        logger.warning("%s has ended and is started again in_seconds=%.1f", name, self._pause_seconds)
        await asyncio.sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, longest_seconds or LAST_PAUSE_SECONDS)
        self._started_at = time.monotonic()


async def start_surely(
    name: str, launch: Callable[[], Awaitable[None]], again: tuple[type[SpesError], ...] = (ChildFailed,)
) -> None:
    """Launch a process for the first time, and again a few times if it fails with one of `again`: whatever killed it
    while it started need not kill the next."""
    backoff = Backoff()
    for _ in range(_MOST_STARTS - 1):
        try:
            return await launch()
        except again as error:
            logger.warning("%s does not start reason=%s", name, error)
            await backoff.pause(name)
    return await launch()


def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM, SIGINT or SIGHUP, for an end in good order; a second one ends this process at
    once, and its children with it. Call inside a running loop."""
    was_asked = False

    def take() -> None:
        nonlocal was_asked
        if was_asked:
            os._exit(_INTERRUPTED_EXIT)
        was_asked = True
        logger.info("asked to end by a signal")
        stop()

    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, take)


def let_others_go_first(pid: int) -> None:
    """Give a process that has just been started low priority, for processors and disks; what it starts inherits it."""
    with contextlib.suppress(psutil.Error, OSError):  # it is gone, or the system has no such thing
        process = psutil.Process(pid)
        if sys.platform == "win32":
            process.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
            return
        process.nice(max(_LOW_NICE, process.nice()))
        if sys.platform == "linux":
            process.ionice(psutil.IOPRIO_CLASS_IDLE)


def use_all_descriptors() -> None:
    """Let this process and its children have as many files and connections open as the system allows, and say so where
    those are few: shells allow 1024, or 256, to be on the safe side."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft != resource.RLIM_INFINITY and soft < _FEW_DESCRIPTORS:
        troubles.board.set(
            "descriptors",
            f"this machine lets a program have only {soft} files and connections open at once, which is too few for"
            f" a run of many peers; allow {_FEW_DESCRIPTORS} or more (ulimit -n, LimitNOFILE in systemd)",
        )


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a program to end. Not SIGHUP where it is ignored: who started us with nohup wants us to stay."""
    asked = (signal.SIGTERM, signal.SIGINT)
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)


def socket_to_parent() -> socket.socket:
    """The child's end, taken from standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=os.dup(0))
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    return end
