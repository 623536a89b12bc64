"""Records: hashed as they travelled, strict about what cannot be, and a state root that misses nothing."""

import dataclasses
import hashlib
import math
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from spes_peer.blobs import BlobName
from spes_peer.errors import BadMessage
from spes_peer.identity import PeerId
from spes_peer.run.offers import Offer, ReduceInput
from spes_peer.run.records import (
    BlockId,
    BlockName,
    Contributor,
    DataRange,
    Record,
    RosterEntry,
    SealedRecord,
    Update,
    state_root,
)
from spes_peer.wire import convert

NAME = BlobName("ab" * 32)
PEER = PeerId("12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5")


def _update(**changes: Any) -> Update:
    contributors = (Contributor(PEER, tokens=10, clip=1.0, norm=1.0),)
    values = {"block": BlockId("shared/0000"), "blob": NAME, "size_bytes": 8, "contributors": contributors}
    return Update(**{**values, "reducers": (), **changes})


def _record(**changes: Any) -> Record:
    values = convert.decode(Record, b"").__dict__
    return Record(**{**values, **changes})


def test_a_record_hash_is_of_the_bytes_that_travelled() -> None:
    sealed = _record(round=3, step=60).seal()
    assert SealedRecord.from_bytes(sealed.content) == sealed
    # fields in another order decode to the same record, and are another record to whoever signs
    reordered = sealed.content[2:] + sealed.content[:2]
    again = SealedRecord.from_bytes(reordered)
    assert again.record == sealed.record
    assert again.hash != sealed.hash


@pytest.mark.parametrize(
    "refused",
    [
        lambda: DataRange(5, 5),
        lambda: DataRange(6, 5),
        lambda: DataRange(-1, 5),
        lambda: Contributor(PEER, tokens=0, clip=1.0, norm=1.0),
        lambda: Contributor(PEER, tokens=1, clip=0.0, norm=1.0),
        lambda: Contributor(PEER, tokens=1, clip=1.5, norm=1.0),
        lambda: Contributor(PEER, tokens=1, clip=1.0, norm=-1.0),
        lambda: _update(contributors=()),
    ],
)
def test_a_record_part_that_cannot_be_is_refused(refused: Any) -> None:
    with pytest.raises(ValueError, match=r"range|contributor|nobody"):
        refused()


def test_a_blob_name_that_could_become_a_path_is_refused_on_arrival() -> None:
    for cls in (Update, BlockName, Offer, ReduceInput):
        message = convert.message_class(cls.__name__)(blob="../../etc/passwd")
        with pytest.raises(BadMessage, match="not a blob name"):
            convert.from_message(cls, message)


def test_a_state_root_depends_on_every_block_and_on_no_order() -> None:
    blocks = tuple(BlockName(BlockId(f"shared/{i:04d}"), BlobName(f"{i:02x}" * 32), 4) for i in range(3))
    changed = (*blocks[:2], dataclasses.replace(blocks[2], blob=NAME))
    assert state_root(blocks) == state_root(blocks[::-1])
    assert len({state_root(some) for some in (blocks, blocks[:2], changed)}) == 3


def test_a_state_root_is_the_sha256_of_sorted_lines() -> None:
    blocks = (BlockName(BlockId("shared/0001"), NAME, 4), BlockName(BlockId("expert/00/0000"), NAME, 4))
    lines = f"expert/00/0000 {NAME}\nshared/0001 {NAME}\n"
    assert state_root(blocks) == hashlib.sha256(lines.encode()).hexdigest()


def test_owners_are_found_by_peer_and_by_subset() -> None:
    entry = RosterEntry(PEER, 1, (2, 3), (), 4)
    record = _record(roster=(entry,))
    assert record.entry_of(PEER) == entry
    assert record.entry_of("nobody") is None
    assert record.owners_of(3) == (PEER,)
    assert record.owners_of(1) == ()


def test_an_unknown_field_inside_a_nested_message_is_refused() -> None:
    message = convert.to_message(_record(updates=(_update(),)))
    nested = message.updates[0].contributors[0]
    nested.MergeFromString(b"\x98\x06\1")  # field 99
    assert len(UnknownFieldSet(nested)) == 1
    with pytest.raises(BadMessage, match="Contributor has fields that this version does not know"):
        convert.decode(Record, message.SerializeToString())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_at_any_depth(value: float) -> None:
    message = convert.to_message(_record(updates=(_update(),)))
    message.merge_alpha = value
    with pytest.raises(BadMessage, match="merge_alpha is not finite"):
        convert.decode(Record, message.SerializeToString())
    nested = convert.to_message(_record(updates=(_update(),)))
    nested.updates[0].contributors[0].clip = value
    with pytest.raises(BadMessage, match="not finite"):
        convert.decode(Record, nested.SerializeToString())
