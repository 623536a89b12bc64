"""A real run whose machines have wrong wall clocks, and set them as it goes on: no round ends early, nobody is out."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from real_swarm import Place, organize, place, small_run, until

__all__ = ["place"]

HOUR = 3600.0
_SITECUSTOMIZE = '''
"""Every Python process of a machine has the wall clock that its file says."""
import os, sys, time
_wall, _monotonic, _look = time.time, time.monotonic, [-1.0, 0.0]
def _ahead():
    if _monotonic() - _look[0] > 0.1:
        with open(os.environ["SPES_TEST_CLOCK"]) as file:
            _look[:] = _monotonic(), float(file.read())
    return _look[1]
def _time():
    in_grpc = sys._getframe(1).f_globals.get("__name__", "").startswith("grpc")  # whose core has the true clock
    return _wall() + (0.0 if in_grpc else _ahead())
time.time = _time
time.time_ns = lambda: int((_wall() + _ahead()) * 1e9)
'''


class Machines:
    """Each with a wall clock of its own, which can be set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "clocks").mkdir()
        (folder / "clocks" / "sitecustomize.py").write_text(_SITECUSTOMIZE)

    def set(self, name: str, ahead_seconds: float) -> None:
        new = self._folder / "clocks" / f"{name}.new"
        new.write_text(str(ahead_seconds))
        new.replace(self._folder / "clocks" / name)

    def before(self, name: str) -> Sequence[str]:
        """What stands before a program that runs there."""
        path = ":".join([str(self._folder / "clocks"), *sys.path])
        return ("env", f"PYTHONPATH={path}", f"SPES_TEST_CLOCK={self._folder / 'clocks' / name}")


@pytest.fixture
def machines(place: Place) -> Machines:
    return Machines(place.path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wall_clocks_an_hour_off_and_set_while_a_run_goes_on_end_no_round_and_keep_nobody_out(
    place: Place, machines: Machines
) -> None:
    names = ("ahead", "behind", "right")
    for name, ahead_seconds in (("bootstrap", 0.0), ("ahead", HOUR), ("behind", -HOUR), ("right", 0.0)):
        machines.set(name, ahead_seconds)
    run = organize(place, small_run(min_peers=3), before=machines.before("bootstrap"))
    run.befores = {name: machines.before(name) for name in ("bootstrap", *names)}
    for name in names:
        run.join(name)
    until(lambda: len(run.newest("run").roster) == 3, "all three have a place")
    until(lambda: run.newest("run").tokens > 0, "they train")
    until(lambda: "ahead of the others'" in str(place.status("ahead").get("troubles")), "its owner is told")
    first = run.newest("run").round
    for name, ahead_seconds in (("bootstrap", HOUR), ("ahead", 0.0), ("behind", HOUR), ("right", -HOUR)):
        machines.set(name, ahead_seconds)
    until(lambda: run.newest("run").round >= first + 5, "rounds go on")
    records = [run.chain("run").record(round) for round in range(first, first + 6)]
    assert [(one.term, len(one.sealed.record.roster)) for one in records] == [(0, 3)] * 6
    assert all(one.sealed.record.updates for one in records)
    for process in (run.bootstrap, run.daemon("right")):  # neither's clock shows the time of the run when it is back
        process.kill()
        process.wait(60)
    run.start_bootstrap()
    run.come_back("right")
    run.until_round("right", run.newest("behind").round + 2)
    bootstrap, right = run.peer_id("run"), run.peer_id("right")

    def all_are_back() -> bool:
        record = run.newest("run")
        return bool(record.updates) and record.candidates[0] == bootstrap and right in record.members

    until(all_are_back, "the bootstrap node coordinates again, and all are in the round")
    back = run.newest("run").round
    until(lambda: run.chain("behind").certified_round >= back + 2, "rounds go on")
