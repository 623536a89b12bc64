"""A preparation in a process of its own, which kills itself: `python prepare_child.py FOLDER NUM_BATCHES`."""

import os
import signal
import sys
from pathlib import Path

from spes_peer.data.preparing.order import Order
from spes_peer.data.preparing.prepare import prepare
from spes_peer.data.preparing.sources import Recipe, SourceRecipe
from spes_peer.data.reading.inputs import find


class KillsItself:
    """After so many batches."""

    def __init__(self, num_batches: int) -> None:
        self.num_left = num_batches

    def went_on(self, what: str, num_bytes: int, num_tokens: int) -> None:
        del what, num_bytes, num_tokens
        self.num_left -= 1
        if self.num_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def two_sources(folder: Path) -> Order:
    sources = tuple(SourceRecipe(name=name, paths=(str(folder / "in" / name),)) for name in ("one", "two"))
    found = tuple(find([Path(one.paths[0])]) for one in sources)
    return Order(Recipe(source=sources), found, held_out_tokens=500, shard_tokens=30_000)


def main() -> None:
    """Keeps what is done after every batch, or, when killed after an odd number, only at the end of a source."""
    folder, num_batches = Path(sys.argv[1]), int(sys.argv[2])
    seconds = 1e9 if num_batches % 2 else 0.0
    prepare(folder / "killed", two_sources(folder), shows=KillsItself(num_batches), checkpoint_seconds=seconds)


if __name__ == "__main__":
    main()
