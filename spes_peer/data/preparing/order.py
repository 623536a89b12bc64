"""What is to be prepared, and what follows from it before any text is read."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from spes_peer.blobs import BlobStore
from spes_peer.data.preparing import encoders
from spes_peer.data.preparing.sources import Recipe, shares
from spes_peer.data.reading.inputs import Found
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import Tokenizer
from spes_peer.run.manifest import Model, validated

DEFAULT_HELD_OUT_TOKENS = 1 << 18
DEFAULT_SHARD_TOKENS = 1 << 20
_AIMED_SHARDS = 1 << 18  # of a source, at most about


@dataclass(frozen=True)
class Order:
    """What is to be prepared."""

    recipe: Recipe
    found: tuple[Found, ...]
    """The files of each source."""
    tokenizer: Path | None = None
    """A tokenizer.json; None for bytes."""
    end_of_text: str = ""
    held_out_tokens: int = DEFAULT_HELD_OUT_TOKENS
    shard_tokens: int = 0
    """0 for a size that fits the amount of text."""
    seed: int = 0
    is_strict: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(self.source_bytes)

    @property
    def source_bytes(self) -> list[int]:
        return [sum(file.size_bytes for file in found.files) for found in self.found]


def stored_tokenizer(order: Order, blobs: BlobStore) -> Tokenizer:
    """The manifest's section; the tokenizer.json itself is among the blobs then."""
    if order.tokenizer is None:
        if order.end_of_text:
            raise BadConfiguration("--end-of-text names a token of a --tokenizer; bytes have an end of their own")
        return Tokenizer()
    described = encoders.described(order.tokenizer, order.end_of_text)
    blob = blobs.put(order.tokenizer.read_bytes())
    raw = {**described.model_dump(), "blob": blob.name, "size_bytes": blob.size_bytes}
    return validated(Tokenizer, raw, str(order.tokenizer))


def check_model(tokenizer: Tokenizer, model: Model | None) -> None:
    """A model may have more rows than the tokenizer has ids: they are never asked for. Fewer it may not have."""
    if model is not None and tokenizer.num_ids > model.vocab_rows:
        rounded = -(-tokenizer.num_ids // 128) * 128
        raise BadConfiguration(
            f"the tokenizer {tokenizer.name} has {tokenizer.num_ids} ids, and the model in run.toml {model.vocab_rows}"
            f" rows for them: set vocab_rows to {rounded} (multiples of 128 compute fastest), or take another tokenizer"
        )


def shard_tokens(order: Order) -> int:
    """Of a shard: so many that a source has not very many shards."""
    if order.shard_tokens:
        return order.shard_tokens
    tokens = DEFAULT_SHARD_TOKENS
    while 4 * max(order.source_bytes, default=0) > tokens * _AIMED_SHARDS:  # packed text is a quarter of itself
        tokens *= 2
    return tokens


def held_out_targets(order: Order) -> list[int]:
    """Tokens to hold out of each source, by its share."""
    parts = shares(order.recipe, order.source_bytes)
    return [round(part / sum(parts) * order.held_out_tokens) for part in parts]


def identity_of(order: Order, tokenizer: Tokenizer) -> str:
    """All that decides what is made."""
    sources = [
        [recipe.model_dump(exclude={"paths", "licence"}), [(file.name, file.size_bytes) for file in found.files]]
        for recipe, found in zip(order.recipe.source, order.found, strict=True)
    ]
    rest = [tokenizer.model_dump(), order.held_out_tokens, shard_tokens(order), order.seed]
    return hashlib.sha256(json.dumps([sources, rest], sort_keys=True).encode(errors="surrogatepass")).hexdigest()
