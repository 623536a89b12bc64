"""Data of runs that have no text: shards that nobody looks into, and the index that names them."""

from collections.abc import Sequence
from typing import Any

from spes_peer.blobs import digests_of, name_of
from spes_peer.data.index import index_of

SHARD = "ab" * 32
INDEX = index_of([SHARD])


def made_up_source(
    shards: Sequence[str] = (SHARD,), shard_tokens: int = 100_000, name: str = "text", ratio: float = 1.0
) -> dict[str, Any]:
    """A source of so many equal shards."""
    index = name_of(digests_of(index_of(shards)))
    cut = {"num_tokens": len(shards) * shard_tokens, "shard_tokens": shard_tokens, "index": index}
    return {"name": name, "ratio": ratio, "shards": cut}


def made_up_data(*sources: dict[str, Any]) -> dict[str, Any]:
    """A manifest's section."""
    return {"sources": list(sources or [made_up_source()]), "held_out": {"blob": "cd" * 32, "num_tokens": 10_000}}
