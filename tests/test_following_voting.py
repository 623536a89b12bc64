"""A node's votes and signatures: on disk before they are given, and never two that contradict each other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rounds_swarm import BOOTSTRAP, ORGANIZER, RUN_ID, Member, Swarm, changed, replaced

from spes_peer.errors import BadConfiguration
from spes_peer.files import UNFINISHED, write_whole
from spes_peer.following import voting
from spes_peer.following.voting import Voter
from spes_peer.identity import PeerId
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.election import owner_of
from spes_peer.rounds.member import Own
from spes_peer.rounds.messages import Proposal, RecordSignature, SignedBefore, Vote, VoteRequest
from spes_peer.rounds.phases import Closing
from spes_peer.run.invitations import InvitationProof, invite
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import SealedRecord
from spes_peer.run.signed import Signed


class Scene:
    """Record 2 is proposed behind record 1; the first member votes and signs."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.swarm = Swarm(manifest, [(0,), (1,), (2,), (3,)])
        self.swarm.until(lambda: self.swarm.round == 1)
        self.swarm.until(lambda: self.swarm.phase == "closing")
        assert isinstance(self.swarm.state.phase, Closing)
        self.head = self.swarm.head
        self.record = self.swarm.state.phase.proposal
        """An honest one."""
        self.other = replaced(self.record.record, updates=self.record.record.updates[1:]).seal()
        """As good as that."""
        self.folder = folder / "ballots"
        self.voter = self.start()

    def start(self) -> Voter:
        """Anew, with what is on disk."""
        return Voter(self.folder, self.swarm.layout)

    @property
    def me(self) -> Member:
        return self.swarm[0]

    def owner(self, term: int) -> PeerId:
        owner = owner_of(self.head.record, term)
        assert owner is not None
        return owner

    def vote(self, term: int, sender: PeerId | None = None) -> tuple[Vote | SignedBefore, ...]:
        return self.voter.vote(VoteRequest(1, term), sender or self.owner(term), self.head)

    def votes_of_others(self, term: int, record_hash: bytes = b"", signed_term: int = 0) -> tuple[Signed, ...]:
        """Of three of the four."""
        vote = Vote(1, self.head.hash, term, record_hash, signed_term)
        return tuple(self.swarm[number].signer.sign(vote) for number in (1, 2, 3))

    def sign(
        self,
        record: SealedRecord,
        term: int = 0,
        votes: tuple[Signed, ...] = (),
        sender: PeerId | None = None,
        now: float = 0.0,
    ) -> RecordSignature | None:
        me = self.me
        own = Own(me.peer_id, me.contribution, me.reports, me.incarnation)
        proposal = Proposal(term, record.content, votes)
        return self.voter.sign(proposal, sender or self.owner(term), self.head, own, now)

    @property
    def stalled_at(self) -> float:
        return self.head.record.deadline_at + self.swarm.layout.manifest.timing.stall_timeout_seconds


@pytest.fixture
def scene(manifest: Manifest, tmp_path: Path) -> Scene:
    return Scene(manifest, tmp_path)


def signature(record: SealedRecord, term: int, uncertified: bool = False) -> RecordSignature:
    return RecordSignature(record.round, term, record.hash, uncertified)


# ---- signatures ----


def test_an_honest_proposal_of_the_first_candidate_is_signed_as_often_as_it_comes(scene: Scene) -> None:
    assert scene.owner(0) == BOOTSTRAP
    assert scene.sign(scene.record) == signature(scene.record, 0)
    assert scene.sign(scene.record) == signature(scene.record, 0)


def test_of_two_records_of_one_term_one_is_signed_also_after_another_start(scene: Scene) -> None:
    assert scene.sign(scene.record) is not None
    assert scene.sign(scene.other) is None
    scene.voter = scene.start()
    assert scene.sign(scene.other) is None
    assert scene.sign(scene.record) == signature(scene.record, 0)


def test_a_proposal_of_who_does_not_own_the_term_is_refused(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    assert scene.sign(scene.record, sender=scene.owner(1)) is None
    assert f"term 0 of round 1 is not {scene.owner(1)}'s" in caplog.text


def test_a_faulty_proposal_is_refused_and_leaves_no_trace(scene: Scene) -> None:
    faulty = replaced(scene.record.record, tokens=1).seal()
    assert scene.sign(faulty) is None
    assert scene.voter.sign(Proposal(0, b"\xff"), BOOTSTRAP, scene.head, Own(scene.me.peer_id), 0.0) is None
    assert list(scene.folder.iterdir()) == []


def test_a_later_owner_needs_votes_and_proposes_what_they_name(scene: Scene) -> None:
    assert scene.sign(scene.other, term=1) is None
    assert scene.sign(scene.other, term=1, votes=scene.votes_of_others(1)[:2]) is None
    bound = scene.votes_of_others(1, scene.record.hash)
    assert scene.sign(scene.other, term=1, votes=bound) is None
    assert scene.sign(scene.record, term=1, votes=bound) == signature(scene.record, 1)


def test_another_record_is_signed_in_a_later_term_that_is_free_to_propose_it(scene: Scene) -> None:
    assert scene.sign(scene.record) is not None
    assert scene.sign(scene.other, term=1, votes=scene.votes_of_others(1)) == signature(scene.other, 1)
    assert scene.sign(scene.record) is None  # term 0 is over


# ---- votes ----


def test_a_vote_names_what_was_signed_and_brings_its_bytes(scene: Scene) -> None:
    assert scene.vote(1) == (Vote(1, scene.head.hash, 1, b"", 0),)
    scene.sign(scene.record, term=1, votes=scene.votes_of_others(1))
    assert scene.vote(2) == (
        Vote(1, scene.head.hash, 2, scene.record.hash, 1),
        SignedBefore(1, scene.record.content),
    )


def test_newcomers_need_their_proofs_whatever_votes_bind_to_and_a_vote_brings_them_along(
    scene: Scene, manifest: Manifest
) -> None:
    closed = Layout(changed(manifest, "admission", mode="invitation"))
    known, newcomer, me = [scene.swarm[n].peer_id for n in range(3)], scene.swarm[3].peer_id, scene.me
    proof = invite(ORGANIZER, RUN_ID, scene.swarm.now + 1e6).prove(newcomer)
    own = Own(me.peer_id, me.contribution, me.reports, me.incarnation)
    votes = scene.votes_of_others(1, scene.record.hash)

    def signed(*proofs: InvitationProof) -> RecordSignature | None:
        proposal = Proposal(1, scene.record.content, votes, proofs=proofs)
        voter = Voter(scene.folder, closed)
        return voter.sign(proposal, scene.owner(1), scene.head, own, scene.swarm.now, None, known)

    assert signed() is None
    assert signed(replaced(proof, signature=bytes(64))) is None
    unasked = replaced(proof, peer_id=me.peer_id)
    assert signed(proof, unasked) == signature(scene.record, 1)
    assert Voter(scene.folder, closed).vote(VoteRequest(1, 2), scene.owner(2), scene.head)[1:] == (
        SignedBefore(1, scene.record.content, (proof,)),
    )


def test_a_vote_binds_also_after_another_start(scene: Scene) -> None:
    assert scene.vote(3)
    scene.voter = scene.start()
    assert scene.vote(2) == ()
    assert scene.sign(scene.record) is None
    assert scene.vote(3) == (Vote(1, scene.head.hash, 3, b"", 0),)


def test_no_vote_is_given_to_who_does_not_own_the_term(scene: Scene) -> None:
    assert scene.vote(1, sender=scene.owner(2)) == ()
    assert list(scene.folder.iterdir()) == []


def test_a_vote_is_given_again_in_its_own_term_only(scene: Scene) -> None:
    assert scene.voter.vote_again(1, scene.head) == ()
    given = scene.vote(1)
    assert scene.voter.vote_again(1, scene.head) == given
    assert scene.voter.vote_again(2, scene.head) == ()


@pytest.mark.parametrize(
    "give", [lambda scene: scene.vote(1), lambda scene: scene.sign(scene.record)], ids=["vote", "signature"]
)
def test_what_cannot_be_kept_is_not_given(
    scene: Scene, give: Callable[[Scene], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path, _content: bytes) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(voting, "write_whole", fail)
    with pytest.raises(OSError, match="no space left"):
        give(scene)


def test_votes_and_signatures_are_on_disk_when_they_are_given(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Ballot] = []

    def write(path: Path, content: bytes) -> None:
        write_whole(path, content)
        kept.append(Ballot.from_bytes(path.read_bytes()))

    monkeypatch.setattr(voting, "write_whole", write)
    scene.sign(scene.record)
    scene.vote(2)
    assert [(one.term, one.record_hash, one.signed_term) for one in kept] == [
        (0, scene.record.hash, 0),
        (2, scene.record.hash, 0),
    ]


# ---- going on without a majority ----


def test_without_votes_a_proposal_is_signed_only_when_the_run_has_stalled_and_only_to_go_on_with_it(
    scene: Scene,
) -> None:
    assert scene.sign(scene.record, term=1, now=scene.stalled_at - 1) is None
    assert scene.sign(scene.record, term=1, now=scene.stalled_at) == signature(scene.record, 1, uncertified=True)


def test_going_on_with_a_record_is_no_vote_for_it(scene: Scene) -> None:
    """So what this member promised and signed before binds it no less."""
    scene.vote(3)
    assert scene.sign(scene.other, term=1, now=scene.stalled_at) == signature(scene.other, 1, uncertified=True)
    assert scene.sign(scene.record, term=3, votes=scene.votes_of_others(3)) == signature(scene.record, 3)
    (vote, _) = scene.vote(4)
    assert isinstance(vote, Vote)
    assert vote.record_hash == scene.record.hash


def test_a_faulty_proposal_is_refused_also_when_the_run_has_stalled(scene: Scene) -> None:
    faulty = replaced(scene.record.record, tokens=1).seal()
    assert scene.sign(faulty, term=1, now=scene.stalled_at) is None
    assert scene.sign(scene.record, term=1, sender=BOOTSTRAP, now=scene.stalled_at) is None


def test_with_votes_a_proposal_gets_a_full_signature_also_when_the_run_has_stalled(scene: Scene) -> None:
    votes = scene.votes_of_others(1)
    assert scene.sign(scene.record, term=1, votes=votes, now=scene.stalled_at) == signature(scene.record, 1)


def late(scene: Scene, record: SealedRecord, ours: SealedRecord, term: int = 1, bound_to: bytes = b"") -> Any:
    votes = scene.votes_of_others(term, bound_to, 0)
    return scene.voter.sign_late(Proposal(term, record.content, votes), scene.owner(term), ours, scene.head)


def test_a_record_that_stands_uncertified_in_our_chain_is_signed_after_all(scene: Scene) -> None:
    assert late(scene, scene.record, ours=scene.record) == signature(scene.record, 1)


def test_another_record_than_stands_in_our_chain_is_signed_only_if_the_votes_bind_to_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    assert late(scene, scene.other, ours=scene.record) is None
    assert "another record 2 than ours, to which no votes bind" in caplog.text
    assert late(scene, scene.other, ours=scene.record, bound_to=scene.other.hash) == signature(scene.other, 1)


def test_nor_is_one_of_a_term_that_is_over_or_without_votes_or_by_who_does_not_own_the_term(scene: Scene) -> None:
    without = Proposal(1, scene.record.content, ())
    assert scene.voter.sign_late(without, scene.owner(1), scene.record, scene.head) is None
    votes = Proposal(1, scene.record.content, scene.votes_of_others(1))
    assert scene.voter.sign_late(votes, scene.owner(2), scene.record, scene.head) is None
    scene.vote(3)
    assert late(scene, scene.record, ours=scene.record) is None


def test_bytes_that_are_no_record_get_no_late_signature(scene: Scene) -> None:
    broken = Proposal(1, b"\xff", scene.votes_of_others(1))
    assert scene.voter.sign_late(broken, scene.owner(1), scene.record, scene.head) is None


# ---- the folder ----


def test_what_was_said_behind_one_record_says_nothing_behind_another(scene: Scene) -> None:
    scene.vote(5)
    scene.head = replaced(scene.head.record, tokens=1).seal()
    assert scene.vote(1) == (Vote(1, scene.head.hash, 1, b"", 0),)
    assert len(list(scene.folder.iterdir())) == 2


def test_ballots_of_rounds_that_are_certified_long_since_are_removed(scene: Scene) -> None:
    scene.sign(scene.record)
    first, scene.head = scene.head, scene.record
    scene.voter.vote(VoteRequest(2, 0), BOOTSTRAP, scene.record)
    scene.voter.forget_before(3)
    (path,) = scene.folder.iterdir()
    kept = Ballot.from_bytes(path.read_bytes())
    assert (kept.round, kept.previous_hash) == (3, scene.record.hash)
    assert first.hash != scene.record.hash


@pytest.mark.parametrize("damage", [b"", b"\xff", b"{}"])
def test_with_a_damaged_ballot_a_node_does_not_start_and_says_what_to_do(scene: Scene, damage: bytes) -> None:
    scene.vote(1)
    (path,) = scene.folder.iterdir()
    path.write_bytes(damage)
    with pytest.raises(BadConfiguration, match="put back a copy that is whole, or join as another peer") as caught:
        scene.start()
    assert str(path) in str(caught.value)


def test_what_a_kill_left_half_written_does_not_keep_a_node_from_starting(scene: Scene) -> None:
    scene.vote(1)
    (path,) = scene.folder.iterdir()
    (scene.folder / f".{path.name}.abc{UNFINISHED}").write_bytes(path.read_bytes()[:20])
    scene.voter = scene.start()
    scene.voter.forget_before(0)
    assert scene.voter.vote_again(1, scene.head) != ()
