"""The library `tokenizers`, and how it fails: with bare exceptions, or with panics, which are no `Exception`; when it
reads a tokenizer.json, and as well long after, on one text or on some ids."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration

_MOST_WORDS = 200


def load(content: bytes, path: Path) -> Any:
    """A `tokenizers.Tokenizer` that cuts and fills nothing; `BadConfiguration` where `content`, of `path`, is none."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BadConfiguration("to use a tokenizer.json, install: pip install 'spes-peer[data]'") from None
    with failing_plainly(f"{path} is no tokenizer.json"):
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return tokenizer


@contextmanager
def failing_plainly(what: str) -> Iterator[None]:
    """Whatever the library raises becomes `BadConfiguration`: `what` happened, and the first line of its own words."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # its panics derive from nothing else
        said = (str(error).splitlines() or [type(error).__name__])[0][:_MOST_WORDS]
        raise BadConfiguration(f"{what} ({said})") from None
