"""The nodes of a run on this machine, and what can be done to them.

Whatever is started here carries in its environment who made it and which node it belongs to, however deep and in
whatever session, and is found by that: to be stopped, to be weighed, and to be named when it outlives its node.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from spes_peer.chaos.network import Network, Spot
from spes_peer.chaos.schedule import BOOTSTRAP
from spes_peer.errors import BadConfiguration, ChildFailed, SpesError
from spes_peer.local_run import Launch, NodeProcess, Volunteer, address_of, bootstrap_node, stop_all
from spes_peer.ports import choose_ports

_RUN_MARK, _NODE_MARK = "SPES_CHAOS_RUN", "SPES_CHAOS_NODE"
_OWN_PORT = 4510  # in a network of its own every port is free
_OTHER_PORTS = range(20_000, 32_000, 3)
_END_SECONDS = 5.0  # within which children end with their node
_LEAVE_SECONDS = 90.0
_POLL_SECONDS = 0.1
_KINDS = {
    "spes_peer.training": "trainer",
    "spes_peer.membership.dht_node": "dht node",
    "spes_peer.exchange.libp2p_node": "libp2p node",
    "spes_peer": "daemon",
    "bootstrap": "daemon",
}


class Node:
    """One node: where it is started, its process, and whether it is away on purpose."""

    def __init__(self, name: str, spot: Spot, start: Callable[[], NodeProcess]) -> None:
        self.name = name
        self.spot = spot
        self.is_struck = False
        self._start = start
        self.process = start()

    @property
    def has_ended(self) -> bool:
        return self.process.popen.poll() is not None

    def start_again(self) -> None:
        self.process = self._start()
        self.is_struck = False


class Nodes:
    """All nodes of one run, the bootstrap node among them."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self.orphans: list[str] = []
        """Processes that outlived their node, as they were found."""
        self._network = network
        self._address = ""

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    async def start_bootstrap(self) -> str:
        """Its address, once it serves."""
        spot = self._network.add(BOOTSTRAP)
        port = _OWN_PORT if spot.before else _three_free_ports(spot.address)

        def start() -> NodeProcess:
            return bootstrap_node(self.folder, host=spot.address, port=port, launch=_launch(BOOTSTRAP, spot))

        node = self.nodes[BOOTSTRAP] = Node(BOOTSTRAP, spot, start)
        self._address = await address_of(node.process, self.folder)
        return self._address

    def add_volunteer(self, name: str) -> None:
        """Start a volunteer that the run does not know yet."""
        spot = self._network.add(name)

        def start() -> NodeProcess:
            return Volunteer(name, self.folder, self._address, spot.address, launch=_launch(name, spot))

        self.nodes[name] = Node(name, spot, start)

    @property
    def volunteers(self) -> dict[str, Volunteer]:
        """Their present processes, by name."""
        return {n.name: n.process for n in self.nodes.values() if isinstance(n.process, Volunteer)}

    def chain_folder(self, name: str) -> Path:
        """Where the node keeps its records."""
        return self.folder / ("run" if name == BOOTSTRAP else name) / "records"

    def ended(self) -> list[Node]:
        """Those that nobody struck, and whose process has ended."""
        return [node for node in self.nodes.values() if node.has_ended and not node.is_struck]

    # ---- what is done to them ----

    async def kill(self, name: str) -> None:
        """SIGKILL to the node alone; whatever of it is left after some seconds is an orphan."""
        node = self[name]
        node.is_struck = True
        node.process.popen.kill()
        await self._until_gone(name)

    def kill_child(self, name: str, child: str) -> bool:
        """False if there is none at the moment."""
        for process in processes_of(name):
            if kind_of(process) == child:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                return True
        return False

    def stop(self, name: str) -> None:
        """SIGSTOP to the node and all below it."""
        self[name].is_struck = True
        for _ in range(2):  # a child may be born meanwhile
            _signal(processes_of(name), signal.SIGSTOP)

    def let_go_on(self, name: str) -> None:
        _signal(processes_of(name), signal.SIGCONT)
        self[name].is_struck = False

    async def leave(self, name: str) -> str:
        """Ask the volunteer to leave, and wait until it has; else what went wrong."""
        node = self[name]
        node.is_struck = True
        try:
            async with self.volunteers[name].client() as client:
                await client.leave()
            async with asyncio.timeout(_LEAVE_SECONDS):
                while not node.has_ended:  # noqa: ASYNC110 - the kernel tells nobody without a child watcher
                    await asyncio.sleep(_POLL_SECONDS)
        except (SpesError, TimeoutError) as error:
            await self.kill(name)
            return f"it did not leave and was killed: {error or f'not in {_LEAVE_SECONDS:.0f} s'}"
        await self._until_gone(name)
        return ""

    async def _until_gone(self, name: str) -> None:
        """Until no process of the node is left."""
        deadline = time.monotonic() + _END_SECONDS
        while left := processes_of(name):
            if time.monotonic() > deadline:
                self._bury(left)
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _bury(self, left: Iterable[psutil.Process]) -> None:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.orphans.append(f"{kind_of(process)} of {_mark(process, _NODE_MARK)}, pid {process.pid}")
                process.kill()

    def stop_all(self) -> None:
        """End every node, and whatever is left of any."""
        _signal(marked(), signal.SIGCONT)  # a stopped one could not end in good order
        stop_all([node.process for node in self.nodes.values()])
        deadline = time.monotonic() + _END_SECONDS
        while marked() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._bury(marked())


def _launch(name: str, spot: Spot) -> Launch:
    return Launch(spot.before, {_RUN_MARK: str(os.getpid()), _NODE_MARK: name})


def _three_free_ports(host: str) -> int:
    """The first of three in a row."""
    for base in random.sample(_OTHER_PORTS, 100):
        with contextlib.suppress(BadConfiguration):
            return choose_ports(host, base).grpc
    raise ChildFailed(f"no three free ports in a row on {host}")


# ---- processes, by their marks ----


def marked() -> list[psutil.Process]:
    """Every process that this one made, however far below it."""
    return [process for process, maker in _all_marked() if maker == os.getpid()]


def processes_of(name: str) -> list[psutil.Process]:
    return [process for process in marked() if _mark(process, _NODE_MARK) == name]


def end_leftovers() -> None:
    """End what the processes of another time left whose maker is dead: stopped ones do not hear that it died."""
    for process, maker in _all_marked():
        if not psutil.pid_exists(maker):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def kind_of(process: psutil.Process) -> str:
    """What it is: "daemon", "trainer", "p2pd" …; "gone" when it is."""
    try:
        arguments = process.cmdline()
        name = process.name()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return "gone"
    return next((_KINDS[argument] for argument in arguments if argument in _KINDS), name)


def memory_by_kind() -> Iterator[tuple[str, int, int]]:
    """Kind, process id and bytes of its own of all that runs, without pages of files, of which a trainer maps its data;
    what the bootstrap node runs are kinds of their own."""
    for process in marked():
        with contextlib.suppress(psutil.NoSuchProcess):
            is_bootstrap = _mark(process, _NODE_MARK) == BOOTSTRAP
            memory = process.memory_info()
            own_bytes = memory.rss - getattr(memory, "shared", 0)  # psutil says it on Linux alone
            yield f"{'bootstrap ' if is_bootstrap else ''}{kind_of(process)}", process.pid, own_bytes


def _all_marked() -> Iterator[tuple[psutil.Process, int]]:
    """With the process id of their maker."""
    for process in psutil.process_iter():
        maker = _mark(process, _RUN_MARK)
        if maker.isdigit() and process.status() != psutil.STATUS_ZOMBIE:
            yield process, int(maker)


def _mark(process: psutil.Process, mark: str) -> str:
    try:
        return process.environ().get(mark, "")
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
