"""A volunteer's settings file: flags of a command, kept. What is typed wins over the file, the file over defaults.

TOML, with a key for each flag: `max_upload = "2MB"` is --max-upload 2MB, `relay = true` is --relay. Whatever the flag
would refuse is refused here, with the file and the key; an unknown key with the nearest that there is.
"""

import argparse
import difflib
import json
import os
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from spes_peer.errors import BadConfiguration
from spes_peer.files import write_whole
from spes_peer.toml import parsed_file

# the folder keeps an invitation, once it has been shown
_NO_SETTINGS = frozenset({"help", "config", "with_parent", "detach", "yes", "invitation"})
_WIDTH = 100


class Repeated(argparse.Action):
    """A flag that may be given several times; what is typed takes the place of the file's, and does not add to it."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, _flag: str | None = None
    ) -> None:
        given = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*(() if given is self.default else given), value])


def usual_folder() -> Path:
    """Where a volunteer's state lies when nothing else is said."""
    return Path(platformdirs.user_data_dir("spes-peer"))


def default_path() -> Path:
    return Path(platformdirs.user_config_dir("spes-peer")) / "config.toml"


def settings_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """What of a command a file may set, by key, in the order of its help."""
    flags = (action for action in parser._actions if action.option_strings)
    return {action.dest: action for action in flags if action.dest not in _NO_SETTINGS}


def read_settings(path: Path, parser: argparse.ArgumentParser, only: Collection[str] | None = None) -> dict[str, Any]:
    """What the file sets, by key, as the flags would give it; nothing where there is no file. `BadConfiguration` names
    file and key. With `only`, other keys are not looked at: what is wrong with them keeps nobody from these."""
    given = _content(path)
    known = settings_of(parser)
    values = {}
    for key, value in given.items():
        if only is not None and key not in only:
            continue
        if (action := known.get(key)) is None:
            nearest = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.0)
            raise BadConfiguration(f"{path}: unknown key {key!r}; did you mean {nearest[0]}?")
        try:
            values[key] = _converted(value, action)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise BadConfiguration(f"{path}: {key}: {error}") from None
    return values


def _content(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadConfiguration(f"cannot read {path}: {error.strerror}") from None
    try:
        return parsed_file(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{path}: {error}") from None


def _converted(value: Any, action: argparse.Action) -> Any:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return value
    if isinstance(action, Repeated):
        return [_of_one(one, action) for one in (value if isinstance(value, list) else [value])]
    return _of_one(value, action)


def _of_one(value: Any, action: argparse.Action) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is neither a text nor a number")
    kind = action.type if callable(action.type) else str
    converted = kind(str(value))
    if isinstance(converted, Path) and not (converted := converted.expanduser()).is_absolute():
        raise ValueError(f"{value!r} is not a whole path, and what it is from depends on where a command is typed")
    if action.choices is not None and converted not in action.choices:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, action.choices))}")
    return converted


def template(parser: argparse.ArgumentParser) -> str:
    """A file that sets nothing, and says of each key what it does."""
    lines = [
        "# Settings of spes-peer join. Take the # before a line away to set it.",
        "# What is typed wins; only a switch that is true here (relay, no_tui …) stays so.",
        "",
    ]
    for key, action in settings_of(parser).items():
        lines += [f"# {line}" for line in textwrap.wrap((action.help or key) % vars(action), _WIDTH)]
        lines += [f"#{key} = {_example(action)}", ""]
    return "\n".join(lines)


def write_template(path: Path, parser: argparse.ArgumentParser) -> None:
    """Make the file, and its folder; `BadConfiguration` where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, template(parser).encode())
    except OSError as error:
        raise BadConfiguration(f"cannot make {path}: {error.strerror}") from None


def shown(values: Mapping[str, Any], from_file: Mapping[str, Any], path: Path, parser: argparse.ArgumentParser) -> str:
    """All settings as they are now; as a comment what the file does not set."""
    lines = [f"# {path}" + ("" if path.exists() else " (not there; make it with: spes-peer config edit)")]
    for key in settings_of(parser):
        lines.append(f"{'' if key in from_file else '#'}{key} = {_as_toml(values[key])}")
    return "\n".join(lines)


_EXAMPLES = {
    "data_dir": '"~/lent"',
    "bootstrap": '["/dns4/run.example.org/tcp/4510/p2p/12D3KooW…"]',
    "announce": '["example.org:4510"]',
    "metrics": '"9100"',
    "gpu_memory": '"20GB"',
    "hours": '"22:00-08:00"',
    "max_temperature": "80",
}
"""Where the default says nothing."""


def _example(action: argparse.Action) -> str:
    if action.dest in _EXAMPLES:
        return _EXAMPLES[action.dest]
    if action.nargs == 0:
        return "true"
    if action.choices is not None:
        return json.dumps(next(iter(action.choices)))
    return _as_toml([] if isinstance(action, Repeated) else action.default)


def _as_toml(value: Any) -> str:
    """Values of flags are texts, numbers, lists of them, or something that is written as text."""
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(_as_toml(one) for one in value)}]"
    return json.dumps("" if value is None else os.fspath(value) if isinstance(value, os.PathLike) else str(value))
