"""A volunteer with little disk in a run of real processes."""

from pathlib import Path

import pytest
from real_swarm import Place, organize, place, small_run, until

from spes_peer.blobs import BlobStore

__all__ = ["place"]

LIMIT_BYTES = 12_000_000  # a third less than the run's data alone, and twice what a volunteer must keep


def bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_volunteer_keeps_its_disk_limit_and_the_run_through_kills(place: Place) -> None:
    run = organize(place, small_run(min_peers=2))
    for name, options in (("small", ("--max-disk", "12MB")), ("large", ())):
        run.join(name, *options)
    until(lambda: run.newest_round("small") >= 4, "the small one has trained four rounds")
    assert bytes_in(place.path / "large") > LIMIT_BYTES
    taken = []

    def look_until(round: int) -> None:
        def reached() -> bool:
            taken.append(bytes_in(place.path / "small"))
            return run.newest_round("small") >= round

        until(reached, f"the small one has trained {round} rounds")

    look_until(8)
    run.child("small", "spes_peer.training").kill()
    look_until(run.newest_round("small") + 2)
    run.kill("small")
    run.come_back("small", "--max-disk", "12MB")
    until(lambda: place.status("small"), "the small one is back")
    look_until(run.newest_round("large") + 3)
    run.until_equal("small", "large")
    status = place.status("small")
    assert status["troubles"] == []
    assert status["disk_limit_bytes"] == LIMIT_BYTES
    assert status["disk_used_bytes"] <= LIMIT_BYTES
    assert max(taken) <= 1.3 * LIMIT_BYTES  # what a round brings comes between two looks; without a limit it is 1.8
    store = BlobStore(place.path / "small" / "blobs")
    run.kill("small")
    found, _ = store.found()
    assert all(store.is_sound(one.name) for one in found)
