"""Files on disk change only whole: written beside, synced, renamed. A kill at any instant leaves old or new."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from spes_peer.errors import BadConfiguration


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A binary file that becomes `path` when the block ends without an error, and vanishes otherwise."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `content` atomically."""
    with replacing(path, mode) as file:
        file.write(content)


@contextlib.contextmanager
def making_folder(path: Path, mode: int = 0o700) -> Iterator[Path]:
    """A folder to fill that becomes `path`, which is new or empty, when the block ends without an error, and vanishes
    otherwise. `BadConfiguration` where none can be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise BadConfiguration(f"cannot write beside {path}: {error.strerror}") from None
    try:
        yield building
        _sync(building)
        building.chmod(mode)
        if path.exists():
            path.rmdir()
        building.rename(path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _sync(folder: Path) -> None:
    """On disk before it gets its name, or a power cut could leave the name with nothing behind it."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
