"""What is to be prepared, and what follows from it before any text is read."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer.blobs import digests_of, name_of
from spes_peer.data.preparing import encoders
from spes_peer.data.preparing.journal import Identity
from spes_peer.data.preparing.sources import Recipe, shares
from spes_peer.data.reading.inputs import Found
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import MAX_SHARD_TOKENS, Tokenizer
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


def tokenizer_of(order: Order) -> tuple[Tokenizer, bytes]:
    """The manifest's section, and the tokenizer.json that is the blob in it; of bytes there is none."""
    if order.tokenizer is None:
        if order.end_of_text:
            raise BadConfiguration("--end-of-text names a token of a --tokenizer; bytes have an end of their own")
        return Tokenizer(), b""
    content = encoders.read(order.tokenizer)
    described = encoders.described(order.tokenizer, order.end_of_text, content)
    raw = {**described.model_dump(), "blob": name_of(digests_of(content)), "size_bytes": len(content)}
    return validated(Tokenizer, raw, str(order.tokenizer)), content


def check_model(tokenizer: Tokenizer, model: Model | None) -> None:
    """A model may have more rows than the tokenizer has ids: they are never asked for. Fewer it may not have."""
    if model is not None and tokenizer.num_ids > model.vocab_rows:
        rounded = -(-tokenizer.num_ids // 128) * 128
        raise BadConfiguration(
            f"the tokenizer {tokenizer.name} has {tokenizer.num_ids} ids, and the model in run.toml {model.vocab_rows}"
            f" rows for them: set vocab_rows to {rounded} (multiples of 128 compute fastest), or take another tokenizer"
        )


def check_shards(order: Order, model: Model | None) -> None:
    """A sequence lies in one shard."""
    length, tokens = model.sequence_length if model is not None else 1, shard_tokens(order)
    if tokens <= length:
        raise BadConfiguration(
            f"a shard of {tokens} tokens holds no sequence of the model in run.toml, which needs {length + 1}: make"
            f" them larger, such as --shard-tokens {max(DEFAULT_SHARD_TOKENS, min(16 * length, MAX_SHARD_TOKENS))}"
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


def identity_of(order: Order, tokenizer: Tokenizer) -> Identity:
    """All that decides what is made."""
    sources = [recipe.model_dump(exclude={"paths", "licence"}) for recipe in order.recipe.source]
    options = [sources, tokenizer.model_dump(), order.held_out_tokens, shard_tokens(order), order.seed]
    texts = [[(file.name, file.size_bytes, file.written_at_ns) for file in found.files] for found in order.found]
    names = [one.name for one in order.recipe.source]
    return Identity(_digest(options), {name: _digest(of) for name, of in zip(names, texts, strict=True)})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode(errors="surrogatepass")).hexdigest()
