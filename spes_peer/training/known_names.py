"""What volunteers call themselves, as far as a folder knows: from the nodes met last, and from the names that a
bootstrap node or a visitor has written down. Hints for people; what cannot be used is left out. No torch."""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from spes_peer.errors import DiskTrouble
from spes_peer.files import write_whole
from spes_peer.identity import PeerId
from spes_peer.run.peers import MAX_NAME_CHARACTERS

NAMES_FILE = "names.json"
BOOTSTRAP_NAMES_FILE = "web-names.json"
_VERSION = 1
_MAX_NAMES = 10_000
_MAX_FILE_BYTES = 4 << 20


def known_names(folder: Path) -> dict[PeerId, str]:
    """By peer id."""
    return {peer: name for file in (BOOTSTRAP_NAMES_FILE, NAMES_FILE) for peer, name in _read(folder / file).items()}


def _read(path: Path) -> dict[PeerId, str]:
    try:
        with path.open("rb") as file:
            content: Any = json.loads(file.read(_MAX_FILE_BYTES))
        pairs = content["names"] if content["version"] == _VERSION else []
        return {PeerId(str(peer)): str(name)[:MAX_NAME_CHARACTERS] for peer, name in islice(pairs, _MAX_NAMES)}
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return {}


def write_names(folder: Path, names: Mapping[PeerId, str]) -> None:
    """To be read by `known_names`; a disk that does not take them costs no more than the names."""
    content = json.dumps({"version": _VERSION, "names": list(names.items())}, ensure_ascii=False)
    try:
        write_whole(folder / NAMES_FILE, content.encode("utf-8", "replace"), lasts=False)
    except DiskTrouble:
        return
