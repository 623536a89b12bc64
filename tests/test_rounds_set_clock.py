"""A clock that is set: every wait goes on as long as before."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from rounds_swarm import Swarm

from spes_peer.rounds.election import Allegiance
from spes_peer.rounds.phases import Coordinator
from spes_peer.rounds.set_clock import moved_allegiance, moved_state
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import SealedRecord
from spes_peer.run.signed import Signed

HOUR = 3600.0


def moments(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All that is our own clock's in a state: what records and others' messages say is not."""
    if isinstance(value, SealedRecord | Signed):
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from moments(one, f"{path}[{key}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            one = getattr(value, field.name)
            if field.name.endswith("_at"):
                yield f"{path}.{field.name}", one
            elif field.name not in ("past", "rules"):
                yield from moments(one, f"{path}.{field.name}")


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_every_moment_of_a_coordinator_moves_along_in_every_phase(manifest: Manifest, seconds: float) -> None:
    swarm = Swarm(manifest, [(0,), (1,), (2,), (3,)])
    seen: dict[str, Coordinator] = {}

    def look() -> bool:
        state = swarm.state
        seen[state.phase.name] = state
        return len(seen) == 4

    swarm.until(look)
    assert seen.keys() == {"admitting", "training", "reducing", "closing"}
    for state in seen.values():
        before, after = dict(moments(state)), dict(moments(moved_state(state, seconds)))
        assert before
        assert after == {name: at + seconds for name, at in before.items()}


def test_an_allegiance_moves_along(manifest: Manifest) -> None:
    moved = moved_allegiance(Allegiance(3, 1, 100.0, 110.0), HOUR)
    assert moved == Allegiance(3, 1, 100.0 + HOUR, 110.0 + HOUR)
    assert moved_allegiance(Allegiance(3, 1, 100.0), -HOUR) == Allegiance(3, 1, 100.0 - HOUR)
