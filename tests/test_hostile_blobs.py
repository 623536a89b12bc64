"""Blobs that are something else: a pickle above all. Nothing that comes from a peer is ever executed."""

import ast
import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bootstrap
import spes_peer
import tui
from spes_peer.blobs import BlobStore
from spes_peer.data.shards import ShardReader
from spes_peer.errors import SpesError
from spes_peer.run.data import Shard
from spes_peer.run.encodings import MAX_VALUE, Format
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.records import SealedRecord
from spes_peer.sync.encoding import decode, encode, from_state_bytes, state_bytes
from spes_peer.training import checkpoint
from spes_peer.training.adopt import Checkpoint

NUM_VALUES = 4096
FORMATS = [Format("fp32"), Format("bf16"), Format("int8"), Format("int4"), Format("topk", 64)]


class _Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return Path.touch, (self._path,)  # type: ignore[return-value]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def pickles(mark: Path, size_bytes: int) -> list[bytes]:
    """As it is, and as long as what it stands for; as torch saves it, too."""
    plain = pickle.dumps(_Bomb(mark))
    path = mark.with_name("saved")
    torch.save({"a": _Bomb(mark)}, path)
    saved = path.read_bytes()
    path.unlink()
    return [plain, saved, plain.ljust(size_bytes, b"\0")[:size_bytes], saved.ljust(size_bytes, b"\0")[:size_bytes]]


def test_the_bomb_would_go_off(mark: Path) -> None:
    pickle.loads(pickles(mark, 0)[0])
    assert mark.exists()


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.encoding)
def test_a_pickle_for_an_update_is_refused_or_numbers_within_bounds(format: Format, mark: Path) -> None:
    size_bytes = len(encode(format, torch.ones(NUM_VALUES)))
    for content in pickles(mark, size_bytes):
        if len(content) != size_bytes:
            with pytest.raises(SpesError):
                decode(format, content, NUM_VALUES)
            continue
        with contextlib.suppress(SpesError):
            assert float(decode(format, content, NUM_VALUES).abs().max()) <= MAX_VALUE
    assert not mark.exists()


def test_a_pickle_for_any_other_blob_or_file_is_refused(mark: Path, tmp_path: Path) -> None:
    store, folder = BlobStore(tmp_path / "blobs"), tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    def state(content: bytes) -> None:
        from_state_bytes("bf16", content, NUM_VALUES)
        raise SpesError("numbers")

    def shard(content: bytes) -> None:
        one = Shard(blob=store.put(content).name, num_tokens=1 << 20)
        ShardReader(store, "uint16", 16).sequence(one, 0)

    def own(content: bytes) -> None:
        (tmp_path / "own").write_bytes(content)
        checkpoint.load(tmp_path / "own", "ab" * 32, "peer")

    def theirs(content: bytes) -> None:
        for name in ("model.safetensors", "pytorch_model.bin"):
            (folder / name).write_bytes(content)
        Checkpoint(folder)

    readers: list[Callable[[bytes], object]] = [
        state,
        shard,
        own,
        theirs,
        SealedRecord.from_bytes,
        lambda content: SignedManifest.from_bytes(content).open(),
    ]
    for content in pickles(mark, len(state_bytes("bf16", torch.ones(NUM_VALUES)))):
        for read in readers:
            with pytest.raises(SpesError):
                read(content)
    assert not mark.exists()


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "torch.load", "np.load", "numpy.load", "torch.jit.load"}
ALLOWED = ("allow_pickle", False)  # what numpy reads then are numbers and their shape


def _faults(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0]]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS:
            said = [(one.arg, getattr(one.value, "value", None)) for one in node.keywords]
            found += [] if ALLOWED in said else [ast.unparse(node.func)]
        found += [name for name in names if name in FORBIDDEN_MODULES]
    return found


def test_nothing_in_the_program_can_read_a_pickle_or_run_what_it_reads() -> None:
    assert _faults("import pickle\nfrom yaml import load\ntorch.load(x)") == ["pickle", "yaml", "torch.load"]
    assert _faults("np.load(x)\nnp.load(x, allow_pickle=True)\nnp.load(x, allow_pickle=False)") == ["np.load"] * 2
    for package in (spes_peer, tui, bootstrap):
        for path in Path(next(iter(package.__path__))).rglob("*.py"):
            assert not _faults(path.read_text()), path
