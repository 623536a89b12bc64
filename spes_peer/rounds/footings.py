"""Who stood on which public state in a round, and when a member believes that it was wrong itself.

The record that closes a round names the state root on which it was trained, and who has another repairs its state to
that one. So nobody may make a root up: a member signs the root on which it stood itself. Another it signs only where
*more than a third of the roster say, each by its signature, that they stood on it*. A coordinator shows their words
whenever somebody stood on another root, and only then.

Who has not contributed, and knows no root, leaves it to those that do, if the round's time is over or nobody was to
wait for it: otherwise a coordinator could close a round before anybody has applied the record before it. In a round
that rests nobody contributes: there a member signs no root that it neither stands on nor has witnesses for, however
late it is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from spes_peer.errors import PeerError
from spes_peer.identity import PeerId
from spes_peer.rounds.member import Own
from spes_peer.rounds.messages import Footing
from spes_peer.rounds.proposal import untrained_findings
from spes_peer.run.certificates import is_more_than_half
from spes_peer.run.records import Record
from spes_peer.run.signed import Signed


def witnesses(footings: Mapping[PeerId, tuple[Signed, Footing]], record: Record) -> tuple[Signed, ...]:
    """What goes along with the proposal of `record`: the words of those who stood on its root, if not all did."""
    agreeing = [signed for signed, footing in footings.values() if footing.state_root == record.state_root]
    return tuple(agreeing) if record.state_root and len(agreeing) < len(footings) else ()


def said_root(footings: Mapping[PeerId, tuple[Signed, Footing]], record: Record) -> str:
    """The root of the state after `record`, in whose round nobody trained: the one on which most say that they stand,
    if those are more than half of its roster; empty if there is none."""
    counts = Counter(footing.state_root for peer, (_, footing) in footings.items() if peer in record.members)
    most = max(counts, key=lambda root: (counts[root], root), default="")
    return most if is_more_than_half(counts[most], of=len(record.roster)) else ""


def fault_in_root(record: Record, previous: Record, own: Own, shown: Iterable[Signed], now: float) -> str | None:
    """Why this member does not believe the root of the record that is proposed behind `previous`; None if it does."""
    entry, root = previous.entry_of(own.peer_id), _own_root(own, previous)
    if entry is None or entry.incarnation < own.incarnation or record.state_root in ("", root):
        return None
    if not root and previous.trains and (own.is_excused or now >= previous.deadline_at):
        return None
    if 3 * len(_who_stood_on(record.state_root, previous, shown)) > len(previous.roster):
        return None
    if not root and not previous.trains:
        return f"nobody has contributed to round {previous.round}, and we do not know yet on which state root it stands"
    if not root:
        return f"round {previous.round} has time left, and we have not contributed"
    return f"we stood on state root {root[:12]}, and too few say that they stood on {record.state_root[:12]}"


def _own_root(own: Own, previous: Record) -> str:
    """The root of the state after `previous`, as this member knows it; empty if it does not."""
    if own.contribution is not None:
        return own.contribution.state_root
    return untrained_findings(previous).state_root or ("" if previous.trains else own.state_root)


def _who_stood_on(root: str, previous: Record, shown: Iterable[Signed]) -> frozenset[PeerId]:
    members = set()
    for signed in shown:
        if signed.peer_id in previous.members and signed.peer_id not in members:
            try:
                footing = signed.open(Footing, previous.run_id)
            except PeerError:
                continue
            if (footing.round, footing.state_root) == (previous.round, root):
                members.add(signed.peer_id)
    return frozenset(members)
