"""One experiment, from its file to its folder."""

import argparse
import contextlib
import datetime
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from spes_peer.errors import BadConfiguration, UserError
from spes_peer.experiment import environment
from spes_peer.experiment.config import Cell, Experiment, parse_experiment
from spes_peer.experiment.curves import draw_curves
from spes_peer.experiment.examples import QUICK
from spes_peer.experiment.progress import Lines
from spes_peer.experiment.report import write_results
from spes_peer.experiment.results import CellResult, load_result
from spes_peer.experiment.runner import num_jobs, run_cells
from spes_peer.experiment.texts import read_texts
from spes_peer.files import write_whole

_INTERRUPTED_EXIT = 130
_CELLS = "cells"


def run_experiment(options: argparse.Namespace) -> int:
    """Run what is not finished yet and report on all that is; the exit code.

    Raises `BadConfiguration` for a file that cannot be used, before anything is run or written."""
    experiment = _read(options.file, options.quick)
    read_texts(experiment.texts, 1)  # whether they are there
    folder = options.out or Path(f"{experiment.about.name}-results")
    cells, jobs = experiment.cells, num_jobs(options.jobs or experiment.about.jobs, len(experiment.cells))
    try:
        (folder / _CELLS).mkdir(parents=True, exist_ok=True)
        write_whole(folder / "experiment.toml", experiment.source.encode())
    except OSError as error:
        raise BadConfiguration(f"cannot write to {folder}: {error.strerror}") from None
    known = sum(1 for _ in _finished(folder, cells))
    about, started, started_at = environment.describe(jobs), _today(), time.monotonic()
    failed: dict[Cell, str] = {}
    is_interrupted = False
    try:
        with _terminated_is_interrupted(), Lines(len(cells), known) as progress:
            failed = run_cells(cells, folder / _CELLS, jobs, progress)
    except KeyboardInterrupt:
        is_interrupted = True
    results = tuple(_finished(folder, cells))
    seconds = time.monotonic() - started_at
    environment.add_invocation(folder / "environment.json", about, started, seconds, len(results) - known)
    _report(folder, experiment, results, failed)
    if is_interrupted:
        print(
            f"interrupted; {len(results)} of {len(cells)} cells are finished, the same command goes on", file=sys.stderr
        )
        return _INTERRUPTED_EXIT
    return 1 if failed else 0


def _read(path: Path | None, quick: bool) -> Experiment:
    if path is None:
        return parse_experiment(QUICK, "--quick", quick=True)
    try:
        source = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"cannot read {path}: {error}") from None
    return parse_experiment(source, path.name, str(path.resolve().parent), quick)


def _finished(folder: Path, cells: tuple[Cell, ...]) -> Iterator[CellResult]:
    for cell in cells:
        if (result := load_result(folder / _CELLS / cell.file_name)) is not None:
            yield result


def _report(folder: Path, experiment: Experiment, results: tuple[CellResult, ...], failed: dict[Cell, str]) -> None:
    write_results(folder, experiment, results, {cell.name: reason for cell, reason in failed.items()})
    try:
        draw_curves(folder, experiment.about.name, results)
    except UserError as error:
        print(f"spes-peer experiment: {error}", file=sys.stderr)
    for line in (folder / "results.md").read_text().splitlines():
        if line.startswith("|"):
            print(line)
    print(f"\nresults in {folder}")


@contextlib.contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """A polite end from outside keeps what is finished too."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
