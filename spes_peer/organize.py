"""The organizer's folder: from a run file and prepared data to a signed manifest, genesis blocks and record 0.

    run.toml            what the organizer wrote
    organizer.key       signs the manifest, record 0 and amendments; keep it safe, elsewhere if you like
    identity.key        the bootstrap node's own key
    data.json, blobs/   what is trained on (`spes-peer data prepare`); the genesis blocks lie among the blobs too
    manifest.spes       the signed manifest; the run id is the sha256 of the bytes inside. With it the run is fixed
    records/            the chain, at first record 0 alone

A folder is unsigned until `manifest.spes` is there, which comes last: signing that was killed is begun again.
"""

import contextlib
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spes_peer.blobs import BlobStore
from spes_peer.data.corpus import Corpus, read_text_folder, standard_library
from spes_peer.data.index import ShardIndex
from spes_peer.data.prepared import DATA_FILE, data_in
from spes_peer.data.shards import make_shards
from spes_peer.errors import BadConfiguration, BadMessage, BlobMissing, ChildFailed, ending_in_a_line
from spes_peer.files import UNFINISHED, making_folder, write_whole
from spes_peer.folder import KEY_FILE, MANIFEST_FILE, ORGANIZER_KEY_FILE, RUN_FILE
from spes_peer.identity import Identity, PeerId
from spes_peer.lock import held
from spes_peer.run.certificates import Checks, sign_genesis
from spes_peer.run.chain import Chain
from spes_peer.run.checking import check_text, trains_bytes
from spes_peer.run.data import Data
from spes_peer.run.manifest import (
    Manifest,
    Origin,
    RunFile,
    SignedManifest,
    parse_run_file,
    sign_manifest,
    validated,
)
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import Snapshot, first_record
from spes_peer.wire import convert

GENESIS_FILE = "genesis.spes"
_MODULE_SECONDS = 12 * 3600.0  # tens of gigabytes on a slow disk

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Genesis:
    """The program that makes the first weights: `python -m module RUN_FOLDER arguments…`."""

    module: str = "spes_peer.training.genesis"
    arguments: tuple[str, ...] = ()
    origin: bytes = b""
    """Id of the run whose state they are, if they are a run's."""

    @classmethod
    def of_model(cls, folder: Path, is_dense: bool = False) -> "Genesis":
        """A Hugging Face folder's weights; of a dense model, made into experts."""
        return cls("spes_peer.training.adopt", (str(folder), *(["--upcycle"] if is_dense else [])))

    @classmethod
    def of_run(cls, folder: Path) -> "Genesis":
        """The newest state in the folder of another run, an organizer's or a volunteer's."""
        return cls("spes_peer.training.carry", (str(folder.absolute()),), read_manifest(folder).run_id)


# ---- what lies in a folder ----


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


def run_file_in(folder: Path) -> str:
    """The text of an organizer's run file."""
    _refuse_file(folder)
    if not (folder / RUN_FILE).exists():
        raise BadConfiguration(f"{folder} holds no {RUN_FILE}; make one with: spes-peer run new {folder}")
    return run_file_text(None, folder / RUN_FILE)


def is_signed(folder: Path) -> bool:
    return (folder / MANIFEST_FILE).exists()


def can_be_signed(folder: Path) -> bool:
    """Whether all is there that `sign_run` needs without options."""
    return not is_signed(folder) and all((folder / name).exists() for name in (RUN_FILE, ORGANIZER_KEY_FILE))


def read_manifest(folder: Path) -> SignedManifest:
    """The signed manifest in an organizer's or a volunteer's folder, checked."""
    path = folder / MANIFEST_FILE
    try:
        signed = SignedManifest.from_bytes(path.read_bytes())
    except FileNotFoundError:
        if (folder / RUN_FILE).exists():
            raise BadConfiguration(
                f"the run in {folder} is not signed yet; do it with: spes-peer run sign {folder}"
            ) from None
        raise BadConfiguration(f"{folder} holds no run; make one with: spes-peer run new {folder}") from None
    except OSError as error:
        raise BadConfiguration(f"cannot read {path}: {error.strerror}") from None
    except BadMessage as error:
        raise BadConfiguration(f"{path} is damaged ({error}); restore it from a copy, or make a new run") from None
    signed.open()
    return signed


# ---- making and signing ----


def _refuse_file(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadConfiguration(f"{folder} is a file; a run has a folder")


def new_run(folder: Path, run_toml: str) -> Identity:
    """Make `folder`, whole or not at all: run file and keys. The organizer's key."""
    _refuse_file(folder)
    if folder.exists() and any(folder.iterdir()):
        raise BadConfiguration(f"{folder} is not empty; name a new folder for the new run")
    with making_folder(folder) as building:
        return _begin(building, run_toml)


def sign_run(
    folder: Path,
    genesis: Genesis | None = None,
    licence: str = "",
    key: Path | None = None,
    is_held: bool = False,
    bootstraps: Sequence[PeerId] = (),
) -> SignedManifest:
    """Fix the run in `folder` for ever: genesis blocks, manifest, record 0. The first weights are drawn from the run's
    seed, or else what `genesis` makes; `licence` stands in place of the one in data.json; `key` is the organizer's,
    where it is not in the folder; `bootstraps` are bootstrap nodes that may coordinate, after the folder's own. Nobody
    else may be at work on the folder, and the caller alone if `is_held`.

    `BadConfiguration` for a run that is signed already, or whose file is not as it must be."""
    refuse_unsignable(folder, key)
    with contextlib.nullcontext() if is_held else held(folder):
        run_file = refuse_unsignable(folder, key)  # another may have signed it just now
        organizer = _key(folder, key)
        data = data_in(folder) or _embedded(folder, run_file)
        return _sign(folder, run_file, data, organizer, genesis or Genesis(), licence, bootstraps)


def create_run(
    folder: Path, run_toml: str, corpus: Path | None = None, genesis: Genesis | None = None, licence: str = ""
) -> SignedManifest:
    """Make and sign `folder` in one go, for programs: the corpus is the text files in a folder, or else the embedded
    default, as bytes, gone through as often as it takes."""
    if folder.exists() and any(folder.iterdir()):
        raise BadConfiguration(f"{folder} is not empty; name a new folder for the new run")
    run_file = parse_run_file(run_toml)
    with making_folder(folder) as building:
        organizer = _begin(building, run_toml)
        seed = run_file.run.seed
        documents = standard_library(seed) if corpus is None else read_text_folder(corpus, seed)
        data = _tokenized(building, run_file, documents)
        return _sign(building, run_file, data, organizer, genesis or Genesis(), licence)


def refuse_unsignable(folder: Path, key: Path | None = None) -> RunFile:
    """The run file in `folder`; `BadConfiguration` where none is, where it is signed already, or cannot be: by the key
    that would sign it, too."""
    text = run_file_in(folder)
    if is_signed(folder):
        raise BadConfiguration(
            f"{folder} is signed already, and stays as it is; a changed run is a new one: spes-peer run new, then"
            f" spes-peer run sign FOLDER --from {folder}"
        )
    if errors := check_text(text, data_in(folder)).errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise BadConfiguration(f"{RUN_FILE}: {errors[0]}{more}; all of it: spes-peer run check {folder}")
    _key(folder, key)
    return parse_run_file(text)


def _begin(folder: Path, run_toml: str) -> Identity:
    write_whole(folder / RUN_FILE, run_toml.encode())
    Identity.load_or_create(folder / KEY_FILE)
    return Identity.load_or_create(folder / ORGANIZER_KEY_FILE)


def _key(folder: Path, path: Path | None) -> Identity:
    path = path or folder / ORGANIZER_KEY_FILE
    if (organizer := Identity.load(path)) is None:
        raise BadConfiguration(f"the organizer's key is not in {path}; name the file that holds it with --key")
    return organizer


def _embedded(folder: Path, run_file: RunFile) -> Data:
    if not trains_bytes(run_file):
        raise BadConfiguration(
            f"{folder} has no data yet, and a vocabulary of {run_file.model.vocab_rows} rows wants a tokenizer's; make"
            f" it first: spes-peer data prepare {folder} TEXTS --tokenizer tokenizer.json"
        )
    return _tokenized(folder, run_file, standard_library(run_file.run.seed))


def _tokenized(folder: Path, run_file: RunFile, documents: Corpus) -> Data:
    logger.info("tokenizing as bytes: %s documents=%d", documents.source, len(documents))
    data = make_shards(documents, BlobStore(folder / "blobs"), run_file.model)
    write_whole(folder / DATA_FILE, data.model_dump_json(indent=1).encode())
    return data


def _sign(
    folder: Path,
    run_file: RunFile,
    data: Data,
    organizer: Identity,
    make: Genesis,
    licence: str,
    bootstraps: Sequence[PeerId] = (),
) -> SignedManifest:
    _refuse_missing_blobs(folder, data)
    candidates = tuple(dict.fromkeys((Identity.load_or_create(folder / KEY_FILE).peer_id, *bootstraps)))
    data = data.model_copy(update={"licence": licence}) if licence else data
    keys = dict.fromkeys((organizer.peer_id, *run_file.run.organizers))
    raw = {**run_file.model_dump(), "data": data.model_dump(), "organizers": tuple(keys)}
    with _building(folder) as building:
        draft = sign_manifest(validated(Manifest, raw, RUN_FILE), organizer)
        write_whole(building / MANIFEST_FILE, draft.to_bytes())
        logger.info("making the first weights")
        run_module(make.module, str(building), *make.arguments)
        genesis = convert.decode(Snapshot, (building / GENESIS_FILE).read_bytes())
        if make.origin:
            raw["origin"] = Origin(run_id=make.origin.hex(), round=genesis.round).model_dump()
        manifest = validated(Manifest, raw, RUN_FILE)
        signed = sign_manifest(manifest, organizer)
        record = first_record(signed.run_id, genesis.blocks, candidates, time.time())
        Chain(building, Checks.of(manifest, signed.run_id)).append(sign_genesis(record, organizer, signed.run_id))
        shutil.rmtree(folder / "records", ignore_errors=True)  # of signing that was killed: no manifest names them
        (building / "records").rename(folder / "records")
    write_whole(folder / MANIFEST_FILE, signed.to_bytes())
    return signed


@contextlib.contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """A folder inside `folder` with the same blobs; what a kill has left of another goes."""
    for left in folder.glob(f".signing.*{UNFINISHED}"):
        shutil.rmtree(left, ignore_errors=True)
    (folder / "blobs").mkdir(mode=0o700, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".signing.", suffix=UNFINISHED, dir=folder))
    try:
        (building / "blobs").symlink_to((folder / "blobs").absolute(), target_is_directory=True)
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _refuse_missing_blobs(folder: Path, data: Data) -> None:
    blobs = BlobStore(folder / "blobs")
    try:
        shards = ShardIndex.read(data, blobs).shards()
    except (BlobMissing, BadMessage) as error:
        raise BadConfiguration(f"the data in {folder} is not whole: {error}; {_prepare(folder)}") from None
    wanted = [data.held_out.blob, *(shard.blob for shard in shards)]
    wanted += [data.tokenizer.blob] if data.tokenizer.blob else []
    if missing := sum(not blobs.has(name) for name in wanted):
        raise BadConfiguration(f"the data in {folder} is not whole: {missing} of {len(wanted)} blobs are missing;"
                               f" {_prepare(folder)}")  # fmt: skip


def _prepare(folder: Path) -> str:
    return f"make it again: spes-peer data prepare {folder} TEXTS --anew"


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


def _main(arguments: Sequence[str]) -> None:
    """`python -m spes_peer.organize FOLDER RUN.toml [CORPUS]`: `create_run` in a process that can be ended."""
    folder, run_toml, *rest = map(Path, arguments)
    with ending_in_a_line():
        create_run(folder, run_file_text(None, run_toml), rest[0] if rest else None)


if __name__ == "__main__":
    _main(sys.argv[1:])
