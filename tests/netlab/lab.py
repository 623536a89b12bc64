"""The lab: an internet of network namespaces, with public hosts on a bridge and homes behind routers.

The internet is a namespace too: a bridge for the public hosts, and a route to each home's router, which is a process
(`router`) between two TUN devices. Nothing leaves these namespaces: none of them leads to the machine's own network.
Their names carry the process id of their maker; what a killed one left, processes included, is removed by the next.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import pytest

from spes_peer.chaos import network
from spes_peer.chaos.network import ip, left_over, namespaces, remove, shape

Family = Literal["4", "6", "dual"]
Nat = Literal["cone", "symmetric"]

_PREFIX = "spes-netlab-"
_ROUTER = Path(__file__).with_name("router.py")
_GATEWAY = Path(__file__).with_name("gateway.py")
_CLONE_NEWNET = 0x40000000
_SECONDS = 20.0
_BRIDGE = "bridge"
_GATEWAYS = {"4": "11.77.0.1", "6": "2a11:77::1"}
"""Of the public hosts. Addresses as the internet has them, not private ones: programs treat those differently."""
_DEAD = {"4": "11.77.9", "6": "2a11:77:9::"}
"""What is sent there vanishes without an answer, wherever somebody has such an address."""


def missing() -> str:
    """Why this machine cannot have a lab; empty if it can."""
    return network.missing() or ("" if Path("/dev/net/tun").exists() else "no /dev/net/tun")


needs_lab = pytest.mark.skipif(bool(missing()), reason=missing() or "it can")


class Host:
    """A machine of the lab, which is a network namespace."""

    def __init__(self, space: str, addresses: Sequence[str], dead_address: str = "") -> None:
        self.space = space
        self.addresses = tuple(addresses)
        """At which others reach it."""
        self.dead_address = dead_address
        """It has this one too, and nobody reaches it there."""
        self.before = ("ip", "netns", "exec", space)
        """Stands before a program that is to run here."""

    @property
    def address(self) -> str:
        return self.addresses[0]

    def run(self, command: Sequence[str], seconds: float = 60.0) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self.before, *command], capture_output=True, text=True, timeout=seconds, check=False, errors="replace"
        )

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        return subprocess.Popen([*self.before, *command], **options)

    def socket(self, kind: socket.SocketKind = socket.SOCK_STREAM, version: int = 4) -> socket.socket:
        """One of this host's for the test's own process."""
        made: list[socket.socket] = []
        failures: list[OSError] = []

        def make() -> None:  # only this thread moves into the namespace, and ends
            try:
                with open(f"/run/netns/{self.space}") as file:
                    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "cannot enter the namespace")
                made.append(socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, kind))
                made[0].settimeout(_SECONDS)
            except OSError as error:
                failures.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return made[0]


class Home(Host):
    """A host behind a router; `address` is the one that it has there, `public_address` the router's."""

    def __init__(
        self, space: str, addresses: Sequence[str], public_address: str, router: "subprocess.Popen[str]"
    ) -> None:
        super().__init__(space, addresses)
        self.public_address = public_address
        self.router = router
        self._telling = threading.Lock()

    def forget(self) -> None:
        """All mappings, as a router does that starts again."""
        self.tell_router("forget")

    def forward(self, *ports: int) -> None:
        """Let everybody in at these ports, as its owner can tell a router."""
        for port in ports:
            self.tell_router(f"forward {port} {self.address} {port}")

    def offer_upnp(self, mode: str = "") -> list[str]:
        """Let the router open ports for who asks, or be one that "refuses", or is "silent"; what it was asked, as it
        comes."""
        asked: list[str] = []
        command = [sys.executable, str(_GATEWAY), self.address, self.public_address, *filter(None, [mode])]
        self._gateway = self.start(command, stdout=subprocess.PIPE, text=True)
        lines = self._gateway.stdout
        assert _line(lines) == "ready"

        def obey() -> None:
            for line in map(str.split, lines):
                asked.append(" ".join(line))
                self.tell_router(f"forward {' '.join(line[1:4])}" if line[0] == "open" else f"close {line[1]}")

        threading.Thread(target=obey, daemon=True).start()
        return asked

    def offer_upnp_no_more(self) -> None:
        self._gateway.kill()
        self._gateway.wait()

    def offer_nat_pmp(self) -> None:
        """Let the router open ports for who asks it with NAT-PMP."""
        self.tell_router(f"nat-pmp {_gateway(self.address)}")

    def tell_router(self, line: str) -> None:
        assert self.router.stdin is not None
        assert self.router.stdout is not None
        with self._telling:
            self.router.stdin.write(f"{line}\n")
            self.router.stdin.flush()
            assert _line(self.router.stdout) == "done"


class Lab:
    """`with Lab() as lab`: everything is gone when the block ends, the processes in it too."""

    def __init__(self) -> None:
        _remove_with_processes(left_over(_PREFIX))
        self._prefix = f"{_PREFIX}{os.getpid()}-{time.monotonic_ns() % 1_000_000}-"
        self._internet = f"{self._prefix}internet"
        self._num_hosts = 1
        self._routers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Lab":
        try:
            self._make_internet()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for router in self._routers:
            router.kill()
            router.communicate()
        _remove_with_processes([name for name in namespaces(_PREFIX) if name.startswith(self._prefix)])

    def public(self, family: Family = "4", up_mbit: float = 0, down_mbit: float = 0, has_dead: bool = False) -> Host:
        """A host that everybody reaches; 0 Mbit/s is no limit. `has_dead`: it has a second address, of the same
        family (of IPv6 for "dual"), at which nobody reaches it."""
        number, space = self._new_space("host")
        cable = f"cable{number}"
        ip("-n", self._internet, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", self._internet, "link", "set", cable, "addrgenmode", "none", "master", _BRIDGE, "up")
        ip("-n", space, "link", "set", "eth0", "addrgenmode", "none")
        ip("-n", space, "link", "set", "eth0", "up")
        addresses = []
        for version in _versions(family):
            addresses.append(f"{_GATEWAYS[version].removesuffix('1')}{_numbered(version, number)}")
            _add_address(space, "eth0", f"{addresses[-1]}/{24 if version == '4' else 64}")
            ip("-n", space, f"-{version}", "route", "add", "default", "via", _GATEWAYS[version], "dev", "eth0")
        dead = ""
        if has_dead:
            dead = f"{_DEAD['4']}.{number}" if family == "4" else f"{_DEAD['6']}{number:x}"
            _add_address(space, "eth0", f"{dead}/{32 if family == '4' else 128}")
        _shape(space, "eth0", up_mbit)
        _shape(self._internet, cable, down_mbit)
        return Host(space, addresses, dead)

    def home(
        self,
        nat: Nat = "cone",
        family: Family = "4",
        up_mbit: float = 0,
        down_mbit: float = 0,
        delay_ms: float = 0,
        forget_seconds: float = 300,
    ) -> Home:
        """A host behind a router of its own, which lets in nothing that was not asked for. `delay_ms` each way; what
        has been quiet for `forget_seconds` is forgotten. IPv6 addresses are not translated."""
        number, space = self._new_space("home")
        lan, wan = f"lan{number}", f"wan{number}"
        private, public = f"192.168.{number}.2", _home_address(number)
        router = self._start_router(lan, wan, public, nat, forget_seconds, delay_ms / 1000)
        ip("-n", self._internet, "link", "set", lan, "netns", space)
        ip("-n", space, "link", "set", lan, "name", "eth0")
        addresses = []
        for device_space, device in ((space, "eth0"), (self._internet, wan)):
            ip("-n", device_space, "link", "set", device, "addrgenmode", "none")
            ip("-n", device_space, "link", "set", device, "up")
        for version in _versions(family):
            own = private if version == "4" else f"2a11:77:1:{number:x}::2"
            addresses.append(own)
            _add_address(space, "eth0", f"{own}/24" if version == "4" else own)
            towards = ("via", _gateway(private), "dev", "eth0", "onlink") if version == "4" else ("dev", "eth0")
            ip("-n", space, f"-{version}", "route", "add", "default", *towards)
            ip("-n", self._internet, f"-{version}", "route", "add", public if version == "4" else own, "dev", wan)
        _shape(space, "eth0", up_mbit)
        _shape(self._internet, wan, down_mbit)
        return Home(space, addresses, public, router)

    def neighbour(self, home: Home) -> Host:
        """A second host in a home, the only other one, with a private IPv4 address and behind the same router."""
        number, space = self._new_space("neighbour")
        cable, own = f"side{number}", f"{home.address.rpartition('.')[0]}.3"
        ip("-n", home.space, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", home.space, "link", "set", cable, "up")
        ip("-n", home.space, "route", "add", own, "dev", cable)
        home.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])  # it lies between the other and the router
        ip("-n", space, "link", "set", "eth0", "up")
        _add_address(space, "eth0", f"{own}/24")
        ip("-n", space, "route", "add", "default", "via", home.address, "dev", "eth0")
        return Host(space, [own])

    def move(self, home: Home) -> None:
        """Give a home's router another public address, as providers do; it forgets its mappings."""
        number = int(home.public_address.rpartition(".")[2])
        new = _home_address(number, moved=True)
        ip("-n", self._internet, "route", "add", new, "dev", f"wan{number}")
        ip("-n", self._internet, "route", "delete", home.public_address)
        home.tell_router(f"address {new}")
        home.public_address = new

    def _make_internet(self) -> None:
        ip("netns", "add", self._internet)
        ip("-n", self._internet, "link", "add", _BRIDGE, "type", "bridge")
        ip("-n", self._internet, "link", "set", _BRIDGE, "addrgenmode", "none")
        ip("-n", self._internet, "link", "set", _BRIDGE, "up")
        for version, bits in (("4", 24), ("6", 64)):
            _add_address(self._internet, _BRIDGE, f"{_GATEWAYS[version]}/{bits}")
        _add_address(self._internet, _BRIDGE, "fe80::1/64")  # from which it asks where hosts are that it forwards to
        ip("-n", self._internet, "route", "add", "blackhole", f"{_DEAD['4']}.0/24")
        ip("-n", self._internet, "-6", "route", "add", "blackhole", f"{_DEAD['6']}/64")
        # what is sent to somebody's private address gets nowhere, and no answer
        ip("-n", self._internet, "route", "add", "blackhole", "192.168.0.0/16")
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
        subprocess.run(["ip", "netns", "exec", self._internet, "sh", "-c", forward], timeout=_SECONDS, check=True)

    def _new_space(self, kind: str) -> tuple[int, str]:
        self._num_hosts += 1
        assert self._num_hosts < 120
        space = f"{self._prefix}{kind}{self._num_hosts}"
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        return self._num_hosts, space

    def _start_router(self, lan: str, wan: str, *settings: object) -> "subprocess.Popen[str]":
        command = ["ip", "netns", "exec", self._internet, sys.executable, str(_ROUTER), lan, wan]
        router = subprocess.Popen(
            [*command, *map(str, settings)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._routers.append(router)
        assert router.stdout is not None
        assert _line(router.stdout) == "ready"
        return router


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def _versions(family: Family) -> Sequence[str]:
    return ("4", "6") if family == "dual" else (family,)


def _numbered(version: str, number: int) -> str:
    return str(number) if version == "4" else f"{number:x}"


def _gateway(private: str) -> str:
    """The router's own address in the home."""
    return f"{private.rpartition('.')[0]}.1"


def _home_address(number: int, moved: bool = False) -> str:
    return f"11.77.{2 if moved else 1}.{number}"


def _add_address(space: str, device: str, address: str) -> None:
    without_waiting = ("nodad",) if ":" in address else ()  # nobody else has it
    ip("-n", space, "address", "add", address, "dev", device, *without_waiting)


def _shape(space: str, device: str, mbit: float) -> None:
    """Limit what the device sends; 0 is no limit."""
    if mbit:
        shape(space, device, mbit)


def _line(stream: IO[str]) -> str:
    """The next one of a router, which answers at once or has ended."""
    return stream.readline().strip()


def _remove_with_processes(names: Sequence[str]) -> None:
    for name in names:
        for number in ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
    remove(names)
