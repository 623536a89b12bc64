"""Documents dealt to shards like cards, so that what stands together in a source does not stand together in training.

The documents of a source go in turns to sixteen files, the lanes. A lane that holds a shard gives it to the blob store
and goes on with the rest; what is left in all of them at the end makes the last shards. So each shard has a sixteenth
of a stretch of the source that is sixteen times as long.

On disk a lane is a file that only grows. `checkpoint` says how long each is, and `Lanes` that begin with what it said
cut them there: what a kill has left behind it never was.
"""

import os
from pathlib import Path
from typing import BinaryIO, TypedDict

import numpy as np

from spes_peer.blobs import BlobStore
from spes_peer.data.preparing.encoders import TokenIds
from spes_peer.files import our_disk
from spes_peer.run.data import NAME_BYTES, TOKEN_BYTES, TokenDtype

NUM_LANES = 16
_BUFFER_BYTES = 1 << 18
_NAMES = "names"


class LanesState(TypedDict):
    files: list[str]
    sizes: list[int]
    num_shards: int
    num_tokens: int


class Lanes:
    """The lanes of one source, in a folder of their own. `DiskTrouble` from every method."""

    def __init__(
        self, folder: Path, blobs: BlobStore, dtype: TokenDtype, shard_tokens: int, state: LanesState | None = None
    ) -> None:
        self._folder, self._blobs, self._dtype = folder, blobs, np.dtype(dtype).newbyteorder("<")
        self._shard_bytes = shard_tokens * TOKEN_BYTES[dtype]
        self._num_files = 0
        state = state or LanesState(files=[], sizes=[], num_shards=0, num_tokens=0)
        self.num_tokens = state["num_tokens"]
        with our_disk(folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
            self._names = _cut_off(folder / _NAMES, state["num_shards"] * NAME_BYTES)
            for path in folder.glob("lane-*"):
                if path.name not in state["files"]:
                    path.unlink()
            self._num_files = max((_number(name) for name in state["files"]), default=-1) + 1
            kept = zip(state["files"], state["sizes"], strict=True)
            self._lanes = [_cut_off(folder / name, size) for name, size in kept] or [
                self._new_file() for _ in range(NUM_LANES)
            ]
        self._sizes = state["sizes"] or [0] * NUM_LANES
        self._old: list[Path] = []

    def append(self, number: int, tokens: TokenIds) -> None:
        """A document, or the next part of one: `number` is the document's in its source."""
        lane = number % NUM_LANES
        content = tokens.astype(self._dtype, copy=False).tobytes()
        with our_disk(self._folder):
            self._lanes[lane].write(content)
        self._sizes[lane] += len(content)
        self.num_tokens += tokens.size
        if self._sizes[lane] >= self._shard_bytes:
            self._give_shards(lane)

    def checkpoint(self) -> LanesState:
        """What there is, and is on disk when this returns."""
        with our_disk(self._folder):
            for file in (*self._lanes, self._names):
                file.flush()
                os.fsync(file.fileno())
        return LanesState(
            files=[Path(lane.name).name for lane in self._lanes],
            sizes=list(self._sizes),
            num_shards=self._names.tell() // NAME_BYTES,
            num_tokens=self.num_tokens,
        )

    def forget_old(self) -> None:
        """What no checkpoint names any more."""
        for path in self._old:
            path.unlink(missing_ok=True)
        self._old = []

    def finish(self) -> bytes:
        """The last shards too; the names of all, as in an index."""
        rest = b""
        for lane in range(NUM_LANES):
            rest += self._content(lane)
            while len(rest) >= self._shard_bytes:
                self._put(rest[: self._shard_bytes])
                rest = rest[self._shard_bytes :]
        if rest:
            self._put(rest)
        with our_disk(self._folder):
            self._names.flush()
            return (self._folder / _NAMES).read_bytes()

    def close(self) -> None:
        for file in (*self._lanes, self._names):
            file.close()

    def _give_shards(self, lane: int) -> None:
        content = memoryview(self._content(lane))
        while len(content) >= self._shard_bytes:
            self._put(content[: self._shard_bytes])
            content = content[self._shard_bytes :]
        with our_disk(self._folder):
            self._lanes[lane].close()
            self._old.append(Path(self._lanes[lane].name))
            self._lanes[lane] = self._new_file()
            self._lanes[lane].write(content)
        self._sizes[lane] = len(content)

    def _put(self, content: bytes | memoryview) -> None:
        name = self._blobs.put(content).name
        with our_disk(self._folder):
            self._names.write(bytes.fromhex(name))

    def _content(self, lane: int) -> bytes:
        with our_disk(self._folder):
            self._lanes[lane].flush()
            return Path(self._lanes[lane].name).read_bytes()

    def _new_file(self) -> BinaryIO:
        path = self._folder / f"lane-{self._num_files:08}"
        self._num_files += 1
        return path.open("wb", buffering=_BUFFER_BYTES)


def shards_named_in(folder: Path) -> set[str]:
    """The shards that lanes there have made, as far as the disk knows."""
    try:
        names = (folder / _NAMES).read_bytes()
    except OSError:
        return set()
    return {names[start : start + NAME_BYTES].hex() for start in range(0, len(names) - NAME_BYTES + 1, NAME_BYTES)}


def _cut_off(path: Path, size_bytes: int) -> BinaryIO:
    """Open for more, as it was when it had that size. `ValueError` where it has less: zeros would be token ids."""
    file = path.open("ab", buffering=_BUFFER_BYTES)
    if file.tell() < size_bytes:
        file.close()
        raise ValueError(f"{path} was cut")
    file.truncate(size_bytes)
    file.seek(size_bytes)
    return file


def _number(name: str) -> int:
    return int(name.removeprefix("lane-"))
