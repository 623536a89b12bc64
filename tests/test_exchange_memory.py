"""A transfer takes the memory of a few pieces, at both ends and however large the blob is."""

import asyncio
from pathlib import Path

import pytest

from spes_peer.bench.exchange_lab import LOOPBACK, nodes_at

BLOB_BYTES = 128 << 20
NUM_ASKERS = 3
ALLOWED_BYTES = 48 << 20
"""For each end, threads' stacks and gRPC's buffers included; three pieces of 1 MiB are what a request holds, and the
source serves all askers at once."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of a process"),
]


def forget_peak(pid: int) -> int:
    """And how much memory it has now, bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory(pid, "VmRSS")


def memory(pid: int, kind: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{kind}:"))


async def test_a_transfer_takes_the_memory_of_a_few_pieces() -> None:
    names = [f"asker{number}" for number in range(NUM_ASKERS)]
    async with nodes_at(dict.fromkeys(["source", *names], LOOPBACK)) as nodes:
        source = nodes["source"]
        blob = await source.do("make", num_bytes=BLOB_BYTES)
        small = await source.do("make", num_bytes=1 << 20)
        for name in names:
            await nodes[name].do("fetch", **small, sources=[source.peer])  # connects, starts threads
        before = {name: forget_peak(node.pid) for name, node in nodes.items()}
        await asyncio.gather(*(nodes[name].do("fetch", **blob, sources=[source.peer]) for name in names))
        taken = {name: memory(node.pid, "VmHWM") - before[name] for name, node in nodes.items()}
        assert all(num_bytes < ALLOWED_BYTES for num_bytes in taken.values()), taken
