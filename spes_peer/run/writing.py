"""A run file as text: every key with its meaning, kind and bounds above it; what is as by default is commented out.

What is said of a key is read from the code (`run.explained`), so that it does not grow stale.
"""

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from spes_peer.run.explained import Key, keys_of
from spes_peer.run.manifest import RunFile

_WIDTH = 100
_RULE = "# " + "-" * (_WIDTH - 2)


def commented(run: RunFile, heading: str) -> str:
    """A run.toml that is read back as `run`; `heading` stands above it."""
    lines = [*_comment(heading)]
    for name in RunFile.model_fields:
        lines += ["", *_section(name, getattr(run, name))]
    return "\n".join(lines) + "\n"


def as_toml(value: Any) -> str:
    """A value of a run file: JSON's scalars and lists of them are TOML's."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _section(name: str, section: BaseModel) -> Iterator[str]:
    yield _RULE
    yield f"[{name}]"
    yield from _comment(" ".join((type(section).__doc__ or "").split()))
    for key in keys_of(type(section)):
        value = getattr(section, key.name)
        field = type(section).model_fields[key.name]
        is_default = not key.is_required and value == field.get_default(call_default_factory=True)
        yield ""
        yield from _comment(f"{key.meaning} ({_demands(key)})")
        yield f"{'# ' if is_default else ''}{key.name} = {as_toml(value)}"


def _demands(key: Key) -> str:
    said = f"{key.kind}, {key.bounds}" if key.bounds else key.kind
    return said if key.is_required else f"{said}; {key.default} if left out"


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.strip().split("\n"):
        yield from textwrap.wrap(
            paragraph, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False
        ) or ["#"]
