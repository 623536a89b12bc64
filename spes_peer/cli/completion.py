"""`spes-peer completion`: what a shell needs to complete commands, options and their values at a Tab."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spes_peer.cli.parsing import add_log_level

_SHELLS = ("bash", "zsh", "fish")
_EPILOG = """\
examples:
  spes-peer completion bash > ~/.local/share/bash-completion/completions/spes-peer
  spes-peer completion zsh > ~/.zfunc/_spes-peer          # in a folder of $fpath
  spes-peer completion fish > ~/.config/fish/completions/spes-peer.fish"""


def add_completion(commands: Any, whole: Callable[[], argparse.ArgumentParser]) -> None:
    """`whole` makes the parser that knows every command."""
    parser = commands.add_parser(
        "completion",
        help="print what your shell needs to complete commands and options",
        description="Print what a shell needs to complete commands, options and their values at a Tab.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", choices=_SHELLS, help="which one is yours")
    add_log_level(parser, "WARNING")
    parser.set_defaults(run=_completion, whole=whole)


def _completion(options: argparse.Namespace) -> None:
    import shtab

    whole = options.whole()
    _mark_paths(whole, {"FOLDER": shtab.DIRECTORY}, shtab.FILE)
    print(shtab.complete(whole, options.shell))


def _mark_paths(parser: argparse.ArgumentParser, by_metavar: dict[str, Any], otherwise: Any) -> None:
    """Let files be completed where a path is asked for."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _mark_paths(one, by_metavar, otherwise)
        elif action.type is Path:
            action.complete = by_metavar.get(str(action.metavar), otherwise)  # type: ignore[attr-defined]
