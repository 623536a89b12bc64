"""When training comes to each shard: which of them a node with too little room keeps."""

from collections.abc import Iterator, Mapping

from spes_peer.data.index import ShardIndex
from spes_peer.data.ranges import Shuffle


class ComingShards(Mapping[str, int]):
    """The first position from `position` on that needs each shard, by its blob. It is found out when it is asked for:
    a run may have more shards than one looks at."""

    def __init__(self, shuffle: Shuffle, index: ShardIndex, position: int) -> None:
        self._shuffle = shuffle
        self._index = index
        self._position = position

    def __getitem__(self, blob: str) -> int:
        at = self._index.find(blob)
        need = None if at is None else self._shuffle.next_need(at, self._position)
        if need is None:
            raise KeyError(blob)
        return need

    def __iter__(self) -> Iterator[str]:
        """In that order."""
        return (self._index.shard(at).blob for at in self._shuffle.shards_from(self._position))

    def __len__(self) -> int:
        return sum(source.num_shards for source in self._shuffle.sources)
