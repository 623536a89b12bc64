"""Blobs: named by their pieces, stored whole, and names from peers never become strange paths."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.blobs import (
    PIECE_BYTES,
    BlobStore,
    check_name,
    digests_of,
    name_of,
    num_pieces_of,
)
from spes_peer.errors import BadMessage, BlobMissing

ABSENT = "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


SIZES = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7]


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_name_is_the_hash_of_the_hashes_of_the_pieces(store: BlobStore, size_bytes: int) -> None:
    content = bytes(index % 251 for index in range(1000)) * (size_bytes // 1000 + 1)
    content = content[:size_bytes]
    pieces = [content[start : start + PIECE_BYTES] for start in range(0, size_bytes, PIECE_BYTES)] or [b""]
    expected = hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()

    blob = store.put(content)

    assert (blob.name, blob.size_bytes) == (expected, size_bytes)
    assert store.read(blob.name) == content
    assert store.size_bytes(blob.name) == size_bytes
    assert num_pieces_of(size_bytes) == len(pieces)
    assert [store.read_piece(blob.name, index) for index in range(len(pieces))] == pieces
    assert hashlib.sha256(store.digests(blob.name)).hexdigest() == blob.name
    assert name_of(digests_of(content)) == blob.name


def test_putting_the_same_bytes_twice_keeps_one_blob_and_its_file(store: BlobStore) -> None:
    first = store.put(b"same")
    inode = store.path(first.name).stat().st_ino
    assert store.put(memoryview(b"same")) == first
    assert store.path(first.name).stat().st_ino == inode
    assert list(store.names()) == [first.name]


def test_a_mapping_shows_the_bytes_and_refuses_to_change_them(store: BlobStore) -> None:
    blob = store.put(b"tokens")
    with store.map(blob.name) as mapping:
        assert mapping[:] == b"tokens"
        with pytest.raises(TypeError):
            mapping[0] = 0
    assert store.read(blob.name) == b"tokens"


def test_an_open_mapping_survives_the_removal_of_its_blob(store: BlobStore) -> None:
    blob = store.put(b"tokens")
    with store.map(blob.name) as mapping:
        store.remove(blob.name)
        assert not store.has(blob.name)
        assert mapping[:] == b"tokens"
    assert list(store.names()) == []


def test_a_blob_that_is_not_here_is_missing_by_name(store: BlobStore) -> None:
    for look in (store.read, store.map, store.digests, store.size_bytes, lambda name: store.read_piece(name, 0)):
        with pytest.raises(BlobMissing, match=ABSENT):
            look(ABSENT)
    assert not store.has(ABSENT)
    store.remove(ABSENT)


HOSTILE = [
    "",
    "../x",
    "../" * 21 + "x",
    "/etc/passwd",
    "a" * 63,
    "a" * 65,
    "A" * 64,
    "g" * 64,
    "a" * 63 + "/",
    "٠" * 64,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_name_is_refused_before_it_becomes_a_path(store: BlobStore, hostile: str) -> None:
    for look in (store.path, store.pieces_path, store.has, store.read, store.map, store.digests, store.remove):
        with pytest.raises(BadMessage):
            look(hostile)


@given(st.text(max_size=80))
def test_only_64_hexadecimal_digits_are_a_name(text: str) -> None:
    try:
        accepted = check_name(text) == text
    except BadMessage:
        accepted = False
    assert accepted == (len(text) == 64 and all(letter in "0123456789abcdef" for letter in text))


STORE_FOR_EVER = """
import sys
from pathlib import Path
from spes_peer.blobs import BlobStore
store = BlobStore(Path(sys.argv[1]))
for number in range(10**9):
    store.put(number.to_bytes(4, "big") * (1 << 19))
    print(number, flush=True)
"""


def test_after_a_kill_every_blob_that_is_there_is_whole(store: BlobStore) -> None:
    command = [sys.executable, "-c", STORE_FOR_EVER, str(store.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        for _ in range(5):
            process.stdout.readline()
        process.kill()
    names = list(store.names())
    assert len(names) >= 5
    for name in names:
        content = store.read(name)
        assert name_of(digests_of(content)) == name
        assert store.digests(name) == b"".join(digests_of(content))
