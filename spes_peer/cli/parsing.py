"""How commands are parsed: mistakes in one line, kinds of values, flags that several commands have."""

import argparse
import contextlib
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from spes_peer import config
from spes_peer.errors import BadConfiguration, BadSignature
from spes_peer.exchange.relay_limits import RelayLimits
from spes_peer.logs import FORMATS
from spes_peer.measures import size


class _Help(argparse.HelpFormatter):
    """Folds a text of one line, and leaves one of several as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class GroupedHelp(_Help):
    """Lists commands by what one wants of them."""

    groups: Mapping[str, Sequence[str]] = {}

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        about = {one.dest: one.help or "" for one in action._choices_actions}
        width = max(map(len, about)) + 4
        wrapper = textwrap.TextWrapper(self._width, subsequent_indent=" " * width)
        lines = []
        for title, names in self.groups.items():
            lines += ["", f"{title}:", *(wrapper.fill(f"  {name:<{width - 2}}{about[name]}") for name in names)]
        return "\n".join((*lines, ""))


class Parser(argparse.ArgumentParser):
    """One line for a mistake, and no abbreviations of options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": _Help, "allow_abbrev": False, **settings})
        self._mixes = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Of a command with words that may be left out, also where an option parts them from those before: up to Python
        3.12.6 argparse has then taken them as left out already (prepare FOLDER --ratio a=2 TEXTS)."""
        args = list(sys.argv[1:] if args is None else args)
        if self._mixes or self._subparsers is not None or _are_like_options(args):
            return super().parse_known_args(args, namespace)
        self._mixes = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixes = False

    def error(self, message: str) -> NoReturn:
        self.exit(BadConfiguration.exit_code, f"{self.prog}: {message}; see: {self.prog} --help\n")


def _are_like_options(words: Sequence[str]) -> bool:
    """Whether words behind a -- begin like options: mixing would take them as such."""
    behind = words[words.index("--") + 1 :] if "--" in words else ()
    return any(word.startswith("-") for word in behind)


def add_log_level(parser: Any, default: str = "INFO") -> None:
    parser.add_argument(
        "--log-level",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        default=default,
        help="how much to log (%(default)s)",
    )


def add_log_format(parser: Any) -> None:
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="lines for people, or a JSON object in each, for programs (%(default)s)",
    )


def add_with_parent(parser: Any) -> None:
    parser.add_argument(
        "--with-parent", action="store_true", help="end when the program that started this one ends (Linux)"
    )


def add_announce(parser: Any, otherwise: str) -> None:
    parser.add_argument(
        "--announce",
        type=announced,
        action=config.Repeated,
        default=[],
        metavar="HOST:PORT",
        help="address that others dial, where a router or a name leads to this machine; libp2p and the DHT have the"
        f" next two ports; may be given twice ({otherwise})",
    )


def announced(text: str) -> Any:
    """HOST or HOST:PORT, as an endpoint."""
    from spes_peer.exchange.reach import parse_announced

    return _parsed(parse_announced, text)


def add_pace(parser: Any) -> None:
    for direction, what in (("upload", "sent"), ("download", "taken")):
        parser.add_argument(
            f"--max-{direction}",
            type=size,
            default=0,
            metavar="SIZE",
            help=f"bytes of blobs that are {what} a second at most, such as 500KB (no limit)",
        )


def add_relay_limits(parser: Any, limits: RelayLimits) -> None:
    most = f"{limits.bytes_per_second // 1_000_000}MB" if limits.bytes_per_second else "no limit"
    parser.add_argument(
        "--max-relay",
        type=size,
        default=limits.bytes_per_second,
        metavar="SIZE",
        help="bytes that are relayed for others a second at most; they count as upload and as download, and never take"
        f" more than half of a limit on those ({most})",
    )
    parser.add_argument(
        "--max-circuits",
        type=positive,
        default=limits.max_circuits,
        metavar="N",
        help="pairs of peers relayed for at once (%(default)s)",
    )
    parser.add_argument(
        "--max-circuits-per-peer",
        type=positive,
        default=limits.max_circuits_per_peer,
        metavar="N",
        help="of these, asked for by one peer (%(default)s)",
    )


def relay_limits(options: argparse.Namespace) -> RelayLimits:
    return RelayLimits(options.max_circuits, options.max_circuits_per_peer, options.max_relay)


def add_max_disk(parser: Any) -> None:
    parser.add_argument(
        "--max-disk",
        type=size,
        default=0,
        metavar="SIZE",
        help="let the folder take at most so much of the disk, such as 20GB; what is needed now stays (no limit)",
    )


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="FOLDER",
        help="where this volunteer's key and state lie (the user's data folder for spes-peer)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings to read (where `spes-peer config path` says)"
    )


def data_dir(options: argparse.Namespace) -> Path:
    if options.data_dir is not None:
        return Path(options.data_dir)
    return config.usual_folder()


def peer_id(text: str) -> Any:
    from spes_peer.identity import PeerId, public_key_of

    try:
        public_key_of(text)
    except BadSignature:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no peer id, such as 12D3KooW…") from None
    return PeerId(text)


def metrics_address(text: str) -> Any:
    from spes_peer.metrics import parse_metrics_address

    return _parsed(parse_metrics_address, text)


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    """By a parser that is not the command line's own: argparse names the flag beside the reason."""
    try:
        return parse(text)
    except BadConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def port(text: str) -> int:
    """A base port: the node uses it and the two above it; 0 picks free ones."""
    return _whole_number(text, 0, 65533, "a port from 0 to 65533")


def count(text: str) -> int:
    """A whole number that is not negative."""
    return _whole_number(text, 0, 2**31 - 1, "a whole number from 0 on")


def positive(text: str) -> int:
    return _whole_number(text, 1, 2**31 - 1, "a whole number from 1 on")


def between(least: int, most: int) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""
    return lambda text: _whole_number(text, least, most, f"a whole number from {least} to {most}")


def _whole_number(text: str, least: int, most: int, what: str) -> int:
    with contextlib.suppress(ValueError):
        if least <= int(text) <= most:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text[:80]!r} is not {what}")


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def can_draw() -> bool:
    """Whether a person looks at our output, in a terminal that can show a dashboard."""
    import tui

    return tui.can_draw(sys.stdout)
