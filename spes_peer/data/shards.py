"""Documents to token shards in the blob store, and shards back to sequences.

A shard of n sequences of length T holds n·T + 1 tokens: sequence i is tokens [i·T, i·T + T], so the targets of its
inputs are at hand, and the last token of one shard is the first of the next. The held-out shard is made of whole
documents, none of which is in any training shard.
"""

import mmap
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from spes_peer.blobs import BlobStore
from spes_peer.data import tokenizer
from spes_peer.data.corpus import Corpus
from spes_peer.errors import BadConfiguration, BadMessage
from spes_peer.run.manifest import Data, Model, Shard

DEFAULT_SHARD_TOKENS = 1 << 19
DEFAULT_HELD_OUT_TOKENS = 1 << 14
_DTYPES = {"uint16": "<u2", "uint32": "<u4"}

Tokens = NDArray[np.unsignedinteger]


def make_shards(
    corpus: Corpus,
    blobs: BlobStore,
    model: Model,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    held_out_tokens: int = DEFAULT_HELD_OUT_TOKENS,
) -> Data:
    """Tokenize `corpus`, store its shards as blobs, and describe them for the manifest.

    `BadConfiguration` when the corpus has less than one sequence beside a held-out split of `held_out_tokens`.
    """
    if model.vocab_rows < tokenizer.NUM_TOKEN_IDS:
        raise BadConfiguration(f"vocab_rows is {model.vocab_rows}; the byte tokenizer needs {tokenizer.NUM_TOKEN_IDS}")
    length = model.sequence_length
    documents = [tokenizer.encode(document) for document in corpus.documents]
    num_held_out = _documents_holding(held_out_tokens, documents)
    held_out = _whole_sequences(_join(documents[:num_held_out])[: held_out_tokens + 1], length)
    training = _whole_sequences(_join(documents[num_held_out:]), length)
    if min(held_out.size, training.size) <= length:
        total = sum(tokens.size for tokens in documents)
        raise BadConfiguration(
            f"the corpus is too short: {corpus.source} has {total} tokens in {len(documents)} documents; "
            f"a held-out split of {held_out_tokens} and a sequence of {length} need more"
        )
    step = max(1, shard_tokens // length) * length
    cuts = range(0, training.size - 1, step)
    return Data(
        token_dtype="uint16",
        shards=tuple(_store(training[start : start + step + 1], blobs) for start in cuts),
        held_out=_store(held_out, blobs),
        sources=(corpus.source,),
    )


class ShardReader:
    """Sequences of shards in the blob store; shards are mapped, so only the pages that are read take memory. One that
    was removed from the store is let go when the next is mapped: until then it takes its room on the disk."""

    def __init__(self, blobs: BlobStore, data: Data, sequence_length: int) -> None:
        self._blobs = blobs
        self._dtype = np.dtype(_DTYPES[data.token_dtype])
        self._sequence_length = sequence_length
        self._mapped: dict[str, mmap.mmap] = {}

    def sequence(self, shard: Shard, index: int) -> Tokens:
        """T + 1 tokens: the inputs, and one more for the last target. `BlobMissing` if the shard is not here,
        `BadMessage` if it is shorter than the manifest says."""
        if shard.blob not in self._mapped:
            self._mapped = {blob: mapped for blob, mapped in self._mapped.items() if self._blobs.has(blob)}
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


def _store(tokens: NDArray[np.uint16], blobs: BlobStore) -> Shard:
    return Shard(blob=blobs.put(tokens.astype("<u2").tobytes()).name, num_tokens=tokens.size)
