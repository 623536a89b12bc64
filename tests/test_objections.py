"""Experts that make the model worse are kept out of the record by those that tested them."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
import torch
from rounds_swarm import ORGANIZER, RUN_ID, Swarm, changed, replaced
from training_swarm import PEERS
from training_swarm import Swarm as Trainers

from spes_peer.errors import SpesError
from spes_peer.identity import PeerId
from spes_peer.rounds import coordinator
from spes_peer.rounds.admission import Seat
from spes_peer.rounds.election import Mandate
from spes_peer.rounds.member import objections
from spes_peer.rounds.messages import Footing, Proposal, Verdict, Vote
from spes_peer.rounds.ownership import without_barred
from spes_peer.rounds.phases import Closing, Reducing
from spes_peer.rounds.verdicts import NUM_TESTERS, digests_in, fault_in_verdicts, is_marked, is_objected, who_tests
from spes_peer.run.invitations import invite
from spes_peer.run.manifest import Manifest
from spes_peer.run.marks import Marks
from spes_peer.run.records import Record, RosterEntry, SealedRecord
from spes_peer.run.signed import Signed
from spes_peer.sync.encoding import encode
from spes_peer.training.work import ExpertTried, TryExpert

FOUR = [(0,), (1,), (2,), (3,)]


@pytest.fixture
def swarm(manifest: Manifest) -> Swarm:
    return Swarm(changed(manifest, "sync", most_harm=0.03), FOUR)


def verdict(is_tested: bool, objects: bool) -> Verdict:
    return Verdict(1, 0, b"", is_tested, objects, "")


def experts_in(record: Record) -> set[int]:
    return {int(update.block.split("/")[1]) for update in record.updates if update.block.startswith("expert")}


SOUND, HARMFUL, UNTESTED = verdict(True, False), verdict(True, True), verdict(False, False)


@pytest.mark.parametrize(
    ("verdicts", "num_testers", "is_out"),
    [
        ([], 3, False),
        ([SOUND, HARMFUL, HARMFUL], 3, True),
        ([SOUND, SOUND, HARMFUL], 3, False),
        ([SOUND, HARMFUL], 2, False),
        ([SOUND, SOUND, HARMFUL, HARMFUL], 4, False),
        ([UNTESTED, UNTESTED, HARMFUL, HARMFUL], 4, True),
        ([UNTESTED, UNTESTED, HARMFUL], 3, False),  # nobody's word alone
        ([HARMFUL], 1, True),  # unless nobody else could test it
    ],
)
def test_more_than_half_of_those_that_tested_keep_an_expert_out_and_one_alone_does_not(
    verdicts: list[Verdict], num_testers: int, is_out: bool
) -> None:
    assert is_objected(verdicts, num_testers) is is_out


def test_testers_are_seven_that_do_not_own_the_expert_and_change_every_round(swarm: Swarm) -> None:
    roster = tuple(RosterEntry(PeerId(f"{index:02d}"), 1, (index % 4,), (), 1) for index in range(40))
    record = replaced(swarm.head.record, roster=roster, round=5)
    testers = who_tests(record, swarm.layout)
    assert set(testers) == set(range(8))
    for expert, peers in testers.items():
        assert len(set(peers)) == NUM_TESTERS
        assert all(int(peer) % 4 != expert // 2 for peer in peers)
    assert testers != who_tests(replaced(record, round=6), swarm.layout)
    load = Counter(peer for peers in testers.values() for peer in peers)
    assert max(load.values()) <= 8
    alone = replaced(record, roster=(replaced(roster[0], subsets=(0, 1, 2, 3)),))
    assert not any(who_tests(alone, swarm.layout).values())
    few = replaced(record, roster=roster[:3])
    assert set(who_tests(few, swarm.layout)) == set(range(6))  # of the others there are no updates


def test_rounds_go_on_at_once_when_all_find_all_experts_sound(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 4)
    assert swarm.now == swarm.moments[0]
    assert experts_in(swarm.head.record) == set(range(8))


def test_an_expert_to_which_its_testers_object_is_in_no_record_and_its_owner_hears_why(swarm: Swarm) -> None:
    owner = swarm[1]
    bad = set(swarm.layout.manifest.experts_of(owner.subsets[0]))
    for member in swarm.members.values():
        member.judges = lambda expert: expert in bad
    swarm.until(lambda: swarm.round == 3)
    for record in swarm.records[2:]:
        assert experts_in(record) == set(range(8)) - bad
        assert owner.peer_id in {
            part.peer_id for part in record.updates[0].contributors
        }  # its share of the others counts
    assert any("makes the run's model worse on held-out text" in why for why in owner.refusals)
    assert not any(member.objections for member in swarm.members.values())


def test_an_expert_of_which_a_part_is_withheld_is_tested_by_nobody_and_in_no_record(swarm: Swarm) -> None:
    owner = swarm[1]
    expert, other = swarm.layout.manifest.experts_of(owner.subsets[0])
    blocks = swarm.layout.expert_blocks(expert)
    assert len(blocks) > 1
    contribute = owner.contribute

    def withhold_a_block() -> None:
        contribute()
        assert owner.contribution is not None
        owner.store -= {offer.blob for offer in owner.contribution.offers if offer.block == blocks[-1].id}

    owner.contribute = withhold_a_block  # type: ignore[method-assign]
    swarm.until(lambda: swarm.round == 2)
    assert expert not in experts_in(swarm.head.record)
    assert other in experts_in(swarm.head.record)


def test_a_coordinator_that_starts_again_while_experts_are_tested_hears_what_was_found(swarm: Swarm) -> None:
    owner = swarm[1]
    bad = set(swarm.layout.manifest.experts_of(owner.subsets[0]))
    for member in swarm.members.values():
        member.judges = lambda expert: expert in bad
    swarm[0].judges = lambda _expert: None  # so that it goes on for a while
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    assert isinstance(swarm.state.phase, Reducing)
    assert any(verdict.objects for _, verdict in swarm.state.phase.verdicts.values())
    swarm.state = coordinator.start(swarm.state.fixed, swarm.head, swarm.state.me, swarm.now)
    for member in swarm.members.values():
        said = [*member.verdicts.values()]
        member.judges = lambda _expert: None  # nobody tests twice
        swarm.take(coordinator.on_connected(swarm.state, member.peer_id, swarm.now))
        for verdict in said:
            member.say(verdict)  # while it still takes contributions
        assert member.contribution is not None
        member.say(member.contribution)
    swarm.until(lambda: swarm.round == 2)
    assert experts_in(swarm.head.record) == set(range(8)) - bad
    assert not any(member.objections for member in swarm.members.values())


def test_one_who_objects_to_everything_keeps_nothing_out(swarm: Swarm) -> None:
    swarm[2].judges = lambda _expert: True
    swarm.until(lambda: swarm.round == 3)
    assert experts_in(swarm.head.record) == set(range(8))
    assert not any(member.objections for member in swarm.members.values())


def test_a_tester_that_says_nothing_is_awaited_by_name_for_half_of_the_grace(swarm: Swarm) -> None:
    swarm[0].judges = lambda _expert: None
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    beat = swarm.waiting()
    assert beat.waiting_for == (swarm[0].peer_id,)
    assert beat.why == "6 experts are being tested on held-out text"
    started_at = swarm.now
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now - started_at == swarm.layout.manifest.timing.round_grace_seconds / 2


def test_what_is_not_the_senders_to_say_is_refused(swarm: Swarm) -> None:
    swarm[0].judges = lambda _expert: None
    swarm.until(lambda: swarm.phase == "reducing")
    own = swarm.layout.manifest.experts_of(swarm[0].subsets[0])[0]
    digest = bytes(32)
    assert "is not the sender's to test" in swarm.ask(swarm[0], Verdict(1, own, digest, True, True, ""))
    assert "is not the sender's to test" in swarm.ask(swarm[0], Verdict(1, 99, digest, True, True, ""))
    assert "round 1 is open" in swarm.ask(swarm[0], Verdict(7, 0, digest, True, True, ""))
    other = (own + 2) % 8
    assert "what it has not tested" in swarm.ask(swarm[0], Verdict(1, other, digest, False, True, ""))
    assert swarm.ask(swarm[0], Verdict(1, other, digest, True, True, "")) == ""
    assert isinstance(swarm.state.phase, Reducing)


# ---- marks ----


@pytest.mark.parametrize(
    ("num_sound", "num_harmful", "num_drawn", "marks"),
    [
        (1, 6, 7, True),
        (0, 6, 7, True),
        (2, 5, 7, False),
        (0, 5, 7, False),
        (0, 2, 2, True),
        (0, 1, 1, True),
        (0, 1, 2, False),
        (0, 0, 0, False),  # all own it
    ],
)
def test_nearly_all_that_were_drawn_must_object_to_mark_an_owner(
    num_sound: int, num_harmful: int, num_drawn: int, marks: bool
) -> None:
    assert is_marked([SOUND] * num_sound + [HARMFUL] * num_harmful, num_drawn) is marks


def test_three_marks_cost_a_seat_until_the_first_of_the_last_three_is_twenty_rounds_old(swarm: Swarm) -> None:
    evil = swarm[1]
    bad = set(swarm.layout.manifest.experts_of(evil.subsets[0]))
    for member in swarm.members.values():
        member.judges = lambda expert: expert in bad and evil.peer_id in swarm.head.record.members
    swarm.until(lambda: swarm.round == 24)
    marked = [record.round for record in swarm.records if record.harmful]
    assert marked == [2, 3, 4, 5, 24]  # round 4 was open when the third came
    assert all(record.harmful in ((), (evil.peer_id,)) for record in swarm.records)
    seated = [record.round for record in swarm.records if evil.peer_id in record.members]
    assert seated == [1, 2, 3, 4, 23, 24]
    assert "admission: your experts did harm 3 times of late; a place is yours again with record 23" in evil.refusals
    assert not any(member.objections for member in swarm.members.values())


def test_marks_that_would_cost_half_of_the_seats_cost_none() -> None:
    seats = tuple(Seat(PeerId(peer), 1, (0,)) for peer in "abcd")
    marks = Marks({PeerId("a"): (1, 2, 3), PeerId("b"): (2, 3, 4), PeerId("c"): (3, 4)})
    assert without_barred(seats, marks, 4) == seats
    assert [seat.peer_id for seat in without_barred((*seats, Seat(PeerId("e"), 1, (0,))), marks, 4)] == ["c", "d", "e"]
    assert without_barred(seats, marks, 20) == tuple(seat for seat in seats if seat.peer_id != "b")


def test_of_several_owners_nobody_is_marked(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "sync", most_harm=0.03), [(0,), (0,), (1,), (2,), (3,)])
    for member in swarm.members.values():
        member.judges = lambda expert: expert in (0, 1, 2)
    swarm.until(lambda: swarm.round == 3)
    (alone,) = (peer for peer, member in swarm.members.items() if member.subsets == (1,))
    assert [record.harmful for record in swarm.records[2:]] == [(alone,)] * 2
    assert not any(member.objections for member in swarm.members.values())


# ---- what members make of a proposal's verdicts ----


@pytest.fixture
def disputed(swarm: Swarm) -> Swarm:
    """Record 2 is proposed, without the first expert, to which two of its three testers object."""
    (owner,) = (member for member in swarm.members.values() if member.subsets == (0,))
    others = [member for member in swarm.members.values() if member is not owner]
    for member in others[:2]:
        member.judges = lambda expert: expert == 0
    swarm.until(lambda: swarm.round == 1)
    swarm.until(lambda: swarm.phase == "closing")
    return swarm


def proposed(swarm: Swarm) -> tuple[SealedRecord, tuple[Signed, ...]]:
    assert isinstance(swarm.state.phase, Closing)
    return swarm.state.phase.proposal, swarm.state.phase.verdicts


def with_first_expert(swarm: Swarm, record: Record) -> Record:
    """As it would have been, had nobody objected."""
    blocks = {block.id for block in swarm.layout.expert_blocks(0)}
    (owner,) = (member for member in swarm.members.values() if member.subsets == (0,))
    like = next(one for one in record.updates if one.block.startswith("expert/01"))
    assert owner.contribution is not None
    offers = (offer for offer in owner.contribution.offers if offer.block in blocks)
    added = tuple(replaced(like, block=offer.block, blob=offer.blob, size_bytes=offer.size_bytes) for offer in offers)
    shared = len(swarm.layout.shared_blocks)
    return replaced(record, updates=(*record.updates[:shared], *added, *record.updates[shared:]))


def test_the_verdicts_on_a_disputed_expert_come_with_the_proposal_and_no_others(disputed: Swarm) -> None:
    sealed, verdicts = proposed(disputed)
    assert experts_in(sealed.record) == set(range(1, 8))
    assert [signed.open(Verdict, signed.run_id).expert for signed in verdicts] == [0, 0, 0]
    for member in disputed.members.values():
        ours = member.facts().objections()
        assert fault_in_verdicts(verdicts, sealed.record, disputed.head, disputed.layout, ours) is None


def test_a_proposal_that_lists_what_too_many_object_to_is_not_signed(disputed: Swarm) -> None:
    sealed, verdicts = proposed(disputed)
    listed = with_first_expert(disputed, sealed.record)
    assert digests_in(listed.updates, disputed.layout)[0] == verdicts[0].open(Verdict, verdicts[0].run_id).updates
    fault = fault_in_verdicts(verdicts, listed, disputed.head, disputed.layout, {})
    assert fault == "more than half of those that tested expert 0 object to its updates"


def test_a_proposal_that_marks_whom_the_verdicts_do_not_is_not_signed(disputed: Swarm) -> None:
    sealed, verdicts = proposed(disputed)
    assert sealed.record.harmful == ()  # two of three that were drawn are less than four fifths
    owner = next(member for member in disputed.members.values() if member.subsets == (0,))
    marked = replaced(sealed.record, harmful=(owner.peer_id,))
    fault = fault_in_verdicts(verdicts, marked, disputed.head, disputed.layout, {})
    assert fault == f"{owner.peer_id} is marked, and the verdicts do not say so"
    assert fault_in_verdicts(verdicts, marked, disputed.head, disputed.layout, {}, is_bound=True) is None
    stranger = replaced(sealed.record, harmful=(PeerId("nobody"),))
    own = owner.facts()
    assert "those it marks are not members" in (
        objections(stranger.seal(), disputed.head, own, disputed.layout) or "signed"
    )


def test_who_objects_does_not_sign_a_proposal_from_which_its_objection_is_missing(disputed: Swarm) -> None:
    sealed, verdicts = proposed(disputed)
    listed = with_first_expert(disputed, sealed.record)
    objector = next(member for member in disputed.members.values() if member.facts().objections())
    kept = tuple(one for one in verdicts if one.peer_id != objector.peer_id)
    ours = objector.facts().objections()
    fault = fault_in_verdicts(kept, listed, disputed.head, disputed.layout, ours)
    assert fault == "our objection to the updates of expert 0 is not among its verdicts"
    assert fault_in_verdicts(kept, listed, disputed.head, disputed.layout, {}) is None


def test_verdicts_that_are_forged_or_another_rounds_are_refused(disputed: Swarm) -> None:
    sealed, verdicts = proposed(disputed)

    def fault(*given: Signed) -> str:
        return fault_in_verdicts(given, sealed.record, disputed.head, disputed.layout, {}) or "signed"

    forged = dataclasses.replace(verdicts[0], signature=bytes(64))
    assert "is not good" in fault(forged)
    member = disputed.members[verdicts[0].peer_id]  # type: ignore[index]
    assert "round 1 is open" in fault(member.signer.sign(Verdict(9, 0, b"", True, True, "")))
    assert "is not good" in fault(member.signer.sign(Proposal(0, b"")))
    assert "57 verdicts" in fault(*verdicts[:1] * 57)


def test_a_coordinator_that_starts_again_proposes_with_the_same_verdicts(disputed: Swarm) -> None:
    sealed, verdicts = proposed(disputed)
    again = coordinator.start(
        disputed.state.fixed,
        disputed.head,
        disputed.state.me,
        disputed.now,
        proposal=Proposal(0, sealed.content, (), verdicts),
    )
    assert isinstance(again.phase, Closing)
    assert again.phase.verdicts == verdicts


def test_a_coordinator_that_is_elected_again_proposes_with_all_that_it_has_shown(disputed: Swarm) -> None:
    """Or whoever objected to anything in it, in vain, would miss its objection and not sign; nor would who stood on
    another state root, or looks for the proof of a newcomer."""
    _, verdicts = proposed(disputed)
    peer = disputed[0].peer_id
    footings = (disputed[0].signer.sign(Footing(1, "ab" * 32)),)
    proofs = (invite(ORGANIZER, RUN_ID, 1.0).prove(peer),)
    assert isinstance(disputed.state.phase, Closing)
    phase = replaced(disputed.state.phase, footings=footings, proofs=proofs)
    term = len(disputed.head.record.candidates)
    vote = Vote(1, disputed.head.hash, term, b"", 0)
    votes = {peer: member.signer.sign(vote) for peer, member in list(disputed.members.items())[:3]}
    state = replaced(disputed.state, phase=phase, mandate=Mandate(asked_term=term, votes=votes))
    step = coordinator.on_time(state, disputed.now)
    assert isinstance(step.state.phase, Closing)
    assert step.state.phase.term == term
    assert not step.state.phase.signatures
    (asked,) = {out.message for out in step.outgoing if isinstance(out.message, Proposal)}
    assert (asked.verdicts, asked.footings, asked.proofs) == (verdicts, footings, proofs)


# ---- what trainers find ----


class Trials:
    """Two peers with two experts each, after some rounds; the second tests an expert of the first."""

    def __init__(self, folder: Path) -> None:
        self.swarm = Trainers.create(folder, (0,), (1,))
        for _ in range(6):
            self.swarm.apply(self.swarm.updates(self.swarm.train()))
        self.trained = self.swarm.train()
        self.owner, self.tester = self.swarm.trainers[PEERS[0]], self.swarm.trainers[PEERS[1]]
        self.layout = self.tester._layout

    def honest(self, expert: int) -> tuple[str, ...]:
        blocks = [block.id for block in self.layout.expert_blocks(expert)]
        return tuple(offer.blob for offer in self.trained[PEERS[0]].offers if offer.block in blocks)

    def offering(self, expert: int, wanted: torch.Tensor) -> tuple[str, ...]:
        """The blobs that would make this of the expert."""
        delta = wanted - self.tester._public.group(expert)
        return tuple(
            self.swarm.blobs.put(encode(self.layout.offer_format(block), delta[block.start : block.end])).name
            for block in self.layout.expert_blocks(expert)
        )

    def test(self, expert: int, blobs: tuple[str, ...]) -> ExpertTried:
        return self.tester.try_expert(TryExpert(self.swarm.round, expert, blobs, 1, 2))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("tests"))


def rise(tried: ExpertTried) -> float:
    assert not tried.fault
    return tried.loss_after / tried.loss_before - 1


@pytest.mark.parametrize("expert", [0, 1])
def test_an_honest_update_of_an_expert_does_no_harm_by_its_testers_text(tests: Trials, expert: int) -> None:
    most = tests.swarm.manifest.sync.most_harm
    assert rise(tests.test(expert, tests.honest(expert))) < most / 2


@pytest.mark.parametrize("attack", ["sign-flipped", "random", "scaled"])
def test_an_expert_that_was_destroyed_raises_the_held_out_loss_by_more_than_is_borne(
    tests: Trials, attack: str
) -> None:
    public = tests.tester._public.group(0)
    noise = torch.randn(public.numel(), generator=torch.Generator().manual_seed(1))
    ruined = {"sign-flipped": -public, "random": noise, "scaled": public * 10}[attack]
    most = tests.swarm.manifest.sync.most_harm
    assert rise(tests.test(0, tests.offering(0, ruined))) > 2 * most


def test_testing_changes_nothing_of_what_a_trainer_holds(tests: Trials) -> None:
    tester = tests.tester
    before = {
        "root": tester._public.root(),
        "shared": tester._decoder.flatten_shared(),
        **{f"master {expert}": tester._decoder.flatten_master(expert) for expert in tester._decoder.owned},
    }
    first = tests.test(1, tests.honest(1))
    tests.test(0, tests.offering(0, -tester._public.group(0)))
    assert tests.test(1, tests.honest(1)) == first
    assert tester._public.root() == before["root"]
    assert torch.equal(tester._decoder.flatten_shared(), before["shared"])  # type: ignore[arg-type]
    for expert in tester._decoder.owned:
        assert torch.equal(tester._decoder.flatten_master(expert), before[f"master {expert}"])  # type: ignore[arg-type]


def test_updates_that_cannot_be_read_are_a_fault_and_absurd_requests_an_error(tests: Trials) -> None:
    size = tests.layout.offer_bytes(tests.layout.expert_blocks(0)[0])
    blocks = tests.layout.expert_blocks(0)
    garbage = tests.swarm.blobs.put(b"\xff" * size).name
    tried = tests.test(0, (garbage, *tests.honest(0)[1:]))
    assert tried.fault
    with pytest.raises(SpesError, match="asked to test"):
        tests.test(0, tests.honest(0)[:-1])
    with pytest.raises(SpesError, match="asked to test"):
        tests.test(2, tests.honest(0))  # its own
    with pytest.raises(SpesError, match="asked to test"):
        tests.test(99, tests.honest(0))
    with pytest.raises(SpesError, match="the state is that of round"):
        tests.tester.try_expert(TryExpert(99, 0, tests.honest(0), 1, 2))  # type: ignore[arg-type]
    assert len(blocks) > 1
