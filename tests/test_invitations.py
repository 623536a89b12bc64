"""Who may join: invitations that only their holder can use, lists, and what members sign of newcomers."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_swarm import ORGANIZER, RUN_ID, Swarm, changed

from spes_peer.errors import BadConfiguration
from spes_peer.identity import Identity
from spes_peer.rounds.messages import AdmissionRequest, Departure
from spes_peer.rounds.phases import Closing
from spes_peer.run.invitations import (
    MAX_GRANT_BYTES,
    MAX_TEXT_CHARACTERS,
    Invitation,
    InvitationProof,
    fault_in_newcomer,
    fault_in_newcomers,
    fault_in_proof,
    invite,
)
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.rules import Change, Rules

ANNA, BERT = (Identity.from_seed(bytes([n]) * 32).peer_id for n in (30, 31))
STRANGER = Identity.from_seed(b"\x63" * 32)
RULES = Rules((ORGANIZER.peer_id,), 100.0)
NOW, LATER = 1_000.0, 2_000.0


def fault(proof: InvitationProof, rules: Rules = RULES, now: float = NOW) -> str:
    return str(fault_in_proof(proof, rules, RUN_ID, now))


def test_whoever_has_an_invitation_proves_it_and_its_text_is_the_same_invitation() -> None:
    invitation = invite(ORGANIZER, RUN_ID, LATER)
    again = Invitation.from_text(invitation.to_text())
    assert again == invitation
    assert fault_in_proof(again.prove(ANNA), RULES, RUN_ID, NOW) is None
    assert fault_in_proof(again.prove(BERT), RULES, RUN_ID, NOW) is None


def test_a_proof_is_of_no_use_to_another_peer() -> None:
    proof = invite(ORGANIZER, RUN_ID, LATER).prove(ANNA)
    assert "is not good" in fault(replace(proof, peer_id=BERT))


def test_an_invitation_for_one_peer_lets_nobody_else_in() -> None:
    invitation = invite(ORGANIZER, RUN_ID, LATER, ANNA)
    assert fault_in_proof(invitation.prove(ANNA), RULES, RUN_ID, NOW) is None
    assert fault(invitation.prove(BERT)) == "its invitation is another peer's"
    with pytest.raises(BadConfiguration, match="is for peer"):
        invitation.refuse_if_useless(RUN_ID, BERT, NOW)


def test_an_invitation_ends() -> None:
    invitation = invite(ORGANIZER, RUN_ID, LATER)
    assert fault(invitation.prove(ANNA), now=LATER + 1) == "its invitation has expired"
    with pytest.raises(BadConfiguration, match="has expired"):
        invitation.refuse_if_useless(RUN_ID, ANNA, LATER + 1)


def test_an_invitation_can_be_revoked_and_goes_with_the_key_that_signed_it() -> None:
    invitation = invite(ORGANIZER, RUN_ID, LATER)
    revoked = Change(revoke=(invitation.granted.invitation,)).of(RULES, NOW)
    assert fault(invitation.prove(ANNA), revoked) == "its invitation has been revoked"
    handed_over = replace(RULES, organizers=(STRANGER.peer_id,))
    assert "nobody who is an organizer" in fault(invitation.prove(ANNA), handed_over)


def test_nobody_else_can_invite_nor_stretch_an_invitation() -> None:
    assert "nobody who is an organizer" in fault(invite(STRANGER, RUN_ID, LATER).prove(ANNA))
    proof = invite(ORGANIZER, RUN_ID, LATER).prove(ANNA)
    longer = invite(ORGANIZER, RUN_ID, 10 * LATER).grant.body
    assert "is not good" in fault(replace(proof, grant=replace(proof.grant, body=longer)))
    assert (
        fault(replace(proof, grant=replace(proof.grant, body=bytes(MAX_GRANT_BYTES + 1)))) == "its invitation is none"
    )
    assert "is not good" in fault(replace(proof, signature=bytes(64)))
    assert "is not good" in fault(invite(ORGANIZER, b"\7" * 32, LATER).prove(ANNA))


def test_an_invitation_to_another_run_is_said_to_be_one() -> None:
    with pytest.raises(BadConfiguration, match="is for another run"):
        invite(ORGANIZER, b"\7" * 32, LATER).refuse_if_useless(RUN_ID, ANNA, NOW)


@given(st.integers(0, 600), st.sampled_from("aZ0_-"))
def test_a_text_with_one_other_letter_is_damaged(place: int, letter: str) -> None:
    text = TEXT
    place %= len(text)
    if text[place] != letter:
        with pytest.raises(BadConfiguration):
            Invitation.from_text(text[:place] + letter + text[place + 1 :])


@given(st.text(max_size=80))
def test_any_other_text_is_no_invitation(text: str) -> None:
    with pytest.raises(BadConfiguration):
        Invitation.from_text(text)
    with pytest.raises(BadConfiguration):
        Invitation.from_text(f"spes-invitation-{text}")


TEXT = invite(ORGANIZER, RUN_ID, LATER).to_text()


def test_a_text_that_a_mail_has_folded_is_read_and_an_endless_one_is_not() -> None:
    folded = "\n  ".join(TEXT[at : at + 60] for at in range(0, len(TEXT), 60)) + "\n"
    assert Invitation.from_text(folded).to_text() == TEXT
    with pytest.raises(BadConfiguration):
        Invitation.from_text(TEXT + "A" * 10 * MAX_TEXT_CHARACTERS)


def closed(manifest: Manifest, mode: str, **more: Any) -> Manifest:
    return changed(manifest, "admission", mode=mode, **more)


@pytest.mark.parametrize(
    ("mode", "listed", "is_invited", "gets_in"),
    [
        ("open", False, False, True),
        ("invitation", False, False, False),
        ("invitation", False, True, True),
        ("invitation", True, False, True),
        ("list", False, True, False),
        ("list", True, False, True),
    ],
)
def test_who_gets_in_is_as_the_manifest_says(
    manifest: Manifest, mode: str, listed: bool, is_invited: bool, gets_in: bool
) -> None:
    rules = replace(RULES, listed=(ANNA,) if listed else ())
    proof = invite(ORGANIZER, RUN_ID, LATER).prove(ANNA) if is_invited else None
    fault = fault_in_newcomer(ANNA, proof, rules, closed(manifest, mode), RUN_ID, NOW)
    assert (fault is None) == gets_in, fault
    banned = replace(rules, banned=(ANNA,))
    assert "banned" in str(fault_in_newcomer(ANNA, proof, banned, closed(manifest, mode), RUN_ID, NOW))


def invited(swarm: Swarm, number: int, proof: InvitationProof | None) -> str:
    """What a coordinator says to this newcomer's request."""
    member = swarm.join(number, (0,))
    return swarm.ask(member, AdmissionRequest((0,), 1.0, PROTOCOL_VERSION, proof))


@pytest.fixture
def by_invitation(manifest: Manifest) -> Swarm:
    swarm = Swarm(closed(changed(manifest, "run", min_peers=1), "invitation"), [])
    swarm.now = NOW
    return swarm


def test_a_coordinator_admits_whom_an_organizer_has_invited_and_tells_others_why_not(by_invitation: Swarm) -> None:
    peer = Identity.from_seed(bytes([20]) * 32).peer_id
    assert "ask for an invitation" in invited(by_invitation, 19, None)
    assert not invited(by_invitation, 20, invite(ORGANIZER, RUN_ID, LATER).prove(peer))
    phase = by_invitation.state.phase
    assert isinstance(phase, Closing)
    assert [entry.peer_id for entry in phase.proposal.record.roster] == [peer]
    assert [proof.peer_id for proof in phase.proofs] == [peer]


def test_members_sign_nobody_in_without_a_proof_and_know_who_was_in_before(by_invitation: Swarm) -> None:
    peer = Identity.from_seed(bytes([20]) * 32).peer_id
    invited(by_invitation, 20, invite(ORGANIZER, RUN_ID, LATER).prove(peer))
    assert isinstance(by_invitation.state.phase, Closing)
    record, proofs = by_invitation.state.phase.proposal.record, by_invitation.state.phase.proofs
    manifest = by_invitation.layout.manifest
    assert fault_in_newcomers(record, (), proofs, RULES, manifest, NOW) is None
    assert f"{peer} may not join" in str(fault_in_newcomers(record, (), (), RULES, manifest, NOW))
    assert fault_in_newcomers(record, (peer,), (), RULES, manifest, NOW) is None


def test_a_coordinator_keeps_no_proof_that_is_not_needed_or_not_good(manifest: Manifest, by_invitation: Swarm) -> None:
    nothing = invite(STRANGER, RUN_ID, LATER).prove(ANNA)
    large = replace(nothing, grant=replace(nothing.grant, body=bytes(7 << 20)))
    open_run = Swarm(manifest, [])
    assert not invited(open_run, 20, large)
    assert [one.proof for one in open_run.state.crowd.applicants.values()] == [None]
    peer = Identity.from_seed(bytes([20]) * 32).peer_id
    by_invitation.join(20, (0,))  # whoever it is may bring an amendment
    by_invitation.amend(Change(enlist=(peer,)))
    by_invitation.settle()
    assert not invited(by_invitation, 20, replace(large, peer_id=peer))
    assert by_invitation.state.crowd.applicants[peer].proof is None


def test_a_coordinator_forgets_strangers_that_have_gone(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "run", min_peers=9), [(0,), (1,)])
    swarm.settle()
    staying, going = swarm[0], swarm[1]
    leaving = swarm.join(19, (1,))
    swarm.ask(leaving, Departure("paused"))
    swarm.die(going)
    swarm.die(leaving)
    crowd = swarm.state.crowd
    assert crowd.applicants.keys() == crowd.links.keys() == crowd.speeds.keys() == {staying.peer_id}
    assert crowd.departed == frozenset()
    assert not swarm.ask(going, AdmissionRequest((1,), 1.0, PROTOCOL_VERSION))
    assert going.peer_id in swarm.state.crowd.applicants
