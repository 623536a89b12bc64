"""Sources of bad bytes: for how long they are left."""

from pathlib import Path

import pytest
from exchange_nodes import eventually, running

from spes_peer.errors import Unreachable
from spes_peer.exchange import fetch
from spes_peer.exchange.holdings import Holdings


class Damaged(Holdings):
    """Serves other bytes than it has, until it is mended."""

    is_mended = False

    def read_piece(self, name: str, index: int) -> bytes:
        content = super().read_piece(name, index)
        return content if self.is_mended else content[::-1]


async def test_a_source_that_was_damaged_is_asked_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, Damaged, Holdings) as (source, newcomer):
        blob = source.store.put(b"content")
        wanted = (blob.name, blob.size_bytes, [source.peer_id])
        for seconds in (fetch._FORGIVEN_SECONDS, 0.0):
            monkeypatch.setattr(fetch, "_FORGIVEN_SECONDS", seconds)
            with pytest.raises(Unreachable):
                await newcomer.fetcher.fetch(*wanted)
            assert newcomer.fetcher.bad_sources == {source.peer_id: 1}  # in the second attempt it was not asked
        source.holdings.is_mended = True  # type: ignore[attr-defined]
        await eventually(lambda: not newcomer.fetcher._bad)
        await newcomer.fetcher.fetch(*wanted)
        assert newcomer.store.read(blob.name) == b"content"


async def test_nothing_is_remembered_of_blobs_that_nobody_has(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings) as (node,):
        for number in range(3):
            with pytest.raises(Unreachable):
                await node.fetcher.fetch(f"{number:064x}", 1, [])
        assert not node.fetcher._bad
