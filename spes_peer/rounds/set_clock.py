"""When a node's clock turns out to be wrong and is set to the run's time: how long it has waited for others is the same
as before. Moments that records name were the run's from the start, and stay.
"""

from dataclasses import replace

from spes_peer.rounds.admission import Crowd
from spes_peer.rounds.election import Allegiance
from spes_peer.rounds.phases import Closing, Coordinator, Phase, Reducing


def moved_state(state: Coordinator, seconds: float) -> Coordinator:
    """`state` on a clock that was set ahead by `seconds`, or back."""
    return replace(
        state,
        crowd=_moved_crowd(state.crowd, seconds),
        phase=_moved_phase(state.phase, seconds),
        mandate=replace(state.mandate, asked_at=state.mandate.asked_at + seconds),
    )


def moved_allegiance(allegiance: Allegiance, seconds: float) -> Allegiance:
    heard_at = None if allegiance.heard_at is None else allegiance.heard_at + seconds
    return replace(allegiance, since_at=allegiance.since_at + seconds, heard_at=heard_at)


def _moved_crowd(crowd: Crowd, seconds: float) -> Crowd:
    return replace(
        crowd, links={peer: replace(link, heard_at=link.heard_at + seconds) for peer, link in crowd.links.items()}
    )


def _moved_phase(phase: Phase, seconds: float) -> Phase:
    match phase:
        case Closing():
            phase = replace(phase, asked_at=phase.asked_at + seconds)
        case Reducing():
            reductions = phase.reductions.items()
            moved = {block: replace(one, asked_at=one.asked_at + seconds) for block, one in reductions}
            phase = replace(phase, reductions=moved)
    return replace(phase, since_at=phase.since_at + seconds)
