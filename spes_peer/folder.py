"""A node's state folder: who uses it, which run it belongs to, and what lies where.

One process uses a folder at a time (`lock`). A folder belongs to one run for ever; starting it for another is refused.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from spes_peer import events
from spes_peer.errors import BadConfiguration
from spes_peer.files import UNFINISHED, write_whole
from spes_peer.identity import Identity
from spes_peer.lock import LOCK_FILE, locked
from spes_peer.ports import MAX_SOCKET_PATH_BYTES
from spes_peer.run.manifest import SignedManifest

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.spes"
SNAPSHOTS_FILE = "snapshots.spes"
INCARNATION_FILE = "incarnation"
KEY_FILE = "identity.key"
ORGANIZER_KEY_FILE = "organizer.key"
RUN_FILE = "run.toml"
INVITATION_FILE = "invitation"
DAEMON_LOG = "daemon.log"
KNOWN_NODES_FILE = "known-nodes.json"
CACHE = "cache"
"""A folder for what libraries and drivers keep to be faster the next time."""
_OWN = frozenset(
    {
        *(MANIFEST_FILE, SNAPSHOTS_FILE, INCARNATION_FILE, KEY_FILE, LOCK_FILE, KNOWN_NODES_FILE, CACHE, events.FOLDER),
        *("logs", "tunnels", "blobs", "records", "trainer", "ballots", "p2pd", "proposal", ".writable"),
        *("control.sock", "peer.sock", "dht.key", "dht.json", "paused", "given.json", "traffic-today.json"),
        *("amendment", INVITATION_FILE),
    }
)
"""Names of all that a volunteer's daemon and its processes write into its folder; a test looks that it is all."""
# the longest path of ours is tunnels/<12 characters>.sock
_LONGEST_FOLDER_BYTES = MAX_SOCKET_PATH_BYTES - len("/tunnels/xxxxxxxxxxxx.sock")


def own_content(folder: Path) -> list[Path]:
    """What a volunteer's daemon has put into its state folder. Whatever else lies there is not ours to remove."""
    try:
        there = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in there if path.name in _OWN or path.name.endswith(UNFINISHED)]


def check_length(folder: Path) -> None:
    """`BadConfiguration` if the paths of sockets inside would be longer than systems allow."""
    if len(os.fsencode(folder)) > _LONGEST_FOLDER_BYTES:
        raise BadConfiguration(
            f"{folder} is too long a path for the sockets inside it;"
            f" choose one whose path has at most {_LONGEST_FOLDER_BYTES} bytes"
        )


class StateFolder:
    """Paths inside a folder, made private (0700) and checked to be usable."""

    def __init__(self, path: Path, has_sockets: bool = True) -> None:
        """`has_sockets` if others are served from it: then its path has a bound."""
        self.path = path.absolute()
        if has_sockets:
            check_length(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in ("logs", "tunnels", "blobs", "records", "trainer"):
                (self.path / name).mkdir(exist_ok=True, mode=0o700)
            write_whole(self.path / ".writable", b"")
        except OSError as error:
            raise BadConfiguration(
                f"cannot write to the state folder {self.path}: {error.strerror}; choose another with --data-dir"
            ) from None

    @property
    def identity_key(self) -> Path:
        return self.path / KEY_FILE

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def peer_socket(self) -> Path:
        return self.path / "peer.sock"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def daemon_log(self) -> Path:
        return self.logs / DAEMON_LOG

    @property
    def events(self) -> Path:
        """What happened to the daemon; a folder."""
        return self.path / events.FOLDER

    @property
    def ballots(self) -> Path:
        """What this node has promised and signed; a folder."""
        return self.path / "ballots"

    @property
    def proposal(self) -> Path:
        """What this node proposed last as coordinator."""
        return self.path / "proposal"

    @property
    def amendment(self) -> Path:
        """Of an organizer, until a record carries it."""
        return self.path / "amendment"

    @property
    def invitation(self) -> Path:
        """With which this peer joined."""
        return self.path / INVITATION_FILE

    @property
    def known_nodes(self) -> Path:
        return self.path / KNOWN_NODES_FILE

    @property
    def snapshots(self) -> Path:
        return self.path / SNAPSHOTS_FILE

    def identity(self) -> Identity:
        """This node's key, made at its first start. `BadConfiguration` where the key is gone: with a new one the node
        would be another peer, and what lies here is the old one's."""
        self.refuse_a_lost_key()
        if not self.identity_key.exists():
            logger.info("this machine gets a key, by which others know it: %s", self.identity_key)
        return Identity.load_or_create(self.identity_key)

    def refuse_a_lost_key(self) -> None:
        """As `identity`, which makes one where there never was any."""
        if Identity.load(self.identity_key) is None and (self.path / INCARNATION_FILE).exists():
            raise BadConfiguration(
                f"the key of this folder is gone ({self.identity_key}), and what lies here is its peer's; put it back"
                " (spes-peer identity import FILE), or choose a new folder with --data-dir"
            )

    def next_number(self, name: str, at_least: int = 0) -> int:
        """A number that this folder has never given under `name`, higher than all before; kept in a file."""
        path = self.path / name
        try:
            last = int(path.read_bytes()) if path.exists() else -1
        except ValueError:
            raise BadConfiguration(f"{path} is damaged; put back a copy that is whole") from None
        number = max(at_least, last + 1)
        write_whole(path, str(number).encode())
        return number

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process, or refuse and name the one that does."""
        with locked(self.path):
            yield

    def bind(self, signed: SignedManifest) -> None:
        """Make the folder this run's, or refuse because it is another's."""
        path = self.path / MANIFEST_FILE
        try:
            held = SignedManifest.from_bytes(path.read_bytes())
        except FileNotFoundError:
            write_whole(path, signed.to_bytes())
            return
        if held.run_id != signed.run_id:
            raise BadConfiguration(
                f"{self.path} holds the state of another run ({held.run_id.hex()[:12]}, not"
                f" {signed.run_id.hex()[:12]}); choose a new folder with --data-dir, or remove what that run has left:"
                f" spes-peer leave --purge --data-dir {self.path}"
            )
