"""Rules and changes of them as sentences for people."""

import time
from collections.abc import Iterator

from spes_peer.identity import PeerId
from spes_peer.run.manifest import Manifest
from spes_peer.run.rules import Rules

_ADMISSION = {
    "open": "everybody who has an address of the run may join",
    "invitation": "only whom an organizer has invited or listed may join",
    "list": "only who is on the organizer's list may join",
}


def admission(manifest: Manifest, rules: Rules | None = None) -> str:
    """How one gets into the run."""
    mode, listed = manifest.admission.mode, (rules or Rules.of(manifest)).listed
    return f"{_ADMISSION[mode]}{f' ({len(listed)} listed)' if listed and mode != 'open' else ''}"


def moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def changes(before: Rules, after: Rules) -> Iterator[str]:
    """What is otherwise."""
    if before.is_paused != after.is_paused:
        yield f"the run is paused since {moment(after.paused_at)}" if after.is_paused else "the run goes on"
    if before.finish_after_round != after.finish_after_round:
        yield _end(after.finish_after_round)
    if before.round_seconds != after.round_seconds:
        yield f"a round lasts {after.round_seconds:g} s instead of {before.round_seconds:g}"
    if before.quorum != after.quorum:
        yield f"rounds with fewer than {max(1, after.quorum)} members rest"
    for name in ("banned", "organizers", "listed", "revoked"):
        yield from _changed(name, getattr(before, name), getattr(after, name))


def _end(round: int) -> str:
    if not round:
        return "the run does not end early any more"
    return f"the run ends with round {round}, or with the one that was open then"


_NOW, _NOT_NOW = "now", "not any more"
_WORDS = {
    "banned": {_NOW: "banned: {}", _NOT_NOW: "no longer banned: {}"},
    "organizers": {_NOW: "an organizer's key from now on: {}", _NOT_NOW: "no organizer's key any more: {}"},
    "listed": {_NOW: "may join by the list: {}", _NOT_NOW: "not on the list any more (who is in stays in): {}"},
    "revoked": {_NOW: "nobody joins with invitation {} any more", _NOT_NOW: "invitation {} counts again"},
}


def _changed(name: str, before: tuple[PeerId, ...], after: tuple[PeerId, ...]) -> Iterator[str]:
    yield from (_WORDS[name][_NOW].format(peer) for peer in after if peer not in before)
    yield from (_WORDS[name][_NOT_NOW].format(peer) for peer in before if peer not in after)
