"""Amendments: who may make which change, behind which record, and what of it a record may carry."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from chain_parts import FIRST, PEERS, STRANGER, branch, certify, following, grown
from hypothesis import given
from hypothesis import strategies as st
from rounds_swarm import CHECKS, ORGANIZER, RUN_ID, genesis

from spes_peer.errors import BadMessage, BadSignature, PeerError
from spes_peer.identity import Identity
from spes_peer.run.certificates import check_record
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import MOST_LISTED, Manifest, Timing
from spes_peer.run.records import SealedRecord, first_record
from spes_peer.run.rules import (
    MAX_AMENDMENT_BYTES,
    Amendment,
    Change,
    Rules,
    amendment_in,
    faults_in_rules,
    hash_of,
    open_amendment,
    rules_of,
    sign_amendment,
)
from spes_peer.run.signed import Signed, Signer

OTHER = Identity.from_seed(b"\x51" * 32)
"""Whom an organizer lets in as another."""
NOW = 1_000.0
VOTERS = (*PEERS[:3], FIRST)


@pytest.fixture
def zero(manifest: Manifest) -> SealedRecord:
    return genesis(Layout(manifest)).seal()


@pytest.fixture
def head(tmp_path: Any, zero: SealedRecord) -> SealedRecord:
    found = grown(tmp_path, zero, 3).head
    assert found is not None
    return found


def amended(head: SealedRecord, change: Change, organizer: Identity = ORGANIZER, now: float = NOW) -> Signed:
    rules = change.of(rules_of(head.record, CHECKS.rules), now)
    return sign_amendment(rules, head.record.amendment, organizer, RUN_ID, now)


def with_amendment(head: SealedRecord, amendment: Signed | None) -> SealedRecord:
    """The next record, checked with what it carries."""
    made = certify(following(head, amendment=amendment), *VOTERS)
    return check_record(made, head, CHECKS).sealed


def opened(amendment: Signed, head: SealedRecord) -> Amendment:
    return open_amendment(amendment, head.record, CHECKS.rules, CHECKS.timing)


def test_the_rules_of_a_record_are_the_manifests_until_an_amendment_changes_them(head: SealedRecord) -> None:
    assert rules_of(head.record, CHECKS.rules) == CHECKS.rules
    changed = with_amendment(head, amended(head, Change(is_paused=True, round_seconds=300.0)))
    rules = rules_of(changed.record, CHECKS.rules)
    assert rules.is_paused
    assert rules.round_seconds == 300.0
    assert rules_of(with_amendment(changed, changed.record.amendment).record, CHECKS.rules) == rules


def test_a_record_may_not_drop_or_alter_the_amendment_of_the_one_before(head: SealedRecord) -> None:
    changed = with_amendment(head, amended(head, Change(is_paused=True)))
    with pytest.raises(BadMessage, match="drops the amendment"):
        with_amendment(changed, None)
    carried = changed.record.amendment
    assert carried is not None
    for altered in (
        replace(carried, counter=carried.counter + 1),
        replace(carried, incarnation=carried.incarnation + 1),
        replace(carried, signature=bytes(64)),
        replace(carried, peer_id=OTHER.peer_id),
    ):
        with pytest.raises(BadMessage, match="is not valid"):
            with_amendment(changed, altered)


def test_a_coordinator_that_alters_an_amendment_makes_no_record(head: SealedRecord) -> None:
    amendment = amended(head, Change(ban=(PEERS[0].peer_id,)))
    rules = Change(ban=(PEERS[1].peer_id,)).of(CHECKS.rules, NOW)
    body = sign_amendment(rules, None, ORGANIZER, RUN_ID, NOW).body
    with pytest.raises(BadMessage, match="is not valid: a signature"):
        with_amendment(head, replace(amendment, body=body))


@pytest.mark.parametrize("signer", [STRANGER, PEERS[0], FIRST])
def test_nobody_else_than_an_organizer_amends(head: SealedRecord, signer: Identity) -> None:
    with pytest.raises(BadSignature, match="is no organizer"):
        opened(amended(head, Change(is_paused=True), signer), head)


def test_an_older_number_is_over_and_a_number_is_not_skipped(head: SealedRecord) -> None:
    first = amended(head, Change(is_paused=True))
    changed = with_amendment(head, first)
    with pytest.raises(BadMessage, match="amendment 1 is over: the run has amendment 1"):
        opened(first, changed)
    second = with_amendment(changed, amended(changed, Change(is_paused=False)))
    with pytest.raises(BadMessage, match="amendment 1 is over: the run has amendment 2"):
        opened(first, second)
    with pytest.raises(BadMessage, match="amendment 2 does not follow amendment 0"):
        opened(amended(changed, Change(is_paused=False)), head)


def test_what_follows_the_amendment_of_one_branch_does_not_hold_on_the_other(head: SealedRecord) -> None:
    ours = with_amendment(head, amended(head, Change(is_paused=True)))
    theirs = with_amendment(head, amended(head, Change(round_seconds=200.0), now=NOW + 1))
    behind_ours = amended(ours, Change(is_paused=False))
    assert opened(behind_ours, ours).number == 2
    with pytest.raises(BadMessage, match="follows another amendment 1 than the run has"):
        opened(behind_ours, theirs)


def test_branches_with_different_amendments_are_both_chains_and_each_is_checked_by_its_own(
    tmp_path: Any, zero: SealedRecord
) -> None:
    chain = grown(tmp_path, zero, 3)
    assert chain.head is not None
    base = chain.head
    one, other = amended(base, Change(is_paused=True)), amended(base, Change(add_organizers=(OTHER.peer_id,)))
    chain.append(certify(following(base, amendment=one), uncertified=(PEERS[0],)))
    longer = branch(base, ({"amendment": other}, VOTERS), ({"amendment": other}, VOTERS))
    assert chain.adopt(longer) is not None
    head = chain.head
    assert head is not None
    assert chain.checks.rules_of(head.record).organizers == tuple(sorted((ORGANIZER.peer_id, OTHER.peer_id)))
    assert opened(amended(head, Change(), OTHER), head).number == 2


def test_a_lost_key_is_replaced_by_another_and_then_changes_nothing_more(head: SealedRecord) -> None:
    handed = with_amendment(head, amended(head, Change(add_organizers=(OTHER.peer_id,))))
    change = Change(remove_organizers=(ORGANIZER.peer_id,))
    alone = with_amendment(handed, amended(handed, change, OTHER))
    assert rules_of(alone.record, CHECKS.rules).organizers == (OTHER.peer_id,)
    with pytest.raises(BadSignature, match="is no organizer"):
        opened(amended(alone, Change(is_paused=True), ORGANIZER), alone)
    with pytest.raises(BadMessage, match="no organizer"):
        with_amendment(alone, amended(alone, Change(is_paused=True), ORGANIZER))


def test_a_removed_key_weighs_nothing_under_an_uncertified_record(head: SealedRecord) -> None:
    handed = with_amendment(head, amended(head, Change(add_organizers=(OTHER.peer_id,))))
    alone = with_amendment(handed, amended(handed, Change(remove_organizers=(ORGANIZER.peer_id,)), OTHER))
    record = following(alone)
    assert check_record(certify(record, uncertified=(PEERS[0], OTHER)), alone, CHECKS).has_organizer
    with pytest.raises(BadSignature, match="has no vote"):
        check_record(certify(record, uncertified=(PEERS[0], ORGANIZER)), alone, CHECKS)


def test_there_is_always_an_organizer(head: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="nobody would be an organizer"):
        opened(amended(head, Change(remove_organizers=(ORGANIZER.peer_id,))), head)


def test_an_amendment_of_another_run_is_none(head: SealedRecord) -> None:
    foreign = sign_amendment(CHECKS.rules, None, ORGANIZER, b"\7" * 32, NOW)
    with pytest.raises(BadMessage, match="of another run"):
        opened(foreign, head)


def test_what_is_too_large_is_refused_before_its_signature_is_looked_at(head: SealedRecord) -> None:
    signed = amended(head, Change(is_paused=True))
    with pytest.raises(BadMessage, match=f"{MAX_AMENDMENT_BYTES} are the most"):
        opened(replace(signed, body=bytes(MAX_AMENDMENT_BYTES + 1)), head)


def test_another_message_of_an_organizer_is_no_amendment(head: SealedRecord) -> None:
    signed = Signer(ORGANIZER, RUN_ID, 1).sign(CHECKS.rules)
    with pytest.raises(BadMessage, match="where a Amendment belongs"):
        opened(signed, head)


def many(count: int) -> tuple[str, ...]:
    return tuple(f"peer{number:05d}" for number in range(count))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"banned": many(MOST_LISTED + 1)}, f"{MOST_LISTED} are the most"),
        ({"banned": ("nonsense",)}, "is no peer id"),
        ({"banned": (PEERS[1].peer_id, PEERS[0].peer_id)}, "not in order"),
        ({"listed": (PEERS[0].peer_id, PEERS[0].peer_id)}, "there twice"),
        ({"organizers": ()}, "nobody would be an organizer"),
        ({"round_seconds": 0.0}, "round_seconds"),
        ({"round_seconds": 650.0}, "lease_seconds / 2"),
        ({"quorum": 100_000}, "a quorum of 100000"),
        ({"paused_at": -1.0}, "before there was time"),
    ],
)
def test_rules_that_can_be_nobodys_are_refused(wrong: dict[str, Any], why: str) -> None:
    faults = list(faults_in_rules(replace(CHECKS.rules, **wrong), Timing()))
    assert any(why in fault for fault in faults), faults


def test_no_record_names_whom_its_rules_ban(head: SealedRecord) -> None:
    out = PEERS[1].peer_id
    amendment = amended(head, Change(ban=(out,)))
    with pytest.raises(BadMessage, match=f"names {out}, whom an organizer has banned"):
        with_amendment(head, amendment)
    roster = tuple(entry for entry in following(head).roster if entry.peer_id != out)
    made = certify(following(head, amendment=amendment, roster=roster), *VOTERS)
    assert check_record(made, head, CHECKS).is_certified


ids = st.sampled_from([one.peer_id for one in (*PEERS, OTHER, STRANGER, ORGANIZER)])
some = st.lists(ids, max_size=4).map(tuple)
changes_ = st.builds(
    Change,
    is_paused=st.none() | st.booleans(),
    finish_after_round=st.none() | st.integers(0, 2**40),
    round_seconds=st.none() | st.floats(1.0, 600.0),
    quorum=st.none() | st.integers(0, 10),
    ban=some,
    unban=some,
    add_organizers=some,
    remove_organizers=some,
    enlist=some,
    unlist=some,
    revoke=some,
)


@given(st.lists(changes_, max_size=4))
def test_changes_one_after_another_lead_to_rules_that_can_be_or_are_refused_for_want_of_organizers(
    wanted: list[Change],
) -> None:
    rules = CHECKS.rules
    for change in wanted:
        rules = change.of(rules, NOW)
        assert not set(faults_in_rules(rules, Timing())) - {"nobody would be an organizer any more"}
        assert set(change.ban) - set(change.unban) <= set(rules.banned)
        assert change.of(rules, NOW + 1) == rules or change.is_paused is False


@given(st.binary(max_size=400))
def test_whatever_an_organizer_signs_is_an_amendment_or_refused(body: bytes) -> None:
    unsigned = Signed("Amendment", RUN_ID, b"", ORGANIZER.peer_id, 0, 1, body, b"")
    signed = replace(unsigned, signature=ORGANIZER.sign(unsigned.signed_bytes()))
    record = first_record(RUN_ID, (), (), now=0.0)
    with contextlib.suppress(PeerError):
        assert open_amendment(signed, record, CHECKS.rules, CHECKS.timing).number == 1


def test_an_amendment_is_named_by_what_its_signature_covers(head: SealedRecord) -> None:
    one = amended(head, Change(is_paused=True))
    assert hash_of(one) == hash_of(replace(one, signature=bytes(64))) != hash_of(amended(head, Change(), now=NOW + 1))
    assert amendment_in(head.record) is None
    assert hash_of(None) == b""


def test_rules_begin_as_the_manifest_says(manifest: Manifest) -> None:
    rules = Rules.of(manifest)
    assert rules.organizers == tuple(sorted(manifest.organizers))
    assert rules.round_seconds == manifest.timing.round_seconds
    assert not rules.is_paused
    assert not rules.banned
