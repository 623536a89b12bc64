"""Whether a bootstrap node fits where it is to live: its limit of the disk, before anything is fetched.

What cannot go: the snapshots (two that are kept, and the next while it is fetched) and, on the organizer's first node,
the run's data, of which nobody else must have a copy. On a further node data is what goes when there is no room.
"""

import shutil

from bootstrap.mirror import is_first
from spes_peer.collector import in_words, least_bytes
from spes_peer.errors import BadConfiguration
from spes_peer.folder import SNAPSHOTS_FILE
from spes_peer.node import Node


def refuse_if_too_small(node: Node, max_disk: int) -> None:
    """`BadConfiguration`, with the numbers, if the folder may not take what this node must keep, or cannot yet."""
    state_bytes = least_bytes(node.layout)
    sizes = _sizes(node)
    data_bytes = sum(sizes.values())
    whose = "the run's data, which no other node must have" if is_first(node) else "the data that everybody keeps"
    if max_disk and max_disk < state_bytes + data_bytes:
        raise BadConfiguration(
            f"--max-disk {in_words(max_disk)} is too small for this node, which cannot spare"
            f" {in_words(state_bytes + data_bytes)}: {in_words(data_bytes)} of {whose}, and {in_words(state_bytes)} for"
            " three snapshots; allow more"
        )
    if (node.folder.path / SNAPSHOTS_FILE).exists():
        return
    missing_bytes = state_bytes + sum(size for blob, size in sizes.items() if not node.blobs.has(blob))
    free_bytes = shutil.disk_usage(node.folder.path).free
    if free_bytes < missing_bytes:
        raise BadConfiguration(
            f"{node.folder.path} has {in_words(free_bytes)} of free disk, and this node will need"
            f" {in_words(missing_bytes)} more; make room, or move the folder"
        )


def _sizes(node: Node) -> dict[str, int]:
    """In bytes, of the blobs of data that must stay; before an index is here, as if all its shards were one."""
    data = node.manifest.data
    if not is_first(node):
        return data.kept_by_all
    index = node.shard_index.here()
    shards = {one.blob: data.size_bytes(one) for one in index.shards()} if index else {"": data.shard_bytes}
    return data.kept_by_all | shards
