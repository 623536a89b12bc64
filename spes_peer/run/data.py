"""The manifest's `[data]`: tokenizer, sources and their shards, held-out split. `data.json` is the JSON of `Data`.

A source's tokens are one long row, cut into shards of `shard_tokens` each but for the last. The manifest names no
shard, so that it stays small with a trillion tokens: it names, for each source, one more blob, the *index*, which holds
the names of the source's shards one after the other (`data.index` reads it).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from spes_peer.run.section import Printable, Section

NAME_BYTES = 32
"""Of one shard in an index: the digest that its blob's name writes in hexadecimal."""
STRATUM = 4096
"""Positions of the global shuffle among which a source with the least ratio has one."""
MAX_SHARDS = 1 << 20
"""Of one source: an index of 32 MiB."""
MAX_SHARD_TOKENS = 1 << 28
LEAST_SHARD_TOKENS = 9
"""A sequence of the shortest that a model may have, and its last target."""
MAX_SOURCES = 256
MAX_TOKENIZER_BYTES = 64 << 20
BYTES_NUM_IDS, BYTES_END_OF_TEXT = 257, 256


ShownName = Annotated[Printable, StringConstraints(min_length=1, max_length=100)]
BlobNameText = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
TokenDtype = Literal["uint16", "uint32"]
TOKEN_BYTES: Mapping[TokenDtype, int] = {"uint16": 2, "uint32": 4}


class Tokenizer(Section):
    """What made token ids of the text."""

    kind: Literal["bytes", "json"] = "bytes"
    """The bytes of UTF-8, or what the library `tokenizers` makes of a tokenizer.json."""
    name: ShownName = "bytes"
    """What people call it."""
    blob: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """The tokenizer.json as a blob; nothing for bytes."""
    size_bytes: int = Field(default=0, ge=0, le=MAX_TOKENIZER_BYTES)
    """Of that blob."""
    num_ids: int = Field(default=BYTES_NUM_IDS, ge=2, le=1 << 32)
    """Every token id is below it. `vocab_rows` may be larger, a round number for fast kernels: the rows beyond are
    trained to be improbable and never asked for."""
    end_of_text: int = Field(default=BYTES_END_OF_TEXT, ge=0)
    """The token id that closes every document."""

    def misfits(self) -> Iterator[str]:
        if self.end_of_text >= self.num_ids:
            yield f"end_of_text ({self.end_of_text}) is not among the {self.num_ids} ids"
        if self.kind == "json" and not (self.blob and self.size_bytes):
            yield "a tokenizer of kind json needs the blob of its tokenizer.json, and its size"
        if self.kind == "bytes" and (self.blob, self.size_bytes, self.num_ids, self.end_of_text) != (
            "",
            0,
            BYTES_NUM_IDS,
            BYTES_END_OF_TEXT,
        ):
            yield f"bytes have {BYTES_NUM_IDS} ids, {BYTES_END_OF_TEXT} as end_of_text, and no blob"


class Shard(Section):
    """Tokenized text as one blob of little-endian token ids."""

    blob: BlobNameText
    """Name of the blob."""
    num_tokens: int = Field(ge=1)
    """In the whole blob."""

    def num_sequences(self, sequence_length: int) -> int:
        """Whole sequences in it; each needs one token more than its length, for the last target."""
        return (self.num_tokens - 1) // sequence_length


class Shards(Section):
    """One source's tokens as shards of equal size; only the last may be shorter."""

    num_tokens: int = Field(ge=1, lt=1 << 63)
    """In all of them."""
    shard_tokens: int = Field(ge=2, le=MAX_SHARD_TOKENS)
    """In each but the last. A sequence lies in one shard, so tokens that fill none at its end are not trained."""
    index: BlobNameText
    """Name of the blob that holds the shards' names, 32 bytes each."""

    def misfits(self) -> Iterator[str]:
        if self.num_shards > MAX_SHARDS:
            yield f"{self.num_shards} shards, and at most {MAX_SHARDS} fit an index: make them larger"

    @property
    def num_shards(self) -> int:
        return -(-self.num_tokens // self.shard_tokens)

    @property
    def index_bytes(self) -> int:
        """Of the index."""
        return NAME_BYTES * self.num_shards

    def tokens_of(self, number: int) -> int:
        """Tokens in shard `number`; the last has the rest."""
        return min(self.shard_tokens, self.num_tokens - number * self.shard_tokens)

    def sequences_of(self, number: int, sequence_length: int) -> int:
        """Whole sequences in shard `number`."""
        return (self.tokens_of(number) - 1) // sequence_length

    def num_sequences(self, sequence_length: int) -> int:
        """Whole sequences in all of them."""
        last = self.num_shards - 1
        return last * self.sequences_of(0, sequence_length) + self.sequences_of(last, sequence_length)


class Source(Section):
    """One of the texts that are mixed."""

    name: ShownName
    """What people call it."""
    ratio: float = Field(default=1.0, gt=0)
    """Its part of what is trained, beside the ratios of the others: 2 and 1 are two thirds and one third."""
    licence: str = Field(default="", max_length=500)
    """Under which its text may be used, as the organizer says."""
    shards: Shards


class Data(Section):
    """The tokens: sources that are mixed by their ratios, and a held-out shard that no range ever covers."""

    tokenizer: Tokenizer = Tokenizer()
    token_dtype: TokenDtype = "uint16"
    """Of the token ids in all shards, little-endian."""
    sources: tuple[Source, ...] = Field(min_length=1, max_length=MAX_SOURCES)
    """What is trained on, each through its own epochs."""
    held_out: Shard
    """Made of documents that are in no source; what is trained is measured on it."""
    licence: str = Field(default="", max_length=500)
    """Under which all of it may be used, as the organizer says."""

    def misfits(self) -> Iterator[str]:
        if self.tokenizer.num_ids > 1 << 8 * TOKEN_BYTES[self.token_dtype]:
            yield f"{self.tokenizer.num_ids} token ids do not fit {self.token_dtype}"
        names = [source.name for source in self.sources]
        if twice := next((name for name in names if names.count(name) > 1), None):
            yield f"two sources are called {twice!r}"
        for source, share in zip(self.sources, self.shares(), strict=True):
            if share * STRATUM < 1:
                yield f"the ratio of {source.name!r} is {float(share):.2g} of all, and the least is 1/{STRATUM}"

    def shares(self) -> tuple[Fraction, ...]:
        """The ratios made to come to 1, exactly: everybody must find the same."""
        ratios = [Fraction(source.ratio) for source in self.sources]
        return tuple(ratio / sum(ratios) for ratio in ratios)

    @property
    def indexes(self) -> dict[str, int]:
        """The index blobs, and how many bytes each has."""
        return {source.shards.index: source.shards.index_bytes for source in self.sources}

    @property
    def kept_by_all(self) -> dict[str, int]:
        """The blobs that every peer needs whatever it trains on, and how many bytes each has."""
        tokenizer = {self.tokenizer.blob: self.tokenizer.size_bytes} if self.tokenizer.blob else {}
        return self.indexes | tokenizer | {self.held_out.blob: self.size_bytes(self.held_out)}

    @property
    def num_tokens(self) -> int:
        """Of all sources together, each taken once."""
        return sum(source.shards.num_tokens for source in self.sources)

    @property
    def shard_bytes(self) -> int:
        """Of all training shards together."""
        return self.num_tokens * TOKEN_BYTES[self.token_dtype]

    def size_bytes(self, shard: Shard) -> int:
        """Of its blob."""
        return shard.num_tokens * TOKEN_BYTES[self.token_dtype]


def mixture_words(data: Data) -> str:
    """The sources, for people, and how much of each is trained: "books 80 %, code 20 %"."""
    if len(data.sources) == 1:
        return data.sources[0].name
    return ", ".join(
        f"{source.name} {float(100 * share):.3g} %" for source, share in zip(data.sources, data.shares(), strict=True)
    )
