"""The settings file: read by commands, shown and edited by `spes-peer config`."""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer import config
from spes_peer.cli.parsing import add_log_level, sentence
from spes_peer.errors import BadConfiguration


@dataclass(frozen=True)
class Settings:
    """The settings file of `join`, of which a command uses what it has a flag for."""

    parser: argparse.ArgumentParser
    join: argparse.ArgumentParser
    only: tuple[str, ...] | None = None
    """Of these alone, whatever else is wrong with the file: a running daemon can always be asked to leave."""

    def become_defaults(self, path: Path | None) -> None:
        """In place of the program's own."""
        from_file = config.read_settings(path or config.default_path(), self.join, self.only)
        self.parser.set_defaults(**from_file)


def add_config(commands: Any, join: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "config",
        help="settings that join reads, so that they need not be typed",
        description="Settings of join in a file: a key for each flag. Flags win over the file, the file over defaults.",
        epilog="example:\n  spes-peer config edit\n  spes-peer config show",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", dest="ACTION")
    for name, about, run in (
        ("show", "print every setting as it is now; as a comment what the file does not set", _config_show),
        ("edit", "open the file in your editor ($VISUAL or $EDITOR), and check it afterwards", _config_edit),
        ("path", "print where the file lies", _config_path),
    ):
        action = actions.add_parser(name, help=about, description=sentence(about))
        action.add_argument(
            "--config", type=Path, default=config.default_path(), metavar="FILE", help="another file than the user's"
        )
        add_log_level(action, "WARNING")
        action.set_defaults(run=run, join=join)


def _config_path(options: argparse.Namespace) -> None:
    print(options.config)


def _config_show(options: argparse.Namespace) -> None:
    from_file = config.read_settings(options.config, options.join)
    options.join.set_defaults(**from_file)
    print(config.shown(vars(options.join.parse_args([])), from_file, options.config, options.join))


def _config_edit(options: argparse.Namespace) -> None:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    if not named and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadConfiguration(f"nobody can edit here without a terminal; set $EDITOR, or write to {options.config}")
    try:
        editor = shlex.split(named) or ["vi"]
    except ValueError as error:
        raise BadConfiguration(f"the editor {named!r} cannot be read: {error}; set $EDITOR to another") from None
    if not options.config.exists():
        config.write_template(options.config, options.join)
    try:
        subprocess.run([*editor, options.config], check=True)
    except OSError as error:
        raise BadConfiguration(f"{editor[0]}: {error.strerror}; set $EDITOR to another editor") from None
    except subprocess.CalledProcessError as error:
        raise BadConfiguration(f"{editor[0]} ended with {error.returncode}; set $EDITOR to another editor") from None
    config.read_settings(options.config, options.join)
    print(f"{options.config} is good; a daemon reads it when it starts")
