"""State roots in records: nobody makes one up, and who is wrong itself is told by enough others."""

from collections.abc import Callable

import pytest
from rounds_swarm import Member, Swarm, changed, replaced

from spes_peer.identity import Identity
from spes_peer.rounds.footings import fault_in_root
from spes_peer.rounds.member import Own
from spes_peer.rounds.messages import Footing, Proposal
from spes_peer.rounds.phases import Closing
from spes_peer.run.manifest import Manifest
from spes_peer.run.signed import Signed

MADE_UP = "e" * 64


@pytest.fixture
def swarm(manifest: Manifest) -> Swarm:
    """Six members, about to sign what closes a trained round."""
    swarm = Swarm(changed(manifest, "run", min_peers=6), [(number % 4,) for number in range(6)])
    swarm.until(lambda: swarm.round == 2)
    for member in swarm.members.values():
        member.sign = lambda _proposal: None  # type: ignore[method-assign]
    swarm.until(lambda: isinstance(swarm.state.phase, Closing))
    return swarm


def judged(swarm: Swarm, own: Own, shown: tuple[Signed, ...] = (), root: str = MADE_UP, late_by: float = -1.0) -> str:
    """What a member says to a record with this root, so many seconds after the round's deadline."""
    assert isinstance(swarm.state.phase, Closing)
    record, previous = replaced(swarm.state.phase.proposal.record, state_root=root), swarm.head.record
    return fault_in_root(record, previous, own, shown, previous.deadline_at + late_by) or "signed"


def said(member: Member, root: str = MADE_UP, round: int = 2) -> Signed:
    return member.signer.sign(Footing(round, root))


def test_every_member_signs_the_root_on_which_it_stood_and_no_made_up_one(swarm: Swarm) -> None:
    for member in swarm.members.values():
        assert judged(swarm, member.facts(), root=member.root) == "signed"
        assert judged(swarm, member.facts()).startswith(f"we stood on state root {member.root[:12]}, and too few say")
        assert "too few say" in judged(swarm, member.facts(), late_by=3600.0)  # time makes it no better
        assert judged(swarm, member.facts(), root="") == "signed"  # which names no state


def test_the_word_of_more_than_a_third_of_the_roster_is_believed_and_of_fewer_is_not(swarm: Swarm) -> None:
    own = swarm[0].facts()
    assert "too few say" in judged(swarm, own, tuple(said(swarm[number]) for number in (1, 2)))
    assert judged(swarm, own, tuple(said(swarm[number]) for number in (1, 2, 3))) == "signed"


@pytest.mark.parametrize(
    "third",
    [
        lambda swarm: said(swarm[1]),  # twice the same
        lambda swarm: said(swarm[3], round=1),
        lambda swarm: said(swarm[3], root="d" * 64),
        lambda swarm: replaced(said(swarm[3]), signature=said(swarm[4]).signature),
        lambda swarm: replaced(said(swarm[1]), peer_id=swarm[3].peer_id),
        lambda swarm: said(swarm.join(70, (0,))),
    ],
    ids=["twice", "another round", "another root", "a bad signature", "another's name", "a stranger"],
)
def test_words_that_are_not_a_members_on_this_root_in_this_round_do_not_count(
    swarm: Swarm, third: Callable[[Swarm], Signed]
) -> None:
    assert "too few say" in judged(swarm, swarm[0].facts(), (said(swarm[1]), said(swarm[2]), third(swarm)))


def test_who_knows_no_root_signs_none_before_the_round_is_over_unless_nobody_was_to_wait_for_it(swarm: Swarm) -> None:
    known = swarm[0].facts()
    own = replaced(known, contribution=None)
    assert judged(swarm, own) == "round 2 has time left, and we have not contributed"
    assert judged(swarm, own, late_by=0.0) == "signed"
    assert judged(swarm, replaced(own, is_excused=True)) == "signed"
    assert judged(swarm, replaced(own, incarnation=known.incarnation + 1)) == "signed"  # an earlier start knew it
    assert judged(swarm, replaced(own, peer_id=Identity.generate().peer_id)) == "signed"  # a newcomer


def test_before_anything_was_trained_every_member_knows_the_root(manifest: Manifest) -> None:
    swarm = Swarm(manifest, [(0,), (1,), (2,), (3,)])
    swarm.until(lambda: swarm.round == 1)
    assert not swarm.head.record.updates
    own, previous = replaced(swarm[0].facts(), contribution=None), swarm.head.record
    assert fault_in_root(replaced(previous, round=2), previous, own, (), 0.0) is None
    assert fault_in_root(replaced(previous, round=2, state_root=MADE_UP), previous, own, (), 0.0)


def test_a_coordinator_shows_who_stood_where_only_when_not_all_stood_on_one_root(manifest: Manifest) -> None:
    swarm = Swarm(manifest, [(0,), (1,), (2,), (3,)])
    shown: list[tuple[Signed, ...]] = []
    sign = swarm[1].sign

    def note(proposal: Proposal) -> None:
        shown.append(proposal.footings)
        sign(proposal)

    swarm[1].sign = note  # type: ignore[method-assign]
    swarm.until(lambda: swarm.round == 2)
    assert set(shown) == {()}
    swarm[0].change = lambda honest: replaced(honest, state_root=MADE_UP)  # a byte of its state has flipped
    swarm.until(lambda: swarm.round == 4)
    told = [one for one in shown if one]
    assert {signed.peer_id for signed in told[-1]} == swarm.members.keys() - {swarm[0].peer_id}
    assert not any(member.objections for member in swarm.members.values())  # it believes them too


def test_two_members_that_differ_go_on_with_the_state_of_one(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "run", min_peers=2), [(0, 1), (2, 3)])
    swarm.until(lambda: swarm.round == 2)
    swarm[0].change = lambda honest: replaced(honest, state_root=MADE_UP)
    swarm.until(lambda: swarm.round == 4)
    assert not any(member.objections for member in swarm.members.values())
