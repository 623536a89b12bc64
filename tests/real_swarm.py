"""Runs of real processes on this machine for the tests of whole swarms: started, struck, looked at from outside."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from status_asker import StatusAsker

from spes_peer.errors import BadConfiguration
from spes_peer.exchange.addresses import Endpoint
from spes_peer.identity import Identity, PeerId
from spes_peer.organize import create_run, read_manifest, run_file_text
from spes_peer.ports import choose_ports
from spes_peer.run.certificates import Checks
from spes_peer.run.chain import Chain
from spes_peer.run.records import Record

START_SECONDS = 240.0
LOOPBACK = "127.0.0.1"

_asker = StatusAsker()


def small_run(**values: Any) -> str:
    """The demo's run file with a smaller model for three volunteers; `values` replace what it says."""
    small = {
        "min_peers": 3,
        "d_model": 48,
        "num_layers": 2,
        "num_experts": 6,
        "expert_hidden": 64,
        "sequence_length": 32,
        "num_subsets": 3,
        "steps_per_round": 10,
        "batch_sequences": 24,
        "block_elements": 8192,
        "merge_interval_steps": 10,
        "merge_warmup_steps": 100,
        "snapshot_rounds": 2,
        "lr": 1e-2,
        "warmup_steps": 5,
        **values,
    }
    lines = []
    for line in run_file_text("demo", None).splitlines():
        key = line.partition("=")[0].strip()
        lines.append(f"{key} = {small.pop(key)}" if key in small else line)
    assert not small, f"no such keys in the demo's run file: {list(small)}"
    return "\n".join(lines)


@dataclass
class Place:
    """A folder with a short path; whatever is started here carries its name in the environment, and is found by it."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.path), "SPES_TEST_PLACE": str(self.path)}

    def processes(self) -> list[psutil.Process]:
        """Everything that was started here and still runs, however deep and in whatever session."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if (
                    process.environ().get("SPES_TEST_PLACE") == str(self.path)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def start(
        self, *arguments: str, log: str, module: str = "spes_peer", before: Sequence[str] = ()
    ) -> "subprocess.Popen[bytes]":
        """`before` stands before the program; the log of an earlier start is overwritten."""
        with (self.path / log).open("wb") as file:
            return subprocess.Popen(
                [*before, sys.executable, "-m", module, *arguments],
                stdout=file,
                stderr=file,
                env=self.environment,
                # also where the tests run under nohup, which daemons heed
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "spes_peer", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=self.environment,
        )

    def status(self, folder: str) -> dict[str, Any]:
        """What a daemon says of itself; empty while it does not answer."""
        return _asker.ask(self.path / folder)

    def read(self, log: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.path / log).read_text(errors="replace")
        return ""


@pytest.fixture
def place() -> Iterator[Place]:
    here = Place(Path(tempfile.mkdtemp(prefix="spes-")))
    yield here
    for process in here.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(here.path, ignore_errors=True)


def until(condition: Callable[[], Any], what: str, seconds: float = START_SECONDS) -> Any:
    """Wait for a true value of `condition`, and give it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return value


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def words_of(process: psutil.Process) -> set[str]:
    """Of its command line; none where it has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(process.cmdline())
    return set()


def three_free_ports() -> int:
    """The first of three in a row."""
    for base in random.sample(range(20_000, 32_000, 3), 100):
        with contextlib.suppress(BadConfiguration):
            return choose_ports(LOOPBACK, base).grpc
    raise AssertionError("no three free ports in a row")


@dataclass
class Run:
    """An organizer's run with its bootstrap node, and volunteers that join it."""

    place: Place
    address: str
    bootstrap: "subprocess.Popen[bytes]"
    befores: dict[str, Sequence[str]] = field(default_factory=dict)
    """What stands before the program of a volunteer, by name, or of a bootstrap node that starts again."""
    _chains: dict[str, tuple[object, Chain]] = field(default_factory=dict)
    """As they were read last, by what the files were like then."""

    def join(self, name: str, *options: str) -> "subprocess.Popen[bytes]":
        return self.come_back(name, "--bootstrap", self.address, *options)

    def come_back(self, name: str, *options: str) -> "subprocess.Popen[bytes]":
        """Join with nothing but what is in the folder."""
        fixed = ["--data-dir", str(self.place.path / name), "--name", name]
        fixed += ["--device", "cpu", "--threads", "1", "--max-subsets", "1", "--no-tui", "--yes"]
        fixed += ["--on-battery", "--priority", "normal"]
        return self.place.start("join", *fixed, *options, log=f"{name}.log", before=self.befores.get(name, ()))

    def start_bootstrap(self) -> None:
        """On the run's folder and the port of the address."""
        folder = self.place.path / "run"
        (folder / "address").unlink(missing_ok=True)
        options = ["--run", str(folder), "--listen", f"{LOOPBACK}:{self.address.split('/')[4]}"]
        self.bootstrap = self.place.start(
            *options, log="bootstrap.log", module="bootstrap", before=self.befores.get("bootstrap", ())
        )
        until(lambda: (folder / "address").exists(), "the bootstrap node serves again")

    # ---- processes ----

    def daemon(self, name: str) -> psutil.Process:
        return next(one for one in self.place.processes() if {"join", name} <= words_of(one))

    def child(self, name: str, module: str) -> psutil.Process:
        """Once it is there."""

        def found() -> psutil.Process | None:
            return next((child for child in self.daemon(name).children() if module in words_of(child)), None)

        child: psutil.Process = until(found, f"{name} has a {module}")
        return child

    def processes_of(self, name: str) -> list[psutil.Process]:
        daemon = self.daemon(name)
        return [daemon, *daemon.children(recursive=True)]

    def kill(self, name: str) -> None:
        """SIGKILL to the daemon alone; what it started ends with it."""
        processes = self.processes_of(name)
        processes[0].kill()
        until(lambda: not any(map(is_alive, processes)), f"nothing of {name} is left")

    # ---- what a daemon says ----

    def phase(self, name: str) -> str:
        return str(self.place.status(name).get("phase", {}).get("name", ""))

    def newest_round(self, name: str) -> int:
        """As its daemon says once it answers; 0 before the first."""
        rounds = until(lambda: self.place.status(name), f"{name} answers").get("rounds") or [{"round": 0}]
        return int(rounds[-1]["round"])

    def until_rounds_more(self, name: str, number: int) -> dict[str, Any]:
        return self.until_round(name, self.newest_round(name) + number)

    def until_equal(self, *names: str) -> None:
        """All have applied one round, the newest that they share, and have one state root after it."""

        def roots() -> list[str] | None:
            found = [{e["round"]: e["state_root"] for e in self.place.status(name).get("rounds", [])} for name in names]
            common = set.intersection(*(set(one) for one in found))
            return [one[max(common, key=int)] for one in found] if common else None

        found = until(roots, f"{names} share a round")
        assert len(set(found)) == 1, found

    def until_round(self, name: str, number: int, seconds: float = START_SECONDS) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            status = self.place.status(name)
            rounds = status.get("rounds") or [{"round": 0}]
            return status if int(rounds[-1]["round"]) >= number else None

        found: dict[str, Any] = until(reached, f"{name} has come to round {number}", seconds)
        return found

    # ---- what a node has on disk ----

    def peer_id(self, name: str) -> PeerId:
        return Identity.load_or_create(self._file(name, "identity.key")).peer_id

    def chain(self, name: str) -> Chain:
        """Its records, verified; "run" is the bootstrap node's folder. Call it again to see what came meanwhile."""
        folder = self._file(name, "records/00000000.record").parent
        stamps = tuple(sorted((path.name, path.stat().st_mtime_ns) for path in folder.glob("*.record")))
        if name not in self._chains or self._chains[name][0] != stamps:  # to verify all of them takes a while
            signed = read_manifest(self.place.path / "run")
            self._chains[name] = stamps, Chain(folder.parent, Checks.of(signed.open(), signed.run_id))
        return self._chains[name][1]

    def _file(self, name: str, path: str) -> Path:
        """A file in a node's folder, once it is there."""
        file = self.place.path / name / path
        until(file.exists, f"{name} has {path}")
        return file

    def newest(self, name: str) -> Record:
        head = self.chain(name).head
        assert head is not None
        return head.record


def organize(place: Place, run_toml: str, host: str = LOOPBACK, port: int = 0, before: Sequence[str] = ()) -> Run:
    """Make a run, and start its bootstrap node."""
    folder = place.path / "run"
    create_run(folder, run_toml)
    options = ["--run", str(folder), "--listen", str(Endpoint(host, port or three_free_ports()))]
    bootstrap = place.start(*options, log="bootstrap.log", module="bootstrap", before=before)
    until(lambda: (folder / "address").exists() or bootstrap.poll() is not None, "the bootstrap node serves")
    assert bootstrap.poll() is None, place.read("bootstrap.log")
    return Run(place, (folder / "address").read_text().strip(), bootstrap)


@pytest.fixture
def organized(place: Place) -> Run:
    return organize(place, small_run(min_peers=1))
