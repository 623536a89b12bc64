"""Small texts, and how a test has them prepared."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from spes_peer.cli import main
from spes_peer.data.preparing.order import Order
from spes_peer.data.preparing.sources import Recipe, SourceRecipe
from spes_peer.data.reading.inputs import find

END = "<|endoftext|>"


def words(seed: int, number: int) -> list[str]:
    """Documents that differ."""
    numbers = np.random.default_rng(seed).integers(0, 5000, (number, 12))
    return [f"{seed}.{index} " + " ".join(f"w{word}" for word in row) for index, row in enumerate(numbers)]


def write_lines(path: Path, documents: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def order_of(*sources: SourceRecipe, **others: object) -> Order:
    found = tuple(find([Path(path) for path in one.paths], bool(one.memmap)) for one in sources)
    settings = {"held_out_tokens": 500, "shard_tokens": 1 << 20, **others}
    return Order(Recipe(source=sources), found, **settings)  # type: ignore[arg-type]


def source(path: Path, **others: object) -> SourceRecipe:
    return SourceRecipe(name=path.stem, paths=(str(path),), **others)  # type: ignore[arg-type]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return int(ended.value.code or 0)
