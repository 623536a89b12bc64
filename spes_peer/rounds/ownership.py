"""Who owns what in the next round: an ordered chain of small rules, each with a test whose name is the rule.

    sitting members keep, applicants get what they ask for   (`admission.next_seats`)
    → whose experts did harm again and again has no seat for a while
    → a wish to change is granted if it harms no subset
    → every `rotation_rounds` a co-owner fills a vacant subset, or a trained subset is swapped for an untrained one; not
      behind a round in which nobody trained

The roster is the coordinator's judgement, and members do not check it; but it is a function of what stands in records,
of who attends and of `now`, so that two coordinators with the same facts come to the same roster. A subset is *vacant*
when nobody has it in the next roster and nobody who is missing there has a lease on it.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from spes_peer.identity import PeerId
from spes_peer.rounds.admission import Crowd, Seat, next_seats
from spes_peer.run.layout import Layout
from spes_peer.run.leases import Leases
from spes_peer.run.manifest import Manifest
from spes_peer.run.marks import Marks
from spes_peer.run.norms import Norms
from spes_peer.run.records import Record

Places = Mapping[PeerId, frozenset[int]]
"""The subsets of everybody in the next roster."""


@dataclass(frozen=True)
class Past:
    """What the chain up to the newest record says of subsets, their owners, and what is usual."""

    trained_in: Mapping[int, int] = field(default_factory=dict)
    """For each subset the newest record with an update of its experts; 0, or missing, if there is none."""
    leases: Leases = field(default_factory=Leases)
    certifiers: frozenset[PeerId] = frozenset()
    """Who can have the uncertified end of the chain certified; empty when it has none."""
    norms: Norms = field(default_factory=Norms)
    marks: Marks = field(default_factory=Marks)

    def after(self, record: Record, layout: Layout) -> "Past":
        """… once `record`, the next one, is there too."""
        blocks = [layout.by_id[update.block] for update in record.updates if update.block in layout.by_id]
        trained = {subset: record.round for block in blocks if (subset := layout.subset_of(block)) is not None}
        return Past(
            {**self.trained_in, **trained},
            self.leases.after(record),
            self.certifiers,
            self.norms.after(record),
            self.marks.after(record),
        )


def seats_after(record: Record, crowd: Crowd, past: Past, manifest: Manifest, now: float) -> tuple[Seat, ...]:
    """The roster of the record behind `record`, in peer-id order, before data is assigned.

    `past` is that of the chain up to `record`, which includes it; `now` is in Unix seconds.
    """
    seats = without_barred(next_seats(record, crowd), past.marks, record.round)
    lease_seconds = manifest.timing.lease_seconds
    places: Places = {seat.peer_id: frozenset(seat.subsets) for seat in seats}
    leased = set(past.leases.standing(places, now, lease_seconds))
    for peer in filter(places.__contains__, crowd.applying()):  # who is new has what it asked for already
        asked = frozenset(crowd.applicants[peer].subsets)
        if is_harmless(peer, asked, places, leased, past.leases.of(peer).is_cooling(now, lease_seconds)):
            places = {**places, peer: asked}
    if record.trains and (record.round + 1) % manifest.training.rotation_rounds == 0:
        had = {entry.peer_id: frozenset(entry.subsets) for entry in record.roster}
        settled = {peer for peer in places if places[peer] == had.get(peer)}
        vacant = set(range(manifest.training.num_subsets)) - owners_in(places).keys() - leased
        places = rotated(places, settled, vacant, past)
    return tuple(replace(seat, subsets=tuple(sorted(places[seat.peer_id]))) for seat in seats)


def without_barred(seats: tuple[Seat, ...], marks: Marks, round: int) -> tuple[Seat, ...]:
    """The seats of those that are not barred; all of them if that is not more than half: a run goes on, whoever it is
    that says that so many do harm."""
    kept = tuple(seat for seat in seats if not marks.barred_until(seat.peer_id, round))
    return kept if 2 * len(kept) > len(seats) else seats


def owners_in(places: Places) -> Counter[int]:
    """How many own each subset; those without an owner are missing."""
    return Counter(subset for subsets in places.values() for subset in subsets)


def is_harmless(peer: PeerId, asked: frozenset[int], places: Places, leased: Collection[int], is_cooling: bool) -> bool:
    """Whether a wish to change may be granted: to own more, always, and to own fewer too, for that is asked for want of
    memory; to own others only if what is given up keeps an owner, if what comes in its place is vacant, and if the peer
    has not moved lately. So of many that would move at once only as many do as there are places to fill."""
    owners, given_up, added = owners_in(places), places[peer] - asked, asked - places[peer]
    if not given_up or not added:
        return True
    return not is_cooling and all(owners[s] > 1 for s in given_up) and not any(owners[s] or s in leased for s in added)


def rotated(places: Places, settled: Collection[PeerId], vacant: Collection[int], past: Past) -> Places:
    """One of the `settled` members gets that one of the `vacant` subsets which has been untrained for longest: a
    co-owner in place of what others own too; else, in place of what was trained since, whoever has had that longest.
    """
    if not vacant:
        return places
    taken = min(vacant, key=lambda subset: (past.trained_in.get(subset, 0), subset))
    given_up = _shared(places, settled, past) or _trained_since(taken, places, settled, past)
    if given_up is None:
        return places
    peer, subset = given_up
    return {**places, peer: places[peer] - {subset} | {taken}}


def _shared(places: Places, settled: Collection[PeerId], past: Past) -> tuple[PeerId, int] | None:
    """Of the subset with most owners, the one that came last."""
    owners = owners_in(places)
    shared = [(peer, subset) for peer in settled for subset in places[peer] if owners[subset] > 1]
    return max(shared, key=lambda one: (owners[one[1]], -one[1], _since(one, past), one[0]), default=None)


def _trained_since(taken: int, places: Places, settled: Collection[PeerId], past: Past) -> tuple[PeerId, int] | None:
    """A most recently trained subset, trained later than `taken`; of several the one that its owner has had longest."""

    def trained_in(subset: int) -> int:
        return past.trained_in.get(subset, 0)

    owned = [(peer, subset) for peer in settled for subset in places[peer] if trained_in(subset) > trained_in(taken)]
    return min(owned, key=lambda one: (-trained_in(one[1]), _since(one, past), one[1], one[0]), default=None)


def _since(owned: tuple[PeerId, int], past: Past) -> int:
    """The record that gave a peer a subset."""
    peer, subset = owned
    return past.leases.of(peer).since.get(subset, 0)
