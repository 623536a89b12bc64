"""Whether this machine can replay records: the whole state must lie in memory for it. No torch."""

import psutil

from spes_peer.run.layout import Layout

_MEMORY_PART = 0.6
"""Of what is free, that a state may take."""


def needed_bytes(layout: Layout) -> int:
    return sum(layout.state_bytes(block) for block in layout.state_blocks)


def has_room(layout: Layout) -> bool:
    return needed_bytes(layout) <= _MEMORY_PART * float(psutil.virtual_memory().available)
