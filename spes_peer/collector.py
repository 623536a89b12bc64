"""Removes from a node's disk what nothing needs any more, and what it has no room for (`collection` says which).

Another process may put or use a blob at any moment, this one may be killed at any moment: a blob goes only as it was
when that was decided, in one rename. What the limit is too small for stays, and its owner is told.
"""

import asyncio
import contextlib
import logging
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from spes_peer import troubles
from spes_peer.blobs import Found
from spes_peer.collection import Key, Mark, Needs, Use, WantedData, judged, marked, to_remove
from spes_peer.errors import BadConfiguration, SpesError
from spes_peer.folder import SNAPSHOTS_FILE
from spes_peer.node import Node
from spes_peer.run.layout import Layout
from spes_peer.run.records import Record
from spes_peer.snapshots import KEPT_SNAPSHOTS, SnapshotStore

logger = logging.getLogger(__name__)

SPARE_BYTES = 2 << 30
"""A disk with less room than this is as one that is full: data for later goes, and none is fetched ahead."""
MOST_AHEAD_BYTES = 1 << 30
"""Of data ahead of what training needs it for: half a billion tokens."""
TROUBLE = "disk limit"
"""Key on the board."""
_LOOK_SECONDS = 10.0
_SERVED_SECONDS = 10.0  # between two requests of one transfer

WantedShards = Callable[[Record, int], WantedData]
"""What a node wants of the run's data in the round that a record opened, with room for so many bytes ahead of it."""


@dataclass(frozen=True)
class _Disk:
    """What takes room, at one moment."""

    found: list[Found]
    other_bytes: int
    """Of the state folder, without the blobs."""
    free_bytes: int
    newest_round: int
    """Of the newest record, when all of that had been found."""

    @property
    def blob_bytes(self) -> int:
        return sum(one.size_bytes for one in self.found)


class Collector:
    """Compose it with a task of `run`; `wanted` is asked in a thread."""

    def __init__(
        self,
        node: Node,
        snapshots: SnapshotStore,
        wanted: WantedShards,
        max_bytes: int = 0,
        most_ahead_bytes: float = MOST_AHEAD_BYTES,
    ) -> None:
        """The state folder may take `max_bytes`; 0 sets no limit but the disk's."""
        self.max_bytes = max_bytes
        self.used_bytes = 0
        """That the state folder takes."""
        self.ahead_bytes: int | None = None
        """Room for data that is fetched before it is needed; not known before the first look."""
        self._node = node
        self._snapshots = snapshots
        self._wanted = wanted
        self._most_ahead_bytes = most_ahead_bytes
        self._marks: dict[Key, Mark] = {}
        self._said_bytes = 0

    async def run(self) -> None:
        """Look after every new record, and every few seconds; for ever."""
        changed = asyncio.Event()
        self._node.on_chain.append(lambda _switch: changed.set())
        while True:
            changed.clear()
            try:
                await self.look()
            except (SpesError, OSError) as error:
                logger.warning("cannot remove what nothing needs any more reason=%s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await changed.wait()

    async def look(self) -> None:
        """Remove what has to go, as the disk and the newest record are now."""
        node, head = self._node, self._node.chain.head
        if head is None:
            return
        stays = self._snapshots.needed() | node.fetcher.running
        needs = Needs(head.round, stays, writing_since=self._snapshots.being_made_since)
        served = node.holdings.served_within(_SERVED_SECONDS)
        gone = await asyncio.to_thread(self._collect, head.record, needs, served)
        parts = [found for found in gone if found.is_partial and found.name not in node.fetcher.running]
        for found in parts:  # here, where no fetch of it can begin meanwhile
            node.holdings.forget(found.name)
        self.used_bytes -= sum(found.size_bytes for found in parts)

    def _collect(self, record: Record, needs: Needs, served: frozenset[str]) -> list[Found]:
        """Remove what has to go of whole blobs; what has to go of others."""
        disk, store = self._disk(), self._node.blobs
        certain = _with(needs, self._wanted(record, 0))
        self._marks = marked(disk.found, certain, self._marks, disk.newest_round)
        staying = [one.found for one in judged(disk.found, certain, self._marks) if one.use == Use.STAYS]
        stays_bytes = sum(one.size_bytes for one in staying)
        self._tell(disk.other_bytes + stays_bytes)
        # by the next look as much may come as since the newest record, and the next snapshot
        coming_bytes = sum(one.size_bytes for one in staying if one.name not in certain.stays)
        coming_bytes += 0 if needs.writing_since is not None else state_bytes(self._node.layout)
        room_bytes = self._room_bytes(disk) - coming_bytes
        least = least_bytes(self._node.layout)
        self.ahead_bytes = int(max(0, min(self._most_ahead_bytes, room_bytes - max(stays_bytes, least))))
        needs = replace(_with(needs, self._wanted(record, self.ahead_bytes)), served=served)
        gone = to_remove(judged(disk.found, needs, self._marks), room_bytes)
        removed = store.remove_as_found(found for found in gone if not found.is_partial)
        self.used_bytes = disk.other_bytes + disk.blob_bytes - sum(found.size_bytes for found in removed)
        logger.debug("collected blobs=%d of=%d used_bytes=%d", len(removed), len(disk.found), self.used_bytes)
        return [found for found in gone if found.is_partial]

    def _disk(self) -> _Disk:
        store, folder = self._node.blobs, self._node.folder.path
        whole, strays = store.found()
        if strays and (num_removed := store.remove_strays(strays)):
            logger.info("removed what killed processes have left files=%d", num_removed)
        other_bytes = _bytes_in(folder, besides=store.folder)
        found = [*whole, *self._node.holdings.unfinished()]
        return _Disk(found, other_bytes, shutil.disk_usage(folder).free, self._node.head_round)

    def _room_bytes(self, disk: _Disk) -> float:
        """That blobs may take."""
        limit_bytes = self.max_bytes - disk.other_bytes if self.max_bytes else math.inf
        return min(limit_bytes, disk.blob_bytes + disk.free_bytes - SPARE_BYTES)

    def _tell(self, must_bytes: int) -> None:
        """Say so if the limit is too small for what this node must keep, now or with its next snapshot."""
        must_bytes = max(must_bytes, least_bytes(self._node.layout))
        if not self.max_bytes or must_bytes <= self.max_bytes:
            self._said_bytes = 0
            troubles.board.clear(TROUBLE)
        elif must_bytes > 1.1 * self._said_bytes:  # not each time that a little more is needed
            self._said_bytes = must_bytes
            text = (
                f"--max-disk {in_words(self.max_bytes)} is too small: {in_words(must_bytes)} cannot be spared"
                " (snapshots, updates, data of the round); what is needed stays, so more than the limit is used"
            )
            troubles.board.set(TROUBLE, text)


def least_bytes(layout: Layout) -> int:
    """That any node of a run must have room for: the snapshots it keeps, and the next while it is made."""
    return (KEPT_SNAPSHOTS + 1) * state_bytes(layout)


def refuse_if_no_room(folder: Path, layout: Layout) -> None:
    """`BadConfiguration` where a folder that has nothing yet is on a disk that a node of the run would fill."""
    if (folder / SNAPSHOTS_FILE).exists():
        return
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes, needed_bytes = shutil.disk_usage(there).free, least_bytes(layout)
    if free_bytes < needed_bytes:
        raise BadConfiguration(
            f"{folder} has {in_words(free_bytes)} of free disk, and this run needs {in_words(needed_bytes)} at least;"
            " make room, or choose another folder with --data-dir"
        )


def state_bytes(layout: Layout) -> int:
    """That one snapshot takes."""
    return sum(layout.state_bytes(block) for block in layout.state_blocks)


def in_words(size_bytes: int) -> str:
    """For a person."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 10**9 else f"{size_bytes / 1e6:.1f} MB"


def _with(needs: Needs, shards: WantedData) -> Needs:
    return replace(needs, stays=needs.stays | shards.now, later=shards.later)


def _bytes_in(folder: Path, besides: Path) -> int:
    """That the files in a folder take, without those in one of its folders."""
    total = 0
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(path, name) != besides]
        for name in files:
            with contextlib.suppress(OSError):  # it has just been replaced
                total += os.lstat(os.path.join(path, name)).st_size
    return total
