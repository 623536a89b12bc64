"""A network that can be parted: each node in a network namespace of its own, with a cable (veth) into a switch.

The switch is a namespace too, with two bridges in it: a partition plugs the cables of some nodes into the second
bridge, healing plugs them back. Connections see what they would see of a broken line: silence. All of it lies in
namespaces, so nothing can collide with this machine's own network, and what is removed with them is everything. Their
names carry the process id of their maker: what a killed maker left is removed by the next one.

Needs Linux, root, and `ip` of iproute2; for links that are shaped, its `tc` too.
"""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import psutil

from spes_peer.errors import ChildFailed

logger = logging.getLogger(__name__)

PREFIX = "spes-chaos-"
_COMMAND_SECONDS = 20.0
_BITS = 24
_MAX_NODES = 250
_TOGETHER, _APART = "together", "apart"
# Of a shaped link: what passes at once, at least, which also makes up for a busy machine that sends late, and how long
# its queue may become, as in a router at home.
_LINK_BURST_BYTES = 16 << 10
_LINK_BURST_SECONDS = 0.02
_LINK_QUEUE_MILLISECONDS = 100


def missing() -> str:
    """Why this machine cannot have network namespaces with shaped links; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(tools)} not found: apt-get install iproute2" if tools else ""


@dataclass(frozen=True)
class Spot:
    """Where in the network a node is started."""

    address: str
    before: tuple[str, ...] = ()
    """Stands before the program."""
    space: str = ""
    """Its network namespace; empty for this machine's own."""


class Network(Protocol):
    can_part: bool

    def add(self, name: str) -> Spot:
        """A spot for a new node."""

    def part(self, names: Collection[str]) -> None:
        """These reach one another and nobody else, until `heal`."""

    def heal(self) -> None: ...

    def close(self) -> None: ...


class Loopback:
    """All nodes on this machine's loopback, where nothing can be parted."""

    can_part = False

    def add(self, name: str) -> Spot:
        return Spot("127.0.0.1")

    def part(self, names: Collection[str]) -> None:
        raise AssertionError("loopback cannot be parted")

    def heal(self) -> None:
        pass

    def close(self) -> None:
        pass


class Switched:
    """A switch and cables. `ChildFailed` says why this machine cannot have it."""

    can_part = True

    def __init__(self) -> None:
        remove_leftovers()
        self._prefix = f"{PREFIX}{os.getpid()}-"
        self._switch = f"{self._prefix}switch"
        self._nodes: list[str] = []
        try:
            ip("netns", "add", self._switch)
            for bridge in (_TOGETHER, _APART):
                ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
                ip("-n", self._switch, "link", "set", bridge, "up")
        except ChildFailed:
            self.close()
            raise

    def add(self, name: str) -> Spot:
        assert len(self._nodes) < _MAX_NODES
        self._nodes.append(name)
        number = len(self._nodes)
        space, cable, address = f"{self._prefix}{name}", f"cable{number}", f"10.77.0.{number}"
        ip("netns", "add", space)
        ip("-n", self._switch, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", self._switch, "link", "set", cable, "master", _TOGETHER, "up")
        ip("-n", space, "address", "add", f"{address}/{_BITS}", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", space, "link", "set", device, "up")
        return Spot(address, ("ip", "netns", "exec", space), space)

    def part(self, names: Collection[str]) -> None:
        self._plug(names, _APART)

    def heal(self) -> None:
        self._plug(self._nodes, _TOGETHER)

    def _plug(self, names: Collection[str], bridge: str) -> None:
        for name in names:
            ip("-n", self._switch, "link", "set", f"cable{self._nodes.index(name) + 1}", "master", bridge)

    def close(self) -> None:
        """Remove everything, also when something of it is gone already. Processes must have ended before: a namespace
        lives as long as one of them."""
        remove(name for name in namespaces() if name.startswith(self._prefix))


def remove_leftovers() -> None:
    """Remove what was made by processes that are dead."""
    remove(left_over(PREFIX))


def left_over(prefix: str) -> list[str]:
    """Namespaces of makers that are dead."""
    return [name for name in namespaces(prefix) if not psutil.pid_exists(_maker(name, prefix))]


def namespaces(prefix: str = PREFIX) -> list[str]:
    """Those named with `prefix` and the process id of their maker, whoever made them."""
    names = [line.split()[0] for line in ip("netns", "list").splitlines() if line]
    return [name for name in names if name.startswith(prefix) and _maker(name, prefix)]


def _maker(name: str, prefix: str) -> int:
    """Its process id; 0 for a name of another kind."""
    number = name.removeprefix(prefix).partition("-")[0]
    return int(number) if number.isdigit() else 0


def remove(names: Iterable[str]) -> None:
    """Remove namespaces; what cannot be removed is logged."""
    for name in names:
        try:
            ip("netns", "delete", name)
        except ChildFailed as error:  # the others can still go
            logger.warning("a network namespace stays name=%s reason=%s", name, error)


def shape(space: str, device: str, mbit: float) -> None:
    """Limit what the device sends, to `mbit` Mbit/s."""
    burst_bytes = max(_LINK_BURST_BYTES, int(mbit * 1e6 / 8 * _LINK_BURST_SECONDS))
    limit = ("rate", f"{mbit}mbit", "burst", str(burst_bytes), "latency", f"{_LINK_QUEUE_MILLISECONDS}ms")
    _run("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", *limit)


def ip(*arguments: str) -> str:
    """What `ip` prints; `ChildFailed` says why it failed."""
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChildFailed(f"cannot run {command[0]}: {error}") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        raise ChildFailed(f"{' '.join(command)}: {why}")
    return done.stdout
