"""The names of all training shards: read from the index blobs that the manifest names."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from spes_peer.errors import BadMessage
from spes_peer.run.data import NAME_BYTES, Data, Shard


class ShardNumber(NamedTuple):
    """Shard `number` of the source that comes at place `source` in the manifest."""

    source: int
    number: int


class ReadsBlobs(Protocol):
    """A blob store, to read from."""

    def read(self, name: str) -> bytes: ...


def index_of(names: Iterable[str]) -> bytes:
    """The content of an index: `names` are the blobs of a source's shards, in their order."""
    return b"".join(map(bytes.fromhex, names))


class ShardIndex:
    """Which blob every shard of a run is. 32 bytes of memory for each."""

    def __init__(self, data: Data, indexes: Sequence[bytes]) -> None:
        """`indexes` are the contents of the index blobs, one for each source; `BadMessage` where one is not as long as
        its source has shards."""
        for source, content in zip(data.sources, indexes, strict=True):
            if len(content) != source.shards.index_bytes:
                raise BadMessage(
                    f"the index of {source.name!r} has {len(content)} bytes, and its {source.shards.num_shards} shards"
                    f" need {source.shards.index_bytes}"
                )
        self._data = data
        self._indexes = tuple(indexes)

    @classmethod
    def read(cls, data: Data, blobs: ReadsBlobs) -> "ShardIndex":
        """From a blob store that has the indexes; `BlobMissing` if it lacks one."""
        return cls(data, [blobs.read(source.shards.index) for source in data.sources])

    def shard(self, at: ShardNumber) -> Shard:
        return Shard(blob=self._name(at), num_tokens=self._data.sources[at.source].shards.tokens_of(at.number))

    def numbers(self) -> Iterator[ShardNumber]:
        """Of all shards, source after source."""
        for place, source in enumerate(self._data.sources):
            for number in range(source.shards.num_shards):
                yield ShardNumber(place, number)

    def shards(self) -> Iterator[Shard]:
        """All of them, source after source."""
        return map(self.shard, self.numbers())

    def find(self, blob: str) -> ShardNumber | None:
        """Which shard a blob is; the first, if the organizer gave several the same text."""
        return self._numbers.get(blob)

    @cached_property
    def _numbers(self) -> dict[str, ShardNumber]:
        return {self._name(at): at for at in reversed(list(self.numbers()))}

    def _name(self, at: ShardNumber) -> str:
        start = NAME_BYTES * at.number
        return self._indexes[at.source][start : start + NAME_BYTES].hex()
