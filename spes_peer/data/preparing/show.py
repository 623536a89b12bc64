"""What was prepared, for a person and for programs."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from spes_peer.blobs import BlobStore
from spes_peer.data.index import ShardIndex
from spes_peer.data.preparing.encoders import encoder_of
from spes_peer.data.preparing.progress import count_words
from spes_peer.errors import BadConfiguration, BadMessage, BlobMissing
from spes_peer.run.checking import epochs_of
from spes_peer.run.data import Data, Shard
from spes_peer.run.manifest import RunFile


def blobs_of(data: Data, blobs: BlobStore) -> set[str]:
    """Names of all blobs that belong to it, and are here to be named."""
    names = {data.held_out.blob, *(source.shards.index for source in data.sources)}
    names |= {data.tokenizer.blob} - {""}
    try:
        return names | {shard.blob for shard in ShardIndex.read(data, blobs).shards()}
    except (BlobMissing, BadMessage):
        return names


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns: the first to the left, numbers to the right, the last as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        numbers = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *numbers, row[-1]]).rstrip())
    return lines


def lines(data: Data, run: RunFile | None = None) -> list[str]:
    """For a person; how often each source is gone through where the run is known."""
    epochs = epochs_of(run, data) if run else {}
    rows = [("SOURCE", "TOKENS", "SHARDS", "RATIO", *(("TIMES",) if run else ()), "LICENCE")]
    for source, share in zip(data.sources, data.shares(), strict=True):
        shards = source.shards
        times = (f"{epochs[source.name]:.2f}" if source.name in epochs else "-",) if run else ()
        rows.append(
            (
                source.name,
                f"{shards.num_tokens:,}",
                f"{shards.num_shards:,}",
                f"{100 * float(share):.1f} %",
                *times,
                source.licence or "-",
            )
        )
    tokenizer = data.tokenizer
    return [
        *table(rows),
        "",
        f"all        {count_words(data.num_tokens)} tokens, {data.token_dtype}, shards of"
        f" {count_words(data.sources[0].shards.shard_tokens)} tokens",
        f"held out   {data.held_out.num_tokens:,} tokens of documents that are in no source",
        f"tokenizer  {tokenizer.name}, {tokenizer.num_ids:,} ids, {tokenizer.end_of_text} ends a document",
        *([f"licence    {data.licence}"] if data.licence else []),
    ]


def as_json(data: Data) -> dict[str, Any]:
    shares = [float(share) for share in data.shares()]
    dumped = data.model_dump(mode="json")
    for source, share, shown in zip(data.sources, shares, dumped["sources"], strict=True):
        shown |= {"share": share, "num_shards": source.shards.num_shards}
    return dumped | {"num_tokens": data.num_tokens}


def samples(data: Data, blobs: BlobStore, number: int, length: int) -> Iterator[tuple[str, str]]:
    """Sequences as text: where from, and what they say. Of each source in turns, from all over it, and held out."""
    encoder = encoder_of(data.tokenizer, data.token_dtype, blobs)

    def said(of: str, shard: Shard, start: int) -> tuple[str, str]:
        tokens = _sequence(shard, blobs, data, start, length)
        try:
            return of, encoder.decode(tokens)
        except BadConfiguration as error:
            raise BadConfiguration(f"{of}, with the tokenizer {data.tokenizer.name}: {error}") from None

    index = ShardIndex.read(data, blobs)
    places = [[at for at in index.numbers() if at.source == place] for place in range(len(data.sources))]
    for turn in range(number):
        for source, of_source in zip(data.sources, places, strict=True):
            at = of_source[turn * len(of_source) // number]
            shard = index.shard(at)
            yield said(f"{source.name}, shard {at.number}", shard, turn * shard.num_tokens // number)
    for turn in range(number):
        yield said("held out", data.held_out, turn * data.held_out.num_tokens // number)


def _sequence(shard: Shard, blobs: BlobStore, data: Data, start: int, length: int) -> list[int]:
    if blobs.size_bytes(shard.blob) != data.size_bytes(shard):
        raise BadConfiguration(
            f"{blobs.path(shard.blob)} is damaged: it has not the size of its {shard.num_tokens} tokens"
        )
    dtype = np.dtype(data.token_dtype).newbyteorder("<")
    tokens = np.frombuffer(blobs.map(shard.blob), dtype=dtype, count=shard.num_tokens)
    return [int(token) for token in tokens[start : start + length]]
