"""Datasets of the Hugging Face hub by name: `hf://owner/name`, `hf://owner/name@revision/folder`.

Their files are listed at once, and fetched one after the other when their turn comes, the next while one is read. A
revision is fixed to the commit it was when the work began. What a server says about waiting is heeded, and a transfer
that broke off goes on where it was.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from spes_peer.data.reading.inputs import InputFile, format_of
from spes_peer.errors import BadConfiguration

HUB = "hf://"
_CONVERTED = "refs/convert/parquet"
"""Where the hub keeps tables that it makes itself of datasets in other formats."""
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LISTING_PATIENCE_SECONDS = 8.0
_FETCH_PATIENCE_SECONDS = 1800.0
_LONGEST_WAIT_SECONDS = 300.0
_CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")

_endpoint: str | None = None  # the hub itself, or what HF_ENDPOINT says

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Dataset:
    """A dataset's name, taken apart."""

    name: str
    revision: str = "main"
    folder: str = ""

    @classmethod
    def parse(cls, url: str) -> "Dataset":
        """`BadConfiguration` for what is no dataset's name."""
        owner, _, rest = url.removeprefix(HUB).removeprefix("datasets/").partition("/")
        name, _, folder = rest.partition("/")
        name, _, revision = name.partition("@")
        if not owner or not name:
            raise BadConfiguration(
                f"{url} names no dataset; write hf://OWNER/NAME, and if need be @REVISION and /FOLDER"
            )
        return cls(f"{owner}/{name}", revision or "main", folder.strip("/"))


def listed(url: str, split: str, folder: Path) -> list[InputFile]:
    """The files of a dataset that can be read, to be fetched into `folder`. One line of `BadConfiguration` where there
    is no network, no such dataset, or nothing in it that can be read."""
    dataset = Dataset.parse(url)
    found = _readable(dataset, split, folder)
    if not found and dataset.revision == "main":
        found = _readable(Dataset(dataset.name, _CONVERTED, dataset.folder), split, folder)
    if not found:
        raise BadConfiguration(f"{url} has no file that can be read, such as .parquet or .jsonl.zst")
    return found


def _readable(dataset: Dataset, split: str, folder: Path) -> list[InputFile]:
    api = _api()

    def ask() -> tuple[str, list[Any]]:
        commit = str(api.repo_info(dataset.name, repo_type="dataset", revision=dataset.revision).sha)
        tree = api.list_repo_tree(
            dataset.name, dataset.folder or None, repo_type="dataset", revision=commit, recursive=True
        )
        return commit, [entry for entry in tree if getattr(entry, "size", None) is not None]

    with _said_plainly(dataset, is_optional=dataset.revision == _CONVERTED):
        commit, entries = patiently(ask, f"listing {dataset.name}", _LISTING_PATIENCE_SECONDS)
        return _of_split(_inputs(dataset, commit, entries, folder), split)
    return []


def _inputs(dataset: Dataset, commit: str, entries: list[Any], folder: Path) -> list[InputFile]:
    files = []
    for entry in sorted(entries, key=lambda one: str(one.path)):
        path, kind = str(entry.path), format_of(str(entry.path))
        is_text = kind is not None and not Path(path).name.startswith((".", "README", "LICENSE"))
        if not is_text or kind is None or path.endswith((".py", ".md")) or ".." in Path(path).parts:
            continue
        below = folder / dataset.name.replace("/", "--") / commit / path
        url = f"{HUB}{dataset.name}@{commit}/{path}"
        files.append(InputFile(f"{dataset.name}/{path}", below, int(entry.size), kind, url=url))
    tables = [file for file in files if file.format == "parquet"]
    return tables or files  # beside tables, other files tell about the dataset


def _of_split(files: list[InputFile], split: str) -> list[InputFile]:
    """Those of the split, where names or folders say of any file that it is."""
    return [file for file in files if split in file.name.replace(".", "-").replace("/", "-").split("-")] or files


class Ahead:
    """Files at hand when their turn comes. One is fetched while another is read; what has been read is removed."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._files = files
        self._thread = ThreadPoolExecutor(1, "fetching")
        self._coming: dict[int, Future[None]] = {}

    def get(self, index: int) -> None:
        """Wait for a file, and begin with the next."""
        if self._files[index].url:
            self._begin(index)
            if index + 1 < len(self._files) and self._files[index + 1].url:
                self._begin(index + 1)
            self._coming[index].result()

    def _begin(self, index: int) -> None:
        if index not in self._coming:
            self._coming[index] = self._thread.submit(fetch, self._files[index])

    def done_with(self, index: int) -> None:
        if self._files[index].url:
            self._files[index].path.unlink(missing_ok=True)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def fetch(file: InputFile) -> None:
    """Into its place, unless it is there."""
    if file.path.exists() and file.path.stat().st_size == file.size_bytes:
        return
    dataset = Dataset.parse(file.url)
    folder = file.path
    for _ in Path(dataset.folder).parts:
        folder = folder.parent
    api = _api()

    def get() -> None:
        api.hf_hub_download(
            dataset.name, dataset.folder, repo_type="dataset", revision=dataset.revision, local_dir=str(folder)
        )

    with _said_plainly(dataset):
        patiently(get, f"fetching {file.name}", _FETCH_PATIENCE_SECONDS)


def patiently(
    call: Callable[[], T],
    what: str,
    patience_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """What `call` gives, tried again where its failure may pass: a busy server, a connection that was reset. It waits
    as long as the server asks, or else longer from time to time; the error when that would take too long."""
    began_at, pause = clock(), 1.0
    while True:
        try:
            return call()
        except Exception as error:
            if not _may_pass(error):
                raise
            asked = _asked_to_wait(error)
            wait = min(asked if asked is not None else pause * random.uniform(0.8, 1.2), _LONGEST_WAIT_SECONDS)
            if clock() - began_at + wait > max(patience_seconds, (asked or 0.0) + 1.0):
                raise
            logger.warning("%s: %s; again in %.0f s", what, _short(error), wait)
            sleep(wait)
            pause = min(2 * pause, 60.0)


def _may_pass(error: Exception) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in _PASSING
    return isinstance(error, ConnectionError) or type(error).__module__.partition(".")[0] in _CLIENTS


def _asked_to_wait(error: Exception) -> float | None:
    """By the server, in seconds."""
    try:
        return max(0.0, float(getattr(error, "response").headers["Retry-After"]))  # noqa: B009  # any library's error
    except (AttributeError, KeyError, ValueError, TypeError):
        return None


@contextmanager
def _said_plainly(dataset: Dataset, is_optional: bool = False) -> Iterator[None]:
    try:
        yield
    except BadConfiguration:
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404) or "NotFound" in type(error).__name__:
            if is_optional:
                return
            raise BadConfiguration(
                f"the hub shows no dataset {dataset.name} at {dataset.revision}; if it is closed, ask for access"
                " there and log in with: hf auth login"
            ) from None
        raise BadConfiguration(
            f"cannot get {dataset.name} from the Hugging Face hub ({_short(error)}): run this again where there is a"
            " network, or name files that are here"
        ) from None


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160] or type(error).__name__


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError:
        raise BadConfiguration("to fetch datasets by name, install: pip install 'spes-peer[data]'") from None
    disable_progress_bars()
    return HfApi(endpoint=_endpoint)
