"""Batches for a device that never waits for them: a thread makes the next one while the present one is worked on."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from spes_peer.data.sampler import Batch

_LONGEST_SECONDS = 300.0  # for one batch from a disk that has gone to sleep


def one_ahead(batches: Iterator[Batch], device: torch.device) -> Generator[Batch, None, None]:
    """`batches` in order, in memory from which `device` copies without waiting; an error comes where it belongs.

    Close the iterator to end the thread; that waits for the batch in the making at most."""

    def make() -> Batch | None:
        batch = next(batches, None)
        return batch.pinned() if batch is not None and device.type == "cuda" else batch

    with ThreadPoolExecutor(1, "feed") as pool:
        coming = pool.submit(make)
        while (batch := coming.result(_LONGEST_SECONDS)) is not None:
            coming = pool.submit(make)
            yield batch
