"""Fetching blobs: one transfer per name, shared by all who want it, kept on disk until it is complete."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spes_peer.blobs import BlobName, check_name
from spes_peer.errors import BadMessage, SpesError
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.limits import MAX_BLOB_BYTES
from spes_peer.exchange.pace import Pace
from spes_peer.exchange.transfer import Means, Transfer
from spes_peer.exchange.transfers import Gathering, Transfers
from spes_peer.identity import PeerId

_FORGIVEN_SECONDS = 300.0
"""After which a source of bad bytes is asked again for the blob, if nobody else has brought it."""

Wanted = tuple[str, int, Sequence[PeerId]]
"""Name, announced size in bytes, peers that may have it."""


@dataclass
class _Running:
    name: BlobName
    size_bytes: int
    sources: list[PeerId]
    task: "asyncio.Task[None]"
    transfer: Transfer | None = None
    num_waiting: int = 0

    def add_sources(self, sources: Iterable[PeerId]) -> None:
        self.sources.extend(sources)
        if self.transfer is not None:
            self.transfer.add_sources(self.sources)


class Fetcher:
    """Brings blobs into the store, each verified piece by piece and served on meanwhile."""

    def __init__(
        self,
        holdings: Holdings,
        connections: Connections,
        stall_seconds: float,
        download: Pace | None = None,
        names: Callable[[PeerId], bool] = lambda _peer: True,
        transfers: Transfers | None = None,
    ) -> None:
        """Blobs come at the pace of `download`, and of those whom the newest record `names` where they have them; what
        is on its way is shown on `transfers`."""
        self._means = Means(holdings, connections, stall_seconds, download or Pace(), names)
        self._transfers = transfers or Transfers()
        self._running: dict[BlobName, _Running] = {}
        self._bad: defaultdict[BlobName, set[PeerId]] = defaultdict(set)
        self.bad_sources = self._means.bad_sources
        """How often each peer sent bytes that were not what they should be."""

    @property
    def running(self) -> frozenset[BlobName]:
        """What is being fetched."""
        return frozenset(self._running)

    async def fetch(self, name: str, size_bytes: int, sources: Sequence[PeerId]) -> None:
        """Returns when the blob is in the store. `size_bytes` is what was announced: another size is refused.
        `Unreachable` names the sources tried and why none did; what has arrived by then is kept for the next attempt.
        There is no limit on the time it takes, only on the time in which as good as nothing arrives."""
        blob_name = check_name(name)
        if not 0 <= size_bytes <= MAX_BLOB_BYTES:
            raise BadMessage(f"blob {name} is announced with {size_bytes} bytes; at most {MAX_BLOB_BYTES} are fetched")
        store = self._means.holdings.store
        if store.renew(name):
            if store.size_bytes(name) != size_bytes:
                raise BadMessage(f"blob {name} has {store.size_bytes(name)} bytes, not the {size_bytes} announced")
            return
        await self._join(self._running.get(blob_name) or self._start(blob_name, size_bytes), size_bytes, sources)

    async def fetch_all(self, wanted: Sequence[Wanted], parallel: int = 4, gathering: Gathering | None = None) -> None:
        """Fetch every blob, some at a time; `gathering` hears how much is here.

        Tries all of them before it raises the first error, unless as many have failed as are fetched at a time: the
        others are likely gone too, and each costs a stall to find out."""
        turns = asyncio.Semaphore(parallel)
        failures: list[SpesError] = []
        gathering = gathering or Gathering(self._transfers)
        for name, size_bytes, _sources in wanted:
            gathering.expect(name, size_bytes)

        async def fetch_one(name: str, size_bytes: int, sources: Sequence[PeerId]) -> None:
            async with self._transfers.place(turns):
                if len(failures) >= parallel:
                    return
                try:
                    await self.fetch(name, size_bytes, sources)
                except SpesError as error:
                    failures.append(error)
                else:
                    gathering.have(name)

        async with asyncio.TaskGroup() as group:
            for one in wanted:
                group.create_task(fetch_one(*one))
        if failures:
            raise failures[0]

    async def set_aside_damaged(self, names: Iterable[str], parallel: int = 4) -> tuple[str, ...]:
        """Take those blobs out of the store that the disk has changed, so that `fetch` brings them again."""
        turns = asyncio.Semaphore(parallel)

        async def look_at(name: str) -> bool:
            async with turns:
                return await asyncio.to_thread(self._means.holdings.set_aside_if_damaged, name)

        names = tuple(dict.fromkeys(names))
        found = await asyncio.gather(*map(look_at, names))
        return tuple(name for name, is_damaged in zip(names, found, strict=True) if is_damaged)

    def _start(self, name: BlobName, size_bytes: int) -> _Running:
        running = _Running(name, size_bytes, [], asyncio.create_task(self._run(name, size_bytes), name=f"fetch {name}"))
        self._running[name] = running
        return running

    async def _join(self, running: _Running, size_bytes: int, sources: Sequence[PeerId]) -> None:
        if running.size_bytes != size_bytes:
            raise BadMessage(f"the blob is announced with {size_bytes} bytes and with {running.size_bytes}")
        running.add_sources(sources)
        running.num_waiting += 1
        try:
            await asyncio.shield(running.task)
        finally:
            running.num_waiting -= 1
            if not running.num_waiting and not running.task.done():  # all who wanted it were cancelled
                del self._running[running.name]  # so that nobody joins what is ending
                running.task.cancel()
                await asyncio.wait([running.task])

    async def _run(self, name: BlobName, size_bytes: int) -> None:
        running, holdings = self._running[name], self._means.holdings
        try:
            partial = await asyncio.to_thread(holdings.begin, name, size_bytes)
            with self._transfers.fetching(name, size_bytes) as move:
                running.transfer = Transfer(partial, self._means, self._bad[name], move)
                running.add_sources(())
                await running.transfer.run()
            await asyncio.to_thread(holdings.finish, partial)
            self._bad.pop(name, None)
        finally:
            if self._running.get(name) is running:
                del self._running[name]
            if self._bad.get(name):  # a disk may have been mended meanwhile, and it may be the only one that has it
                asyncio.get_running_loop().call_later(_FORGIVEN_SECONDS, self._bad.pop, name, None)
            else:
                self._bad.pop(name, None)
