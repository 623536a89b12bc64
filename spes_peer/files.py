"""Files on disk change only whole: written beside, synced, renamed. A kill at any instant leaves old or new."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


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
