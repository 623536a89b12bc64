"""Documents to token shards in the blob store, and shards back to sequences.

A source's tokens are cut into shards of equal size; only the last may be shorter. Sequence i of a shard is its tokens
[i·T, i·T + T], so the targets of its inputs are at hand; what is left at its end is trained by nobody. The held-out
shard is made of whole documents, none of which is in any training shard.
"""

import mmap
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from spes_peer.blobs import BlobStore
from spes_peer.data import tokenizer
from spes_peer.data.corpus import Corpus
from spes_peer.data.index import index_of
from spes_peer.errors import BadConfiguration, BadMessage
from spes_peer.run.data import BYTES_NUM_IDS, Data, Shard, Shards, Source, TokenDtype
from spes_peer.run.manifest import Model

DEFAULT_SHARD_TOKENS = 1 << 19
DEFAULT_HELD_OUT_TOKENS = 1 << 14
DTYPES = {"uint16": "<u2", "uint32": "<u4"}
"""How token ids lie in a shard."""
_MOST_MAPPED = 256  # shards, each with an open file

Tokens = NDArray[np.unsignedinteger]


def make_shards(
    corpus: Corpus,
    blobs: BlobStore,
    model: Model,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    held_out_tokens: int = DEFAULT_HELD_OUT_TOKENS,
) -> Data:
    """Tokenize `corpus` as bytes, store its shards and their index as blobs, and describe them for the manifest. Shards
    have about `shard_tokens`, and none a token that no sequence has.

    `BadConfiguration` when the corpus has less than one sequence beside a held-out split of `held_out_tokens`.
    """
    if model.vocab_rows < BYTES_NUM_IDS:
        raise BadConfiguration(f"vocab_rows is {model.vocab_rows}; the byte tokenizer needs {BYTES_NUM_IDS}")
    length = model.sequence_length
    documents = [tokenizer.encode(document) for document in corpus.documents]
    num_held_out = _documents_holding(held_out_tokens, documents)
    held_out = _whole_sequences(_join(documents[:num_held_out])[: held_out_tokens + 1], length)
    training = _join(documents[num_held_out:])
    if min(held_out.size, training.size) <= length:
        total = sum(tokens.size for tokens in documents)
        raise BadConfiguration(
            f"the corpus is too short: {corpus.source} has {total} tokens in {len(documents)} documents; "
            f"a held-out split of {held_out_tokens} and a sequence of {length} need more"
        )
    shards = _store_shards(training, shard_tokens, length, blobs)
    return Data(
        sources=(Source(name=corpus.source, licence=corpus.licence, shards=shards),),
        held_out=_store(held_out, blobs),
        licence=corpus.licence,
    )


class ShardReader:
    """Sequences of shards in the blob store; shards are mapped, so only the pages that are read take memory. One that
    was removed from the store is let go when the next is mapped: until then it takes its room on the disk."""

    def __init__(self, blobs: BlobStore, token_dtype: TokenDtype, sequence_length: int) -> None:
        self._blobs = blobs
        self._dtype = np.dtype(DTYPES[token_dtype])
        self._sequence_length = sequence_length
        self._mapped: dict[str, mmap.mmap] = {}

    def sequence(self, shard: Shard, index: int) -> Tokens:
        """T + 1 tokens: the inputs, and one more for the last target. `BlobMissing` if the shard is not here,
        `BadMessage` if it is shorter than the manifest says."""
        if shard.blob not in self._mapped:
            here = [(blob, mapped) for blob, mapped in self._mapped.items() if self._blobs.has(blob)]
            self._mapped = dict(here[1 - _MOST_MAPPED :])
            self._mapped[shard.blob] = self._map(shard)
        tokens = np.frombuffer(self._mapped[shard.blob], dtype=self._dtype, count=shard.num_tokens)
        start = index * self._sequence_length
        return tokens[start : start + self._sequence_length + 1]

    def _map(self, shard: Shard) -> mmap.mmap:
        found, wanted = self._blobs.size_bytes(shard.blob), shard.num_tokens * self._dtype.itemsize
        if found < wanted:
            raise BadMessage(f"shard {shard.blob} has {found} bytes, its {shard.num_tokens} tokens need {wanted}")
        return self._blobs.map(shard.blob)


def _documents_holding(num_tokens: int, documents: list[NDArray[np.uint16]]) -> int:
    """How many documents from the front hold `num_tokens`."""
    total = 0
    for count, tokens in enumerate(documents):
        if total > num_tokens:
            return count
        total += tokens.size
    return len(documents)


def _join(documents: Iterable[NDArray[np.uint16]]) -> NDArray[np.uint16]:
    return np.concatenate([np.empty(0, np.uint16), *documents])


def _whole_sequences(tokens: NDArray[np.uint16], length: int) -> NDArray[np.uint16]:
    """Cut to n·T + 1 tokens."""
    return tokens[: max(0, tokens.size - 1) // length * length + 1]


def _store_shards(tokens: NDArray[np.uint16], shard_tokens: int, length: int, blobs: BlobStore) -> Shards:
    each = max(1, shard_tokens // length) * length + 1
    parts = [_whole_sequences(tokens[start : start + each], length) for start in range(0, tokens.size, each)]
    if parts[-1].size <= length:
        del parts[-1]
    index = blobs.put(index_of(_store(part, blobs).blob for part in parts)).name
    return Shards(num_tokens=sum(part.size for part in parts), shard_tokens=each, index=index)


def _store(tokens: NDArray[np.uint16], blobs: BlobStore) -> Shard:
    return Shard(blob=blobs.put(tokens.astype("<u2").tobytes()).name, num_tokens=tokens.size)
