"""Text to tokens to shards to batches, on the real text of the standard library."""

import itertools
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import torch

from spes_peer.blobs import BlobStore
from spes_peer.data.corpus import Corpus, read_text_folder, standard_library
from spes_peer.data.ranges import Sequence, Shuffle, permuted
from spes_peer.data.sampler import Sampler
from spes_peer.data.shards import ShardReader, make_shards
from spes_peer.data.tokenizer import END_OF_TEXT, encode
from spes_peer.errors import BadConfiguration, BlobMissing
from spes_peer.run.manifest import Data, Manifest, Model, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import DataRange

LENGTH = 128


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return standard_library(seed=1, max_bytes=400_000)


def demo_model() -> Model:
    return parse_run_file(PRESETS["demo"]).model


def manifest_of(data: Data) -> Manifest:
    raw = parse_run_file(PRESETS["demo"]).model_dump()
    return Manifest.model_validate({**raw, "data": data.model_dump(), "organizers": ["somebody"]})


def all_tokens(blobs: BlobStore, data: Data) -> list[np.ndarray]:
    return [np.frombuffer(blobs.read(shard.blob), "<u2") for shard in data.shards]


def test_a_document_is_its_bytes_and_an_end() -> None:
    assert encode("aé").tolist() == [97, 0xC3, 0xA9, END_OF_TEXT]


def test_the_standard_library_is_read_in_an_order_that_the_seed_decides(corpus: Corpus) -> None:
    assert 300_000 < sum(len(document.encode()) for document in corpus.documents) <= 400_000
    assert standard_library(1, 400_000).documents == corpus.documents
    assert standard_library(2, 400_000).documents != corpus.documents


def test_a_folder_gives_its_texts_and_skips_what_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.md").write_text("prose")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe broken")
    (tmp_path / "c.bin").write_text("not named as text")
    assert read_text_folder(tmp_path, seed=0).documents == ("prose",)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="is not a folder"):
        read_text_folder(tmp_path / "nowhere", seed=0)


def test_a_corpus_that_is_too_short_is_refused_in_one_line(blobs: BlobStore) -> None:
    for documents in ((), ("x" * 100,), ("x" * 2000,)):
        with pytest.raises(BadConfiguration, match="the corpus is too short") as caught:
            make_shards(Corpus("tiny", documents), blobs, demo_model(), held_out_tokens=1000)
        assert "\n" not in str(caught.value)


def test_shards_hold_all_training_text_and_no_held_out_document(corpus: Corpus, blobs: BlobStore) -> None:
    data = make_shards(corpus, blobs, demo_model(), shard_tokens=50_000, held_out_tokens=10_000)
    shards = all_tokens(blobs, data)
    assert len(shards) > 3
    assert all(shard.size == at.num_tokens for shard, at in zip(shards, data.shards, strict=True))
    for left, right in itertools.pairwise(shards):
        assert left[-1] == right[0]
    text = np.concatenate([shards[0], *(shard[1:] for shard in shards[1:])])
    everything = np.concatenate([encode(document) for document in corpus.documents])
    start = everything.size - text.size - LENGTH
    assert any(np.array_equal(everything[at : at + text.size], text) for at in range(start, start + LENGTH + 1))
    held_out = np.frombuffer(blobs.read(data.held_out.blob), "<u2")
    assert np.array_equal(held_out, everything[: held_out.size])
    assert 10_000 - LENGTH <= held_out.size <= 10_001


def test_equal_text_makes_equal_shards(corpus: Corpus, blobs: BlobStore, tmp_path: Path) -> None:
    other = BlobStore(tmp_path / "other")
    assert make_shards(corpus, blobs, demo_model()) == make_shards(corpus, other, demo_model())


def test_a_sequence_has_the_token_after_it_as_its_last_target(corpus: Corpus, blobs: BlobStore) -> None:
    data = make_shards(corpus, blobs, demo_model(), shard_tokens=50_000)
    reader = ShardReader(blobs, data, LENGTH)
    for shard, tokens in zip(data.shards, all_tokens(blobs, data), strict=True):
        last = shard.num_sequences(LENGTH) - 1
        for index in (0, last):
            assert np.array_equal(reader.sequence(shard, index), tokens[index * LENGTH : (index + 1) * LENGTH + 1])
            assert reader.sequence(shard, index).size == LENGTH + 1


def test_a_shard_that_is_not_here_is_named(corpus: Corpus, blobs: BlobStore) -> None:
    data = make_shards(corpus, blobs, demo_model())
    blobs.remove(data.shards[0].blob)
    with pytest.raises(BlobMissing, match=data.shards[0].blob):
        ShardReader(blobs, data, LENGTH).sequence(data.shards[0], 0)


def test_a_shard_that_was_removed_takes_no_room_once_another_is_read(corpus: Corpus, blobs: BlobStore) -> None:
    data = make_shards(corpus, blobs, demo_model(), shard_tokens=1 << 15)
    reader, (first, second) = ShardReader(blobs, data, LENGTH), data.shards[:2]

    def is_mapped(name: str) -> bool:
        return name in Path("/proc/self/maps").read_text()

    reader.sequence(first, 0)
    blobs.remove(first.blob)
    assert is_mapped(first.blob)
    reader.sequence(first, 1)  # goes on
    reader.sequence(second, 0)
    assert not is_mapped(first.blob)
    assert is_mapped(second.blob)


@pytest.mark.parametrize("size", [1, 2, 3, 100, 1024, 1025])
def test_the_permutation_reaches_every_value_once(size: int) -> None:
    assert sorted(permuted(value, size, (1, 2, 3, 4)) for value in range(size)) == list(range(size))


def test_an_epoch_covers_every_sequence_once_and_the_next_in_another_order() -> None:
    shuffle = Shuffle(seed=7, shard_sequences=(50, 33, 1, 64))
    everything = {Sequence(shard, index) for shard, size in enumerate((50, 33, 1, 64)) for index in range(size)}
    first, second = (list(shuffle.sequences_in([DataRange(e * 148, e * 148 + 148)])) for e in (0, 1))
    assert set(first) == set(second) == everything
    assert first != second
    assert first != sorted(first, key=lambda at: (at.shard, at.index))
    assert first != list(Shuffle(8, (50, 33, 1, 64)).sequences_in([DataRange(0, 148)]))


def test_the_shuffle_is_the_same_for_ever() -> None:
    """Peers of different versions must agree; these values are part of the protocol."""
    shuffle = Shuffle(seed=7, shard_sequences=(50, 33, 1, 64))
    found = [shuffle.sequence_at(position) for position in (0, 1, 2, 147, 148, 1000)]
    assert [(at.shard, at.index) for at in found] == [(2, 0), (3, 23), (3, 29), (0, 9), (0, 48), (0, 27)]


def test_disjoint_ranges_of_an_epoch_share_no_sequence() -> None:
    shuffle = Shuffle(seed=7, shard_sequences=(50, 33, 1, 64))
    seen: set[Sequence] = set()
    for start in range(0, 148, 37):
        part = set(shuffle.sequences_in([DataRange(start, start + 37)]))
        assert len(part) == 37
        assert not part & seen
        seen |= part


def test_a_range_needs_exactly_the_shards_of_its_sequences() -> None:
    shuffle = Shuffle(seed=7, shard_sequences=(50, 33, 1, 64))
    for ranges in ([DataRange(0, 1)], [DataRange(40, 60)], [DataRange(0, 5), DataRange(140, 160)], [DataRange(1, 900)]):
        assert shuffle.shards_of(ranges) == {at.shard for at in shuffle.sequences_in(ranges)}


@pytest.mark.parametrize("position", [0, 49, 60, 100, 147, 148, 1000])
def test_shards_are_needed_in_the_order_in_which_training_comes_to_them(position: int) -> None:
    shuffle = Shuffle(seed=7, shard_sequences=(50, 33, 1, 64))
    trained = shuffle.sequences_in([DataRange(position, position + 2 * 148)])
    assert list(shuffle.shards_from(position)) == list(dict.fromkeys(at.shard for at in trained))


def test_batches_follow_the_ranges_and_their_targets_are_one_token_later(corpus: Corpus, blobs: BlobStore) -> None:
    data = make_shards(corpus, blobs, demo_model(), shard_tokens=50_000)
    manifest = manifest_of(data)
    ranges = [DataRange(3, 8), DataRange(20, 22)]
    batches = list(Sampler(manifest, blobs).training(ranges, repeat(3)))
    assert [batch.tokens_BT.shape[0] for batch in batches] == [3, 3, 1]
    assert batches[0].num_tokens == 3 * LENGTH
    rows = torch.cat([batch.tokens_BT for batch in batches])
    targets = torch.cat([batch.targets_BT for batch in batches])
    assert rows.dtype == torch.int64
    reader = ShardReader(blobs, data, LENGTH)
    for row, target, at in zip(rows, targets, Shuffle.of(manifest).sequences_in(ranges), strict=True):
        tokens = reader.sequence(data.shards[at.shard], at.index)
        assert row.tolist() == tokens[:-1].tolist()
        assert target.tolist() == tokens[1:].tolist()


def test_steps_of_two_sizes_take_the_ranges_in_order_and_those_done_are_passed_over(
    corpus: Corpus, blobs: BlobStore
) -> None:
    manifest = manifest_of(make_shards(corpus, blobs, demo_model(), shard_tokens=50_000))
    sampler, ranges, sizes = Sampler(manifest, blobs), [DataRange(20, 24), DataRange(3, 9)], (1, 3, 2, 2, 2)
    whole = list(sampler.training(ranges, sizes))
    assert [batch.tokens_BT.shape[0] for batch in whole] == [1, 3, 2, 2, 2]
    for num_done in range(6):
        rest = list(sampler.training(ranges, sizes, num_done))
        assert [batch.tokens_BT.tolist() for batch in rest] == [batch.tokens_BT.tolist() for batch in whole[num_done:]]


def test_slices_of_the_held_out_split_cover_it_once(corpus: Corpus, blobs: BlobStore) -> None:
    data = make_shards(corpus, blobs, demo_model(), held_out_tokens=5_000)
    sampler = Sampler(manifest_of(data), blobs)
    rows = [row for part in range(3) for batch in sampler.held_out(part, 3, 4) for row in batch.tokens_BT.tolist()]
    held_out = np.frombuffer(blobs.read(data.held_out.blob), "<u2")
    expected = held_out[: (held_out.size - 1) // LENGTH * LENGTH].reshape(-1, LENGTH)
    assert sorted(rows) == sorted(expected.tolist())
