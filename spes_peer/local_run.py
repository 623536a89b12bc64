"""A run on this machine as real processes, for the commands that make one to look at it or to try it.

Everything here is what a person could type in several terminals: `run new` and `sign`, `spes-bootstrap`, `join`,
`leave`. Each node is a process of its own that ends with the one that started it, and writes to a log in the folder of
the run.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spes_peer.control import ControlClient
from spes_peer.errors import BadConfiguration, ChildFailed, SpesError, UserError
from spes_peer.exchange.addresses import Endpoint
from spes_peer.files import write_whole
from spes_peer.organize import read_manifest
from spes_peer.process import ending_signals
from spes_peer.run.manifest import SignedManifest, parse_run_file
from spes_peer.wire.control_pb2 import Status

START_SECONDS = 180.0
_STOP_SECONDS = 20.0
_FAILED_LOG_LINES = 15
_INTERRUPTED = 130
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Launch:
    """How a node is started: what stands before the program, and what is added to its environment."""

    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class NodeProcess:
    """One node: its process and its log."""

    def __init__(self, name: str, folder: Path, launch: Launch, module: str, *arguments: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [*launch.before, sys.executable, "-m", module, *arguments, "--with-parent"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # what libraries leave in the temporary folder goes with the run's
                env={**os.environ, "TMPDIR": str(temporary), **launch.environment},
                start_new_session=True,  # Ctrl-C is ours to handle
            )

    def last_lines(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").strip().splitlines()[-_FAILED_LOG_LINES:])

    def check(self) -> None:
        """Raise `ChildFailed`, with the end of its log on stderr, if the process has ended."""
        if self.popen.poll() is not None:
            print(self.last_lines(), file=sys.stderr)
            raise ChildFailed(f"{self.name} ended with code {self.popen.returncode}")


class Volunteer(NodeProcess):
    """A volunteer, and what its control API last said."""

    def __init__(
        self,
        name: str,
        folder: Path,
        address: str,
        host: str = _LOOPBACK,
        is_reachable: bool = True,
        launch: Launch | None = None,
    ) -> None:
        self.data_dir = folder / name
        self.status: Status | None = None
        options = ["--bootstrap", address, "--data-dir", str(self.data_dir), "--name", name, "--host", host]
        options += ["--device", "cpu", "--threads", "1", "--max-subsets", "1", "--no-tui", "--yes"]
        options += [
            "--config",
            os.devnull,
            "--on-battery",
            "--priority",
            "normal",
        ]  # somebody looks on, and waits for it
        options += [] if is_reachable else ["--no-inbound"]
        super().__init__(name, folder, launch or Launch(), "spes_peer", "join", *options)

    def client(self) -> ControlClient:
        return ControlClient(self.data_dir / "control.sock")


async def in_folder(
    keep: Path | None, prefix: str, work: Callable[[Path], Coroutine[Any, Any, int]], stop: Callable[[], None]
) -> int:
    """The exit code of `work`, done in a new folder; 130 when a signal ends it. Whatever way it ends, `stop` is called
    then, and the folder removed unless it is to be kept."""
    main = asyncio.current_task()
    assert main is not None
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    folder = _make_folder(keep, prefix)
    try:
        return await work(folder)
    except asyncio.CancelledError:
        print("stopping", file=sys.stderr)
        return _INTERRUPTED
    finally:
        stop()
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _make_folder(keep: Path | None, prefix: str) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    if keep.exists() and any(keep.iterdir()):
        raise UserError(f"{keep} is not empty; name a new folder with --keep")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.absolute()


def check_report_folder(report: Path | None) -> None:
    """`UserError` before anything is started, rather than at the end."""
    if report is not None and not report.absolute().parent.is_dir():
        raise UserError(f"there is no folder {report.absolute().parent} for the report; make it first")


def check_enough_peers(run_toml: str, num_peers: int) -> None:
    """`UserError` for a run that would wait for more volunteers than there will be."""
    min_peers = parse_run_file(run_toml).run.min_peers
    if min_peers > num_peers:
        raise UserError(
            f"the run waits for {min_peers} volunteers (min_peers);"
            " start as many with --peers, or give another run file with --config"
        )


async def create_run(folder: Path, run_toml: str, corpus: Path | None = None) -> SignedManifest:
    """Make `folder`/run, in a process, which can be ended at any moment."""
    write_whole(folder / "run.toml", run_toml.encode())
    arguments = [str(folder / "run"), str(folder / "run.toml"), *([str(corpus)] if corpus is not None else [])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spes_peer.organize", *arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        why = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise BadConfiguration(why) if process.returncode == BadConfiguration.exit_code else ChildFailed(why)
    return read_manifest(folder / "run")


def bootstrap_node(
    folder: Path, *options: str, host: str = _LOOPBACK, port: int = 0, launch: Launch | None = None
) -> NodeProcess:
    """Start the bootstrap node of `folder`/run; `address_of` waits until it serves."""
    (folder / "run" / "address").unlink(missing_ok=True)
    fixed = ["--run", str(folder / "run"), "--listen", str(Endpoint(host, port))]
    return NodeProcess("bootstrap", folder, launch or Launch(), "bootstrap", *fixed, *options)


async def address_of(bootstrap: NodeProcess, folder: Path) -> str:
    """Where it serves, once it does; `ChildFailed` when it ends before or takes `START_SECONDS`."""
    address_file = folder / "run" / "address"
    deadline = time.monotonic() + START_SECONDS
    while not address_file.exists():
        bootstrap.check()
        if time.monotonic() > deadline:
            raise ChildFailed(f"the bootstrap node did not start in {START_SECONDS:.0f} s")
        await asyncio.sleep(0.1)
    return address_file.read_text().strip()


async def leave_all(volunteers: Iterable[Volunteer]) -> None:
    """Ask all to leave at once; who does not answer is ended by `stop_all`."""

    async def leave(volunteer: Volunteer) -> None:
        with contextlib.suppress(SpesError):
            async with volunteer.client() as client:
                await client.leave(at_once=True)

    await asyncio.gather(*(leave(volunteer) for volunteer in volunteers))


def stop_all(nodes: Sequence[NodeProcess]) -> None:
    """End what is still there: a request first, then force."""
    processes = [node.popen for node in nodes]
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
