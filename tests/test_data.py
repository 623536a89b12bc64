"""Text to tokens to shards to batches, on the real text of the standard library."""

from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import torch

from spes_peer.blobs import BlobStore
from spes_peer.data.corpus import Corpus, read_text_folder, standard_library
from spes_peer.data.index import ShardIndex, index_of
from spes_peer.data.ranges import Shuffle
from spes_peer.data.sampler import Sampler
from spes_peer.data.shards import ShardReader, make_shards
from spes_peer.data.tokenizer import encode
from spes_peer.errors import BadConfiguration, BadMessage, BlobMissing
from spes_peer.run.data import BYTES_END_OF_TEXT, Data, Shard, Shards, Source, Tokenizer
from spes_peer.run.manifest import Manifest, Model, parse_run_file
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


def manifest_of(data: Data, **model: int) -> Manifest:
    raw = parse_run_file(PRESETS["demo"]).model_dump()
    raw["model"] |= model
    return Manifest.model_validate({**raw, "data": data.model_dump(), "organizers": ["somebody"]})


def shards_of(blobs: BlobStore, data: Data) -> list[Shard]:
    return list(ShardIndex.read(data, blobs).shards())


def all_tokens(blobs: BlobStore, data: Data) -> list[np.ndarray]:
    return [np.frombuffer(blobs.read(shard.blob), "<u2") for shard in shards_of(blobs, data)]


def test_a_document_is_its_bytes_and_an_end() -> None:
    assert encode("aé").tolist() == [97, 0xC3, 0xA9, BYTES_END_OF_TEXT]


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
    assert [tokens.size for tokens in shards] == [shard.num_tokens for shard in shards_of(blobs, data)]
    assert all((tokens.size - 1) % LENGTH == 0 for tokens in shards)
    text = np.concatenate(shards)
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
    reader = ShardReader(blobs, data.token_dtype, LENGTH)
    for shard, tokens in zip(shards_of(blobs, data), all_tokens(blobs, data), strict=True):
        last = shard.num_sequences(LENGTH) - 1
        for index in (0, last):
            assert np.array_equal(reader.sequence(shard, index), tokens[index * LENGTH : (index + 1) * LENGTH + 1])
            assert reader.sequence(shard, index).size == LENGTH + 1


def test_a_shard_that_is_not_here_is_named(corpus: Corpus, blobs: BlobStore) -> None:
    data = make_shards(corpus, blobs, demo_model())
    first = shards_of(blobs, data)[0]
    blobs.remove(first.blob)
    with pytest.raises(BlobMissing, match=first.blob):
        ShardReader(blobs, data.token_dtype, LENGTH).sequence(first, 0)


def test_a_shard_that_was_removed_takes_no_room_once_another_is_read(corpus: Corpus, blobs: BlobStore) -> None:
    data = make_shards(corpus, blobs, demo_model(), shard_tokens=1 << 15)
    reader, (first, second) = ShardReader(blobs, data.token_dtype, LENGTH), shards_of(blobs, data)[:2]

    def is_mapped(name: str) -> bool:
        return name in Path("/proc/self/maps").read_text()

    reader.sequence(first, 0)
    blobs.remove(first.blob)
    assert is_mapped(first.blob)
    reader.sequence(first, 1)  # goes on
    reader.sequence(second, 0)
    assert not is_mapped(first.blob)
    assert is_mapped(second.blob)


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
    reader, index = ShardReader(blobs, data.token_dtype, LENGTH), ShardIndex.read(data, blobs)
    for row, target, at in zip(rows, targets, Shuffle.of(manifest).sequences_in(ranges), strict=True):
        tokens = reader.sequence(index.shard(at.shard), at.index)
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


def test_a_mixture_with_wide_token_ids_is_read_as_it_was_written(blobs: BlobStore) -> None:
    """Two sources, told apart by their ids; a tokenizer with more ids than two bytes hold."""
    num_ids, sequences = 100_000, 50

    def source(name: str, ratio: float, first_id: int, num_shards: int) -> Source:
        each = sequences * LENGTH + 1
        ids = np.arange(num_shards * each) % 1000 + first_id
        names = [blobs.put(part.astype("<u4").tobytes()).name for part in ids.reshape(num_shards, each)]
        index = blobs.put(index_of(names)).name
        return Source(name=name, ratio=ratio, shards=Shards(num_tokens=ids.size, shard_tokens=each, index=index))

    held_out = np.full(3 * LENGTH, num_ids - 1).astype("<u4").tobytes()
    data = Data(
        tokenizer=Tokenizer(kind="json", name="wide", blob="ee" * 32, size_bytes=9, num_ids=num_ids, end_of_text=5),
        token_dtype="uint32",
        sources=(source("low", 3, 10_000, 2), source("high", 1, 90_000, 1)),
        held_out=Shard(blob=blobs.put(held_out).name, num_tokens=3 * LENGTH),
    )
    manifest = manifest_of(data, vocab_rows=num_ids)
    (batch,) = Sampler(manifest, blobs).training([DataRange(0, 400)], [400])
    is_high = batch.tokens_BT[:, 0] >= 90_000
    assert ((batch.tokens_BT >= 90_000).all(1) == is_high).all()
    assert (batch.targets_BT[:, :-1] == batch.tokens_BT[:, 1:]).all()
    assert 60 < int(is_high.sum()) < 140
    (rows,) = Sampler(manifest, blobs).held_out(0, 1, 9)
    assert (rows.tokens_BT == num_ids - 1).all()


def test_a_token_id_that_the_tokenizer_does_not_have_is_refused_before_the_model_sees_it(
    corpus: Corpus, blobs: BlobStore
) -> None:
    data = make_shards(corpus, blobs, demo_model())
    bad = blobs.put(np.full(LENGTH + 1, 257).astype("<u2").tobytes()).name
    sampler = Sampler(manifest_of(data.model_copy(update={"held_out": Shard(blob=bad, num_tokens=LENGTH + 1)})), blobs)
    with pytest.raises(BadMessage, match="the token id 257, and its tokenizer has 257 ids"):
        next(sampler.held_out(0, 1, 1))
