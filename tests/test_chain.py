"""The chain: which records take effect, and what survives on disk."""

from dataclasses import replace
from pathlib import Path

import pytest
from rounds_swarm import ORGANIZER, RUN_ID, genesis

from spes_peer.errors import BadMessage, BadSignature, BlobMissing, PeerError
from spes_peer.identity import Identity
from spes_peer.run.chain import Chain, check_certificate, sign_genesis
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import (
    BlockId,
    CertifiedRecord,
    Contributor,
    Record,
    RecordSignature,
    RosterEntry,
    SealedRecord,
    Update,
)
from spes_peer.run.signed import Signer

PEERS = sorted((Identity.from_seed(bytes([n]) * 32) for n in range(10, 14)), key=lambda one: one.peer_id)
STRANGER = Identity.from_seed(b"\x63" * 32)


def roster(*identities: Identity) -> tuple[RosterEntry, ...]:
    return tuple(RosterEntry(one.peer_id, 1, (0,), (), 1) for one in identities)


def following(previous: SealedRecord, **changes: object) -> Record:
    first = replace(
        previous.record, round=previous.round + 1, previous_hash=previous.hash, genesis=(), roster=roster(*PEERS)
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def certify(record: Record, *signers: Identity, term: int = 0, run_id: bytes = RUN_ID) -> CertifiedRecord:
    sealed = record.seal()
    signature = RecordSignature(record.round, term, sealed.hash)
    return CertifiedRecord(sealed.content, term, tuple(Signer(one, run_id, 1).sign(signature) for one in signers))


@pytest.fixture
def layout(manifest: Manifest) -> Layout:
    return Layout(manifest)


@pytest.fixture
def zero(layout: Layout) -> SealedRecord:
    return genesis(layout).seal()


@pytest.fixture
def one(zero: SealedRecord) -> SealedRecord:
    return following(zero).seal()


def check(certified: CertifiedRecord, previous: SealedRecord | None) -> SealedRecord:
    return check_certificate(certified, previous, [ORGANIZER.peer_id], RUN_ID)


def test_record_0_takes_effect_by_an_organizers_signature(zero: SealedRecord) -> None:
    assert check(sign_genesis(zero.record, ORGANIZER, RUN_ID), None) == zero


def test_record_0_by_anybody_else_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="has no vote on record 0"):
        check(sign_genesis(zero.record, STRANGER, RUN_ID), None)


def test_record_0_without_a_signature_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="0 signatures of 1 voters and needs 1"):
        check(CertifiedRecord(zero.content, 0, ()), None)


def test_record_0_with_another_root_than_its_blocks_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="not that of its genesis blocks"):
        check(sign_genesis(replace(zero.record, state_root="00" * 32), ORGANIZER, RUN_ID), None)


def test_a_later_record_where_record_0_belongs_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="record 1 where record 0 belongs"):
        check(certify(following(zero), *PEERS), None)


@pytest.mark.parametrize("num_signers", [3, 4])
def test_more_than_half_of_the_previous_roster_makes_a_record_take_effect(one: SealedRecord, num_signers: int) -> None:
    record = following(one, roster=roster(STRANGER))
    assert check(certify(record, *PEERS[:num_signers]), one).record == record


def test_half_of_the_roster_is_not_enough(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="2 signatures of 4 voters and needs 3"):
        check(certify(following(one), *PEERS[:2]), one)


def test_behind_an_empty_roster_more_than_half_of_its_own_signs(zero: SealedRecord) -> None:
    assert check(certify(following(zero), *PEERS[1:]), zero).round == 1
    with pytest.raises(BadSignature, match="needs 3"):
        check(certify(following(zero), *PEERS[:2]), zero)


def test_a_record_between_two_empty_rosters_cannot_take_effect(zero: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="nobody can sign it"):
        check(certify(following(zero, roster=())), zero)


def test_a_signature_counts_once(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="two signatures of one peer"):
        check(certify(following(one), PEERS[0], PEERS[0], PEERS[1]), one)


def test_strangers_signatures_do_not_count(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="has no vote"):
        check(certify(following(one), PEERS[0], PEERS[1], STRANGER), one)


def test_signatures_of_another_term_do_not_count(one: SealedRecord) -> None:
    certified = certify(following(one), *PEERS, term=1)
    with pytest.raises(BadSignature, match="signed another record"):
        check(replace(certified, term=2), one)


def test_signatures_under_another_record_do_not_count(one: SealedRecord) -> None:
    certified = certify(following(one), *PEERS)
    with pytest.raises(BadSignature, match="signed another record"):
        check(replace(certified, record=following(one, tokens=1).seal().content), one)


def test_signatures_of_another_run_do_not_count(one: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="of another run"):
        check(certify(following(one), *PEERS, run_id=bytes(32)), one)


def test_forged_signatures_do_not_count(one: SealedRecord) -> None:
    certified = certify(following(one), *PEERS)
    forged = replace(certified.signatures[0], signature=bytes(64))
    with pytest.raises(BadSignature, match="is not"):
        check(replace(certified, signatures=(forged, *certified.signatures[1:])), one)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 3}, "record 3 does not follow record 1"),
        ({"previous_hash": bytes(32)}, "follows another record 1 than ours"),
        ({"run_id": bytes(32)}, "of another run"),
        ({"version": 2}, "has version 2"),
        ({"roster": roster(*reversed(PEERS))}, "not in peer-id order"),
        ({"roster": roster(PEERS[0], PEERS[0])}, "names a peer twice"),
    ],
)
def test_a_record_out_of_place_is_refused_by_name(one: SealedRecord, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        check(certify(following(one, **changes), *PEERS), one)


def test_nothing_follows_the_final_record(zero: SealedRecord) -> None:
    last = following(zero, is_final=True).seal()
    with pytest.raises(BadMessage, match="the last of the run"):
        check(certify(following(last), *PEERS), last)


def test_bytes_that_are_no_record_are_refused() -> None:
    with pytest.raises(PeerError):
        check(CertifiedRecord(b"\xff" * 40, 0, ()), None)


# ---- on disk ----


def grown(folder: Path, zero: SealedRecord, num_records: int) -> Chain:
    chain = Chain(folder, [ORGANIZER.peer_id], RUN_ID)
    chain.append(sign_genesis(zero.record, ORGANIZER, RUN_ID))
    while chain.num_records < num_records:
        assert chain.head is not None
        chain.append(certify(following(chain.head), *PEERS[:3]))
    return chain


def test_a_chain_reads_back_what_it_kept(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 5)
    again = Chain(tmp_path, [ORGANIZER.peer_id], RUN_ID)
    assert again.head == chain.head
    assert again.num_records == 5
    assert [certified.sealed.round for certified in again.from_round(3)] == [3, 4]
    assert again.record(2) == chain.record(2)
    assert (tmp_path / "records" / "00000004.record").exists()


def test_an_empty_chain_has_no_head_and_no_records(tmp_path: Path) -> None:
    chain = Chain(tmp_path, [ORGANIZER.peer_id], RUN_ID)
    assert chain.head is None
    assert list(chain.from_round(0)) == []
    with pytest.raises(BlobMissing, match="record 0 is not here"):
        chain.record(0)


def test_a_record_that_is_refused_leaves_no_trace(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 2)
    assert chain.head is not None
    with pytest.raises(BadSignature):
        chain.append(certify(following(chain.head), PEERS[0]))
    assert chain.num_records == 2
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == ["00000000.record", "00000001.record"]


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100])
def test_loading_stops_before_a_damaged_file_and_goes_on_from_there(
    tmp_path: Path, zero: SealedRecord, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    chain = grown(tmp_path, zero, 4)
    missing = chain.record(2)
    (tmp_path / "records" / "00000002.record").write_bytes(damage)
    again = Chain(tmp_path, [ORGANIZER.peer_id], RUN_ID)
    assert again.num_records == 2
    assert "00000002.record" in caplog.text
    again.append(missing)
    assert Chain(tmp_path, [ORGANIZER.peer_id], RUN_ID).head == chain.head


def test_rounds_trained_counts_records_with_updates_of_a_subsets_experts(
    tmp_path: Path, zero: SealedRecord, layout: Layout
) -> None:
    chain = grown(tmp_path, zero, 2)
    for block in ("expert/03/0000", "expert/02/0001", "shared/0000", "expert/03/0000"):
        assert chain.head is not None
        update = Update(BlockId(block), zero.record.genesis[0].blob, 1, (Contributor(PEERS[0].peer_id, 1, 1.0),), ())
        chain.append(certify(following(chain.head, updates=(update,)), *PEERS))
    again = Chain(tmp_path, [ORGANIZER.peer_id], RUN_ID)
    assert again.rounds_trained(layout) == {0: 0, 1: 2, 2: 0, 3: 0}
