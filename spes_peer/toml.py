"""TOML that a person wrote, as tables and values; or one line on why it is none."""

import tomllib
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration


def parsed(text: str) -> dict[str, Any]:
    """`BadConfiguration` for whatever the library cannot read: it ends itself at deep nesting and at long numbers."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfiguration(f"not TOML: {error}") from None
    except RecursionError:
        raise BadConfiguration("not TOML that anybody reads: brackets in brackets without end") from None
    except ValueError:  # of `int`, for thousands of digits
        raise BadConfiguration("not TOML that anybody reads: a number is beyond all measure") from None


def parsed_file(text: str, name: str) -> dict[str, Any]:
    """The same; `name` is that of the file, for the message."""
    try:
        return parsed(text)
    except BadConfiguration as error:
        raise BadConfiguration(f"{name}: {error}") from None


def read_file(path: Path, what: str = "") -> dict[str, Any]:
    """Of a file that a person names; `what` it is, such as "the mixture ", for where it cannot be read."""
    try:
        return parsed_file(path.read_text(), str(path))
    except OSError as error:
        raise BadConfiguration(f"cannot read {what}{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{path}: not TOML: {error}") from None
