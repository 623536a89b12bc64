"""Preparations that were stopped: what is gone on with, and what is not."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from prepare_parts import order_of, source, words, write_lines

from spes_peer.blobs import BlobStore
from spes_peer.data.preparing.order import Order
from spes_peer.data.preparing.prepare import prepare
from spes_peer.errors import BadConfiguration


def stop(folder: Path, order: Order) -> None:
    """Begin with it, and stop when something of it is done."""

    class Stops:
        def went_on(self, what: str, num_bytes: int, num_tokens: int) -> None:
            del what, num_bytes
            if num_tokens > 400_000:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(folder, order, shows=Stops(), checkpoint_seconds=0.0)


def test_a_text_that_was_written_again_is_not_mixed_with_what_it_was(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in" / "a.jsonl", words(1, 9_000))
    order = order_of(source(path))
    stop(tmp_path, order)
    before = path.stat()
    path.write_text(path.read_text().replace("w1", "w2"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # a clock may be coarser than a test is fast
    assert path.stat().st_size == before.st_size
    changed = order_of(source(path))
    with pytest.raises(BadConfiguration, match=r"of texts that have changed since: files of a were .* add --anew"):
        prepare(tmp_path, changed)
    path.write_text(path.read_text().replace("w2", "w1"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    prepare(tmp_path, order)


def damage_journal(work: Path) -> None:
    (work / "journal.json").write_text('{"version": 2, "what": ["x", {}]}')


def damage_held_out(work: Path) -> None:
    [path] = work.glob("source-00/held-out-*.npz")
    path.write_bytes(b"x")


def damage_lane(work: Path) -> None:
    max(work.glob("source-00/lane-*")).write_bytes(b"x")


def lose_source(work: Path) -> None:
    shutil.rmtree(work / "source-00")


@pytest.mark.parametrize("damage", [damage_journal, damage_held_out, damage_lane, lose_source])
def test_an_unfinished_preparation_that_is_damaged_is_said_to_be(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    order = order_of(source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 9_000))))
    stop(tmp_path, order)
    damage(tmp_path / "data.work")
    with pytest.raises(BadConfiguration, match="holds an unfinished preparation that is damaged; add --anew"):
        prepare(tmp_path, order)
    prepare(tmp_path, order, starts_over=True)


def test_an_unfinished_preparation_of_another_version_is_said_to_be(tmp_path: Path) -> None:
    order = order_of(source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 9_000))))
    stop(tmp_path, order)
    (tmp_path / "data.work" / "journal.json").write_text('{"version": 1, "what": "ab", "sources": {}}')
    with pytest.raises(BadConfiguration, match="of another version of spes-peer"):
        prepare(tmp_path, order)


def test_a_preparation_that_starts_over_leaves_no_shard_of_the_one_that_was_stopped(tmp_path: Path) -> None:
    text = source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 9_000)))
    stop(tmp_path, order_of(text, shard_tokens=9_000))
    assert set(BlobStore(tmp_path / "blobs").names())
    made = prepare(tmp_path, order_of(text, seed=5), starts_over=True)
    assert len(set(BlobStore(tmp_path / "blobs").names())) == made.data.sources[0].shards.num_shards + 2


def test_an_unfinished_preparation_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in" / "a.jsonl", words(1, 9_000))
    stop(tmp_path, order_of(source(path)))
    with pytest.raises(BadConfiguration, match="repeat that command to go on with it, or add --anew"):
        prepare(tmp_path, order_of(source(path), seed=5))
    prepare(tmp_path, order_of(source(path), seed=5), starts_over=True)
    with pytest.raises(BadConfiguration, match="has data already"):
        prepare(tmp_path, order_of(source(path), seed=5))
