"""Who gets into the next roster: members that are still there, and newcomers that asked.

The record is the authority on ownership. A sitting owner keeps its subsets; who asks for a subset that has an owner
becomes a further owner of it; what changes hands otherwise is in `ownership`. A member that starts again takes up its
place, in the open round too: were it locked out until the next record, a round in which half of the roster restarts
could never close.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from spes_peer.identity import PeerId
from spes_peer.rounds.contributions import LARGEST_SPEED
from spes_peer.rounds.messages import AdmissionRequest
from spes_peer.run.invitations import InvitationProof
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.records import Record


@dataclass(frozen=True)
class Link:
    """A node that attends the coordinator: which start of it, and when it was last heard of."""

    incarnation: int
    heard_at: float


@dataclass(frozen=True)
class Applicant:
    """One start of a peer that asks for a place in the next roster."""

    incarnation: int
    subsets: tuple[int, ...]
    proof: InvitationProof | None = None
    """One that was found good, of a newcomer to a run that asks for it."""


@dataclass(frozen=True)
class Crowd:
    """Who is there and wants what, whatever the phase of the round."""

    links: Mapping[PeerId, Link] = field(default_factory=dict)
    applicants: Mapping[PeerId, Applicant] = field(default_factory=dict)
    departed: frozenset[PeerId] = frozenset()
    """Roster members that take no part in the next round."""
    speeds: Mapping[PeerId, float] = field(default_factory=dict)
    """Newest tokens per second of each peer; 0 when unknown."""

    def present(self, record: Record) -> frozenset[PeerId]:
        """Members of the roster that attend, whichever start of them."""
        return record.members.intersection(self.links)

    def heard(self, peer: PeerId, incarnation: int, now: float) -> "Crowd":
        return replace(self, links={**self.links, peer: Link(incarnation, now)})

    def expecting(self, record: Record, heard_at: float) -> "Crowd":
        """With those of the roster that have not come yet and may, as if they had last been heard of at `heard_at`."""
        coming = (entry for entry in record.roster if entry.peer_id not in self.departed)
        expected = {entry.peer_id: Link(entry.incarnation, heard_at) for entry in coming}
        return replace(self, links={**expected, **self.links})

    def without(self, gone: Collection[PeerId]) -> "Crowd":
        if not any(peer in self.links for peer in gone):
            return self
        return replace(self, links={peer: link for peer, link in self.links.items() if peer not in gone})

    def forgetting(self, peer: PeerId, record: Record) -> "Crowd":
        """Without `peer`, whose stream has ended, and without what it asked for: it says that again when it is back.
        Keys are free, so of who has no place in `record` nothing stays."""
        crowd = self.without({peer})
        applicants = {other: one for other, one in crowd.applicants.items() if other != peer}
        if peer in record.members:
            return replace(crowd, applicants=applicants)
        speeds = {other: speed for other, speed in crowd.speeds.items() if other != peer}
        return replace(crowd, applicants=applicants, departed=crowd.departed - {peer}, speeds=speeds)

    def silent(self, now: float, timeout_seconds: float) -> frozenset[PeerId]:
        """Who has not been heard of for so long that it counts as gone."""
        return frozenset(peer for peer, link in self.links.items() if now - link.heard_at > timeout_seconds)

    def applying(self) -> tuple[PeerId, ...]:
        """Applicants that could be admitted now."""
        return tuple(
            sorted(
                peer
                for peer, applicant in self.applicants.items()
                if peer in self.links and self.links[peer].incarnation == applicant.incarnation
            )
        )

    def settled(self, record: Record) -> "Crowd":
        """The crowd once `record` has taken effect: its roster has been admitted, who left has left."""
        roster = {(entry.peer_id, entry.incarnation) for entry in record.roster}
        members = {peer for peer, _ in roster}
        return replace(
            self,
            applicants={
                peer: applicant
                for peer, applicant in self.applicants.items()
                if (peer, applicant.incarnation) not in roster and peer in self.links
            },
            departed=self.departed & members,
            speeds={peer: speed for peer, speed in self.speeds.items() if peer in members or peer in self.links},
        )


def fault_in_request(request: AdmissionRequest, manifest: Manifest) -> str | None:
    """Why nobody can be admitted with this request; None if it is sound."""
    num_subsets = manifest.training.num_subsets
    if request.protocol != PROTOCOL_VERSION:
        return f"it speaks protocol {request.protocol}, and this run speaks {PROTOCOL_VERSION}"
    if not request.subsets:
        return "it asks for no subset"
    if len(set(request.subsets)) != len(request.subsets):
        return "it asks for a subset twice"
    if outside := [subset for subset in request.subsets if not 0 <= subset < num_subsets]:
        return f"it asks for subset {outside[0]}, and there are {num_subsets}"
    if not 0 <= request.tokens_per_second <= LARGEST_SPEED:  # nor NaN
        return f"its speed of {request.tokens_per_second} tokens/s is none"
    return None


def admit(
    crowd: Crowd, peer: PeerId, incarnation: int, request: AdmissionRequest, proof: InvitationProof | None = None
) -> Crowd:
    """Hold a sound request for the next record; it takes back a departure. `proof` is the request's, if it is needed
    and good."""
    return replace(
        crowd,
        applicants={
            **crowd.applicants,
            peer: Applicant(incarnation, tuple(sorted(request.subsets)), proof),
        },
        departed=crowd.departed - {peer},
        speeds={**crowd.speeds, peer: request.tokens_per_second or crowd.speeds.get(peer, 0.0)},
    )


def depart(crowd: Crowd, peer: PeerId) -> Crowd:
    """Leave `peer` out of the next roster."""
    return depart_all(crowd, (peer,))


def depart_all(crowd: Crowd, peers: Collection[PeerId]) -> Crowd:
    """Leave all of these out."""
    applicants = {other: applicant for other, applicant in crowd.applicants.items() if other not in peers}
    return replace(crowd, applicants=applicants, departed=crowd.departed.union(peers))


@dataclass(frozen=True)
class Seat:
    """A place in the next roster before data is assigned."""

    peer_id: PeerId
    incarnation: int
    subsets: tuple[int, ...]


def next_seats(record: Record, crowd: Crowd) -> tuple[Seat, ...]:
    """The next roster in peer-id order: members that attend and stay, and whoever asked and attends.

    What a member asks for counts only from a newer start of it than the roster has; what it asks for by the same start
    is a wish to change, on which `ownership.seats_after` decides. An earlier start is a ghost and gets no place.
    """
    seats = {peer: crowd.applicants[peer].subsets for peer in crowd.applying()}
    for entry in record.roster:
        link = crowd.links.get(entry.peer_id)
        if link is None or entry.peer_id in crowd.departed:
            continue
        if link.incarnation < entry.incarnation:
            seats.pop(entry.peer_id, None)
        elif entry.peer_id not in seats or link.incarnation == entry.incarnation:
            seats[entry.peer_id] = entry.subsets
    return tuple(Seat(peer, crowd.links[peer].incarnation, seats[peer]) for peer in sorted(seats))
