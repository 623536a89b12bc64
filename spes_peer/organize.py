"""The organizer's folder: from a run file and a corpus to a signed manifest, genesis blocks and record 0.

    run.toml            what the organizer wrote
    manifest.spes       the signed manifest; the run id is the sha256 of the bytes inside
    organizer.key       signs the manifest and record 0; keep it safe
    identity.key        the bootstrap node's own key
    records/            the chain, at first record 0 alone
    blobs/              tokenized shards and genesis blocks

A folder is made whole or not at all.
"""

import logging
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from spes_peer.blobs import BlobStore
from spes_peer.data.corpus import read_text_folder, standard_library
from spes_peer.data.shards import make_shards
from spes_peer.errors import BadConfiguration, BadMessage, ChildFailed
from spes_peer.files import making_folder, write_whole
from spes_peer.folder import MANIFEST_FILE, ORGANIZER_KEY_FILE
from spes_peer.identity import Identity
from spes_peer.run.certificates import Checks, sign_genesis
from spes_peer.run.chain import Chain
from spes_peer.run.manifest import Manifest, RunFile, SignedManifest, parse_run_file, sign_manifest, validated
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import Snapshot, first_record
from spes_peer.wire import convert

GENESIS_FILE = "genesis.spes"
_MODULE_SECONDS = 12 * 3600.0  # tens of gigabytes on a slow disk

logger = logging.getLogger(__name__)


def run_file_text(preset: str | None, path: Path | None) -> str:
    """The TOML of a preset or of a file."""
    if path is not None:
        try:
            return path.read_text()
        except OSError as error:
            raise BadConfiguration(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadConfiguration(f"cannot read {path}: it is no text in UTF-8") from None
    if preset not in PRESETS:
        raise BadConfiguration(f"no preset is called {preset!r}; there are: {', '.join(PRESETS)}")
    return PRESETS[preset]


@dataclass(frozen=True)
class Genesis:
    """The program that makes the first weights: `python -m module RUN_FOLDER arguments…`."""

    module: str = "spes_peer.training.genesis"
    arguments: tuple[str, ...] = ()


def create_run(
    folder: Path, run_toml: str, corpus: Path | None = None, genesis: Genesis | None = None, licence: str = ""
) -> SignedManifest:
    """Make `folder`; the corpus is the text files in a folder, or else the embedded default; the first weights are
    drawn from the run's seed, or else what `genesis` makes; `licence` is what volunteers read of the corpus's."""
    if folder.exists() and any(folder.iterdir()):
        raise BadConfiguration(f"{folder} is not empty; name a new folder for the new run")
    run_file = parse_run_file(run_toml)
    with making_folder(folder) as building:
        return _fill(building, run_file, run_toml, corpus, genesis or Genesis(), licence)


def read_manifest(folder: Path) -> SignedManifest:
    """The signed manifest in an organizer's or a volunteer's folder, checked."""
    path = folder / MANIFEST_FILE
    try:
        signed = SignedManifest.from_bytes(path.read_bytes())
    except FileNotFoundError:
        raise BadConfiguration(f"{folder} holds no run; make one with: spes-peer run create {folder}") from None
    except OSError as error:
        raise BadConfiguration(f"cannot read {path}: {error.strerror}") from None
    except BadMessage as error:
        raise BadConfiguration(f"{path} is damaged ({error}); restore it from a copy, or make a new run") from None
    signed.open()
    return signed


def _fill(
    folder: Path, run_file: RunFile, run_toml: str, corpus: Path | None, make_genesis: Genesis, licence: str
) -> SignedManifest:
    organizer = Identity.load_or_create(folder / ORGANIZER_KEY_FILE)
    bootstrap = Identity.load_or_create(folder / "identity.key")
    documents = standard_library(run_file.run.seed) if corpus is None else read_text_folder(corpus, run_file.run.seed)
    logger.info("tokenizing the corpus documents=%d", len(documents))
    data = make_shards(documents, BlobStore(folder / "blobs"), run_file.model).model_dump()
    data["licence"] = licence or documents.licence
    manifest = validated(
        Manifest,
        {**run_file.model_dump(), "data": data, "organizers": (organizer.peer_id,)},
        "run.toml",
    )
    signed = sign_manifest(manifest, organizer)
    write_whole(folder / "run.toml", run_toml.encode())
    write_whole(folder / MANIFEST_FILE, signed.to_bytes())
    logger.info("making the first weights run=%s", signed.run_id.hex()[:12])
    run_module(make_genesis.module, str(folder), *make_genesis.arguments)
    genesis = convert.decode(Snapshot, (folder / GENESIS_FILE).read_bytes())
    (folder / GENESIS_FILE).unlink()  # record 0 says the same from here on
    record = first_record(signed.run_id, genesis.blocks, (bootstrap.peer_id,), time.time())
    Chain(folder, Checks.of(manifest, signed.run_id)).append(sign_genesis(record, organizer, signed.run_id))
    return signed


def run_module(module: str, *arguments: str) -> None:
    """Run `python -m module` in a process of its own, because it takes torch and nothing else here does.

    What it prints goes to stderr as it comes; the last line of its own stderr is the error that is raised."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, stdout=2, stderr=subprocess.PIPE, text=True, timeout=_MODULE_SECONDS, check=False, errors="replace"
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{module} ended with code {done.returncode}"]
        raise BadConfiguration(lines[-1]) if done.returncode == BadConfiguration.exit_code else ChildFailed(lines[-1])
