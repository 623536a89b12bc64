"""Names of volunteers as the page shows them: short, harmless and told apart.

A name is a stranger's text. What could deceive a reader is taken out of it, and a name that holds an address, a key or
the name of a host is not shown at all. Of two that look alike, who came later gets a number, so that nobody passes for
another.
"""

import itertools
import json
import logging
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from spes_peer.files import write_whole
from spes_peer.identity import PeerId
from spes_peer.run.peers import MAX_NAME_CHARACTERS

logger = logging.getLogger(__name__)

UNNAMED = "a volunteer"
MAX_SHOWN_CHARACTERS = 32
MAX_KNOWN = 10_000  # a megabyte; whoever comes when it is full is named while here
_MOST_MARKS = 2  # accents on one letter; more of them climb over the lines around
# letters by their category that print nothing
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
_TELLING = re.compile(
    r"\d{1,3}([._-])\d{1,3}\1\d{1,3}\1\d{1,3}"  # IPv4, and host names made of it
    r"|[0-9a-f]{1,4}(:[0-9a-f]{0,4}){2,}|::[0-9a-f]"  # IPv6, and hardware addresses
    r"|12D3Koo|[A-Za-z0-9+/_=-]{32,}"  # peer ids and keys
    r"|\w[.\u3002](xn--[\w-]+|[^\W\d_]{2,})(?!\w)",  # host names: a part, and behind a dot one of letters alone
    re.IGNORECASE,
)
_VERSION = 1


def shown_name(name: str) -> str:
    """What of a chosen name is shown; `UNNAMED` where nothing is left, or where it gives away an address, a key or a
    host."""
    text = unicodedata.normalize("NFC", name)
    kept, num_marks = [], 0
    for sign in text:
        num_marks = num_marks + 1 if unicodedata.category(sign).startswith("M") else 0
        if sign.isprintable() and sign not in _BLANK and num_marks <= _MOST_MARKS:
            kept.append(sign)
    whole = " ".join("".join(kept).split())
    shown = whole[:MAX_SHOWN_CHARACTERS].strip()
    if any(map(_is_telling, (text, whole, shown))):  # signs that print nothing may hide it, or the end that is cut off
        return UNNAMED
    return shown if any(unicodedata.category(sign)[0] in "LNPS" for sign in shown) else UNNAMED


def _is_telling(text: str) -> bool:
    return any(map(_TELLING.search, (text, unicodedata.normalize("NFKC", text))))


def told_apart(names: Mapping[PeerId, str]) -> dict[PeerId, str]:
    """What each is shown as; the first of those that look alike has the name as it is, the others a number behind."""
    labels: dict[PeerId, str] = {}
    taken: set[str] = set()
    last: dict[str, int] = {}
    for peer, name in names.items():
        plain = label = shown_name(name)
        number = last.get(_looks(plain), 1)
        while _looks(label) in taken:
            number += 1
            label = f"{plain} ({number})"
        last[_looks(plain)] = number
        taken.add(_looks(label))
        labels[peer] = label
    return labels


def _looks(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


class NameBook:
    """Names of all that a record ever named, in the order in which they came; kept in a file, so that who has left is
    still thanked by name. Only the node reads it: it holds peer ids."""

    def __init__(self, path: Path) -> None:
        """Begins anew, with a warning, where the file cannot be used."""
        self._path = path
        self._names = self._read()
        self._labels: dict[PeerId, str] | None = None

    def note(self, names: Iterable[tuple[PeerId, str]]) -> None:
        """What these are called now. On disk when this returns, if the disk takes it."""
        room = MAX_KNOWN - len(self._names)
        known = {peer: name for peer, name in names if self._names.get(peer) != name}
        new = itertools.islice((peer for peer in known if peer not in self._names), room)
        changed = {peer: known[peer] for peer in (*(one for one in known if one in self._names), *new)}
        if changed:
            self._names |= changed
            self._labels = None
            self._write()

    def labels(self) -> Mapping[PeerId, str]:
        """What each is shown as."""
        if self._labels is None:
            self._labels = told_apart(self._names)
        return self._labels

    def _write(self) -> None:
        content = json.dumps({"version": _VERSION, "names": list(self._names.items())}, ensure_ascii=False)
        try:
            write_whole(self._path, content.encode("utf-8", "replace"), mode=0o600, lasts=False)
        except OSError as error:
            logger.warning("cannot keep the names of volunteers reason=%s", error)

    def _read(self) -> dict[PeerId, str]:
        try:
            content = json.loads(self._path.read_bytes())
            pairs = content["names"] if content["version"] == _VERSION else []
            names = {PeerId(str(peer)): str(name)[:MAX_NAME_CHARACTERS] for peer, name in pairs}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            logger.warning("starting without the names of earlier volunteers path=%s reason=%s", self._path, error)
            return {}
        return dict(itertools.islice(names.items(), MAX_KNOWN))
