"""The chain on disk: what gets in, what takes the place of an uncertified end, and what survives."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from chain_parts import FIRST, PEERS, begun, branch, certify, following, grown, trained
from rounds_swarm import CHECKS, genesis

from spes_peer.errors import BadMessage, BadSignature, BlobMissing, DiskTrouble
from spes_peer.files import write_whole
from spes_peer.run.chain import Chain, Switch
from spes_peer.run.layout import Layout
from spes_peer.run.lineage import Rank
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId, CertifiedRecord, Contributor, SealedRecord, Update
from spes_peer.run.tallies import Tally


@pytest.fixture
def layout(manifest: Manifest) -> Layout:
    return Layout(manifest)


@pytest.fixture
def zero(layout: Layout) -> SealedRecord:
    return genesis(layout).seal()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "records").iterdir())


def head(chain: Chain) -> SealedRecord:
    assert chain.head is not None
    return chain.head


def extended(chain: Chain, records: Sequence[CertifiedRecord]) -> Chain:
    for certified in records:
        chain.append(certified)
    return chain


# ---- growing ----


def test_a_chain_reads_back_what_it_kept(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 5)
    again = Chain(tmp_path, CHECKS)
    assert again.head == chain.head
    assert (again.num_records, again.certified_round) == (5, 4)
    assert [certified.sealed.round for certified in again.from_round(3)] == [3, 4]
    assert again.record(2) == chain.record(2)
    assert (tmp_path / "records" / "00000004.record").exists()


def test_an_empty_chain_has_no_head_and_no_records(tmp_path: Path) -> None:
    chain = Chain(tmp_path, CHECKS)
    assert chain.head is None
    assert chain.certified_round == -1
    assert chain.rank == Rank(-1)
    assert list(chain.from_round(0)) == []
    with pytest.raises(BlobMissing, match="record 0 is not here"):
        chain.record(0)


def test_a_record_that_is_refused_leaves_no_trace(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 2)
    with pytest.raises(BadSignature):
        chain.append(certify(following(head(chain)), FIRST))
    assert chain.num_records == 2
    assert files(tmp_path) == ["00000000.record", "00000001.record"]


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100])
def test_loading_stops_before_a_damaged_file_and_goes_on_from_there(
    tmp_path: Path, zero: SealedRecord, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    chain = grown(tmp_path, zero, 4)
    missing = chain.record(2)
    (tmp_path / "records" / "00000002.record").write_bytes(damage)
    again = Chain(tmp_path, CHECKS)
    assert again.num_records == 2
    assert "00000002.record" in caplog.text
    again.append(missing)
    assert Chain(tmp_path, CHECKS).head == chain.head


def test_rounds_trained_counts_records_with_updates_of_a_subsets_experts(
    tmp_path: Path, zero: SealedRecord, layout: Layout
) -> None:
    chain = grown(tmp_path, zero, 2)
    for block in ("expert/03/0000", "expert/02/0001", "shared/0000", "expert/03/0000"):
        by = (Contributor(PEERS[0].peer_id, 1, 1.0, 1.0),)
        update = Update(BlockId(block), zero.record.genesis[0].blob, 1, by, ())
        chain.append(certify(following(head(chain), updates=(update,)), *PEERS))
    again = Chain(tmp_path, CHECKS)
    assert again.rounds_trained(layout) == {0: 0, 1: 2, 2: 0, 3: 0}
    assert again.last_trained(layout) == {0: 0, 1: 5, 2: 0, 3: 0}


# ---- an uncertified end ----


def test_an_uncertified_record_is_kept_and_nothing_behind_it_counts(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 2)
    extended(chain, branch(head(chain), ({}, PEERS[:2]), ({}, PEERS)))
    for one in (chain, Chain(tmp_path, CHECKS)):
        assert (one.num_records, one.certified_round) == (4, 1)
        uncertified = one.first_uncertified()
        assert uncertified is not None
        assert uncertified.sealed.round == 2


def test_late_signatures_certify_it_and_all_behind_it_on_disk(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 2)
    records = branch(head(chain), ({}, PEERS[:2]), ({}, PEERS))
    extended(chain, records)
    assert chain.improve(certify(records[0].sealed.record, *PEERS[:3]))
    for one in (chain, Chain(tmp_path, CHECKS)):
        assert (one.num_records, one.certified_round) == (4, 3)
        assert one.first_uncertified() is None


def test_what_does_not_certify_an_uncertified_record_changes_nothing(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 3)
    extended(chain, branch(head(chain), ({}, PEERS[:2])))
    before = chain.record(3)
    certified = chain.record(2)
    assert not chain.improve(certify(before.sealed.record, *PEERS[2:]))
    assert not chain.improve(certify(certified.sealed.record, *PEERS[1:]))  # it counts already
    assert not chain.improve(certify(following(certified.sealed, tokens=9), *PEERS))  # another record 3
    assert not chain.improve(certify(following(before.sealed), *PEERS))  # not here yet
    with pytest.raises(BadSignature):
        chain.improve(certify(before.sealed.record, FIRST))
    assert (chain.record(2), chain.record(3), chain.certified_round) == (certified, before, 2)


# ---- another chain ----


def test_a_branch_that_ranks_above_the_uncertified_end_takes_its_place(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 3)
    base = head(chain)
    ours = branch(base, ({"updates": trained(9), "tokens": 9}, PEERS[:1]), ({"tokens": 5}, PEERS[:1]), ({}, PEERS))
    extended(chain, ours)
    theirs = branch(base, ({"held_out_loss": 1.0}, PEERS[1:]), ({}, PEERS[1:]))
    switch = chain.adopt(theirs)
    assert switch == Switch(3, tuple(one.sealed for one in ours))
    assert switch.lost_tokens == 14
    for one in (chain, Chain(tmp_path, CHECKS)):
        assert (one.head, one.certified_round) == (theirs[-1].sealed, 4)
        assert [one.record(round) for round in (3, 4)] == theirs
    assert files(tmp_path) == [f"0000000{round}.record" for round in range(5)]


@pytest.mark.parametrize("num_kept", [0, 1])
def test_a_disk_that_fills_up_meanwhile_leaves_a_shorter_chain_and_what_is_gone_is_reported(
    tmp_path: Path, zero: SealedRecord, num_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = grown(tmp_path, zero, 3)
    base = head(chain)
    ours = branch(base, ({"tokens": 5}, PEERS[:1]))
    extended(chain, ours)
    theirs = branch(base, ({"held_out_loss": 1.0}, PEERS[1:]), ({}, PEERS[1:]))
    num_written = 0

    def fills_up(path: Path, content: bytes) -> None:
        nonlocal num_written
        num_written += 1
        if num_written > num_kept:
            raise DiskTrouble(errno.ENOSPC, "disk full")
        write_whole(path, content)

    monkeypatch.setattr("spes_peer.run.chain.write_whole", fills_up)
    assert chain.adopt(theirs) == Switch(3, (ours[0].sealed,))
    for one in (chain, Chain(tmp_path, CHECKS)):
        assert one.num_records == 3 + num_kept
    monkeypatch.undo()
    extended(chain, theirs[num_kept:])
    assert chain.certified_round == 4


def test_on_a_disk_that_takes_nothing_a_better_chain_changes_nothing(
    tmp_path: Path, zero: SealedRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = grown(tmp_path, zero, 3)
    ours = branch(head(chain), ({"tokens": 5}, PEERS[:1]))
    theirs = branch(head(chain), ({"held_out_loss": 1.0}, PEERS[1:]), ({}, PEERS[1:]))
    extended(chain, ours)

    def is_read_only(_path: Path) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(Path, "unlink", is_read_only)
    with pytest.raises(DiskTrouble, match="disk read-only"):
        chain.adopt(theirs)
    assert chain.head == ours[0].sealed


def test_a_branch_that_begins_as_ours_takes_only_what_differs(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 2)
    base = head(chain)
    ours = extended(chain, branch(base, ({}, PEERS[:2]), ({"tokens": 1}, PEERS[:1])))
    same, lost = (ours.record(round).sealed.record for round in (2, 3))
    theirs = [certify(same, *PEERS[:3]), *branch(same.seal(), ({"tokens": 2}, PEERS))]
    assert chain.adopt(theirs) == Switch(3, (lost.seal(),))
    assert (chain.head, chain.certified_round) == (theirs[1].sealed, 3)
    assert Chain(tmp_path, CHECKS).certified_round == 3


def test_a_branch_that_goes_on_behind_our_end_loses_nothing(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 2)
    records = branch(head(chain), ({}, PEERS[:2]), ({}, PEERS[:2]))
    extended(chain, records[:1])
    assert chain.adopt(records) == Switch(3, ())
    assert chain.num_records == 4


def test_a_branch_that_does_not_rank_above_ours_changes_nothing(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 2)
    base = head(chain)
    ours = branch(base, ({"updates": trained(9, 9)}, PEERS[:2]), ({}, PEERS))
    extended(chain, ours)
    lighter = branch(base, ({"updates": trained(9)}, PEERS[:1]), ({}, PEERS), ({}, PEERS), ({}, PEERS))
    for theirs in (lighter, ours, ours[:1]):
        assert chain.adopt(theirs) is None
        assert [chain.record(round) for round in (2, 3)] == ours


def test_our_own_records_with_more_signatures_take_nothing_away(tmp_path: Path, zero: SealedRecord) -> None:
    """Another has heard of more that go on with the same record, and not of what follows it."""
    chain = grown(tmp_path, zero, 2)
    ours = branch(head(chain), ({"updates": trained(9, 9)}, PEERS[:1]), ({}, PEERS))
    extended(chain, ours)
    better = certify(ours[0].sealed.record, *PEERS[:2])
    before = chain.rank
    assert chain.adopt([better]) is None
    assert chain.rank > before
    assert (chain.record(2), chain.head) == (better, ours[1].sealed)
    assert chain.adopt([better]) is None
    assert Chain(tmp_path, CHECKS).rank == chain.rank


def test_fewer_signatures_under_our_own_records_are_not_taken_with_what_follows(
    tmp_path: Path, zero: SealedRecord
) -> None:
    chain = grown(tmp_path, zero, 2)
    (ours,) = branch(head(chain), ({"updates": trained(9, 9)}, PEERS[:2]))
    chain.append(ours)
    theirs = [certify(ours.sealed.record, PEERS[0]), *branch(ours.sealed, ({}, PEERS))]
    before = chain.rank
    chain.adopt(theirs)
    assert chain.rank >= before
    assert chain.record(2) == ours


def test_a_bad_branch_is_refused_and_changes_nothing(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 2)
    base = head(chain)
    ours = branch(base, ({}, PEERS[:1]))
    extended(chain, ours)
    good = branch(base, ({"tokens": 1}, PEERS), ({}, PEERS))
    forged = replace(good[1], signatures=(replace(good[1].signatures[0], signature=bytes(64)), *good[1].signatures[1:]))
    with pytest.raises(BadSignature):
        chain.adopt([good[0], forged])
    with pytest.raises(BadMessage):
        chain.adopt(good[1:])
    assert chain.record(2) == ours[0]
    assert chain.num_records == 3


def test_certified_records_are_never_given_up(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 3)
    before = chain.record(1).sealed
    with pytest.raises(BadMessage, match="does not follow record 2"):
        chain.adopt(branch(before, ({"tokens": 1}, PEERS), ({}, PEERS), ({}, PEERS)))
    assert chain.num_records == 3


@pytest.mark.parametrize("num_writes", range(4))
def test_a_crash_while_a_branch_takes_our_ends_place_leaves_a_chain_that_is_whole(
    tmp_path: Path, zero: SealedRecord, num_writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = grown(tmp_path, zero, 3)
    base = head(chain)
    ours = branch(base, ({}, PEERS[:2]), ({"tokens": 1}, PEERS[:1]), ({}, PEERS[:1]))
    extended(chain, ours)
    theirs = [certify(ours[0].sealed.record, *PEERS), *branch(ours[0].sealed, ({"tokens": 2}, PEERS), ({}, PEERS))]
    written: list[CertifiedRecord] = []
    write = chain._write

    def write_some(certified: CertifiedRecord) -> None:
        if len(written) == num_writes:
            raise KeyboardInterrupt  # the machine stops
        written.append(certified)
        write(certified)

    monkeypatch.setattr(chain, "_write", write_some)
    if num_writes < len(theirs):
        with pytest.raises(KeyboardInterrupt):
            chain.adopt(theirs)
    else:
        chain.adopt(theirs)
    again = Chain(tmp_path, CHECKS)
    expected = theirs[:num_writes] if num_writes else ours
    assert [again.record(round) for round in range(3, again.num_records)] == expected
    again.adopt(theirs[again.certified_round - 2 :])
    assert again.head == theirs[-1].sealed


@pytest.mark.parametrize("num_removed", range(3))
def test_a_crash_while_our_end_is_removed_leaves_a_shorter_chain_that_is_whole(
    tmp_path: Path, zero: SealedRecord, num_removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = grown(tmp_path, zero, 2)
    base = head(chain)
    ours = branch(base, ({}, PEERS[:1]), ({}, PEERS[:1]), ({}, PEERS[:1]))
    extended(chain, ours)
    removed: list[Path] = []
    unlink = Path.unlink

    def unlink_some(path: Path, missing_ok: bool = False) -> None:
        if len(removed) == num_removed:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink_some)
        with pytest.raises(KeyboardInterrupt):
            chain.adopt(branch(base, ({"tokens": 1}, PEERS)))
    again = Chain(tmp_path, CHECKS)
    assert [again.record(round) for round in range(2, again.num_records)] == ours[: 3 - num_removed]


def test_the_past_is_that_of_the_chain_that_won(tmp_path: Path, zero: SealedRecord, layout: Layout) -> None:
    chain = grown(tmp_path, zero, 2)
    base = head(chain)

    def update(block: str, tokens: int) -> tuple[Update, ...]:
        return (replace(trained(tokens)[0], block=BlockId(block)),)

    extended(chain, branch(base, ({"updates": update("expert/00/0000", 5), "tokens": 5}, PEERS[:1])))
    assert chain.tallies.of(PEERS[0].peer_id) == Tally(5, 1)
    chain.adopt(branch(base, ({"updates": update("expert/02/0000", 1), "roster": ()}, PEERS)))
    assert chain.last_trained(layout) == {0: 0, 1: 2, 2: 0, 3: 0}
    assert chain.leases.of(PEERS[0].peer_id).seen_at == base.record.opened_at
    assert chain.tallies.of(PEERS[0].peer_id) == Tally(1, 1)


def test_a_chain_of_record_0_alone_takes_a_branch(tmp_path: Path, zero: SealedRecord) -> None:
    chain = begun(tmp_path, zero)
    assert chain.adopt(branch(zero, ({}, (*PEERS, FIRST)), ({}, PEERS))) == Switch(1, ())
    assert chain.certified_round == 2


def test_taking_another_end_reads_nothing_that_is_settled(
    tmp_path: Path, zero: SealedRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = grown(tmp_path, zero, 5)
    base = head(chain)
    extended(chain, branch(base, ({"tokens": 5}, PEERS[:1])))
    read: list[int] = []
    honest = chain._read
    monkeypatch.setattr(chain, "_read", lambda round: read.append(round) or honest(round))
    chain.adopt(branch(base, ({"held_out_loss": 1.0}, PEERS[1:]), ({}, PEERS[1:])))
    assert chain.certified_round == 6
    assert min(read) == 4
    again = Chain(tmp_path, CHECKS)
    assert (again.head, again.leases, again.rank) == (chain.head, chain.leases, chain.rank)


def test_a_record_that_the_disk_has_changed_is_missing(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 3)
    (tmp_path / "records" / "00000001.record").write_bytes(b"\xff" * 100)
    with pytest.raises(BlobMissing, match="record 1 cannot be read, the next start fetches it again"):
        chain.record(1)
