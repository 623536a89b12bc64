"""Where a visitor keeps what it has fetched: in the user's cache folder, a folder for each run, until the model is
written. A fetch that was cut goes on from there."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from spes_peer.errors import BadConfiguration
from spes_peer.folder import INCARNATION_FILE, KEY_FILE, StateFolder
from spes_peer.identity import Identity
from spes_peer.lock import holder_of
from spes_peer.run.manifest import SignedManifest

_OF_ONE_VISIT = (KEY_FILE, INCARNATION_FILE, "dht.key", "dht.json")


def usual() -> Path:
    return Path(platformdirs.user_cache_dir("spes-peer")) / "visits"


@contextlib.contextmanager
def held(root: Path, signed: SignedManifest) -> Iterator[StateFolder]:
    """The folder for a run, for this process alone."""
    path = (root / signed.run_id.hex()[:12]).absolute()
    if holder := holder_of(path):
        raise BadConfiguration(f"another export (pid {holder}) has this run in {path}; wait for it to end")
    try:
        folder = StateFolder(path, has_sockets=False)  # a visitor serves nobody
    except BadConfiguration as error:
        raise BadConfiguration(str(error).replace("--data-dir", "--cache")) from None
    with folder.locked():
        folder.bind(signed)
        yield folder


@contextlib.contextmanager
def visiting(folder: StateFolder) -> Iterator[None]:
    """With keys for a visit, in a folder that is held: they end with it, however it ends."""
    forget_keys(folder.path)  # of a visit that was killed
    try:
        Identity.load_or_create(folder.identity_key)
        yield
    finally:
        forget_keys(folder.path)


def forget_keys(path: Path) -> None:
    """Who visited cannot be told from what is left."""
    for name in _OF_ONE_VISIT:
        (path / name).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """All of a visit, while it is held; the folder above too where it was the last."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
