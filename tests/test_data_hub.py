"""Datasets by name, from a hub on loopback that is busy and breaks off."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants as library_constants

from spes_peer.data.preparing.batches import batches
from spes_peer.data.preparing.sources import SourceRecipe
from spes_peer.data.preparing.workers import Position
from spes_peer.data.reading import hub
from spes_peer.data.reading.hub import Dataset, fetch, listed, patiently
from spes_peer.errors import BadConfiguration

COMMIT = "c" * 40
CONTENT = b"".join(b'{"text": "document %d of the hub"}\n' % number for number in range(40_000))
FILES = {"data/train-0.jsonl": CONTENT, "data/train-1.jsonl": CONTENT, "data/test-0.jsonl": b"x", "README.md": b"x"}


class Hub(BaseHTTPRequestHandler):
    """What of the hub's interface a listing and a download use."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, str]]
    num_busy: int
    num_resets: int

    def do_HEAD(self) -> None:
        self._resolve(is_head=True)

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path.partition("?")[0], self.headers.get("Range", "")))
        if type(self).num_busy:
            type(self).num_busy -= 1
            self._answer(429, b"{}", {"Retry-After": "0"})
        elif self.path.startswith("/api/datasets/some/texts/revision/"):
            self._answer(200, json.dumps({"id": "some/texts", "sha": COMMIT, "siblings": []}).encode())
        elif self.path.startswith(f"/api/datasets/some/texts/tree/{COMMIT}"):
            tree = [{"type": "file", "path": path, "size": len(FILES[path]), "oid": "0" * 40} for path in FILES]
            self._answer(200, json.dumps([{"type": "directory", "path": "data", "oid": "1" * 40}, *tree]).encode())
        elif "/resolve/" in self.path:
            self._resolve(is_head=False)
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _resolve(self, is_head: bool) -> None:
        content = FILES[self.path.partition("?")[0].partition(f"/resolve/{COMMIT}/")[2]]
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        headers = {"ETag": f'"{"e" * 40}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.send_response(206 if start else 200)
        for name, value in (headers | {"Content-Length": str(len(content) - start)}).items():
            self.send_header(name, value)
        self.end_headers()
        if not is_head and type(self).num_resets:
            type(self).num_resets -= 1
            self.wfile.write(content[start : start + len(content) // 3])
            self.close_connection = True
            self.connection.shutdown(2)
        elif not is_head:
            self.wfile.write(content[start:])

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ((headers or {}) | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def busy_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    class Busy(Hub):
        asked: list[tuple[str, str, str]] = []  # noqa: RUF012
        num_busy = 0
        num_resets = 0

    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(hub, "_endpoint", address)
    monkeypatch.setattr(
        library_constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16
    )  # what it keeps of a transfer, and goes on from
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    yield Busy
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_dataset_is_listed_by_a_busy_hub_fetched_over_resets_and_read(busy_hub: type[Hub], tmp_path: Path) -> None:
    busy_hub.num_busy = 2
    files = listed("hf://some/texts", "train", tmp_path)
    assert [file.name for file in files] == ["some/texts/data/train-0.jsonl", "some/texts/data/train-1.jsonl"]
    busy_hub.num_resets = 1
    recipe = SourceRecipe(name="t", paths=("hf://some/texts",))
    made = list(batches(files, recipe, Position(), is_strict=True))
    assert sum(len(batch.records) for batch in made) == 80_000
    assert any(ranges.startswith("bytes=") and ranges != "bytes=0-" for _, _, ranges in busy_hub.asked)  # it went on
    assert not any(file.path.exists() for file in files)  # read, and gone


def test_a_file_that_is_here_is_not_fetched_again(busy_hub: type[Hub], tmp_path: Path) -> None:
    [first, _] = listed("hf://some/texts@main/data", "train", tmp_path)
    fetch(first)
    assert first.path.read_bytes() == CONTENT
    num_asked = len(busy_hub.asked)
    fetch(first)
    assert len(busy_hub.asked) == num_asked


def test_no_such_dataset_is_one_line(busy_hub: type[Hub], tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="the hub shows no dataset no/thing at main") as caught:
        listed("hf://no/thing", "train", tmp_path)
    assert "\n" not in str(caught.value)


def test_without_a_network_it_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_endpoint", "http://127.0.0.1:1")
    monkeypatch.setattr(hub, "_LISTING_PATIENCE_SECONDS", 0.0)
    with pytest.raises(BadConfiguration, match="where there is a network, or name files that are here") as caught:
        listed("hf://some/texts", "train", tmp_path)
    assert "\n" not in str(caught.value)


class Answer:
    def __init__(self, status: int, **headers: str) -> None:
        self.status_code, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


class Refusal(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        self.response = Answer(status, **headers)


def test_what_a_server_says_about_waiting_is_heeded_and_patience_ends() -> None:
    now, waited = [0.0], []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    refusals = [Refusal(429, Retry_After="37"), ConnectionResetError(), Refusal(503), ConnectionResetError()]

    def call() -> str:
        if refusals:
            raise refusals.pop(0)
        return "done"

    assert patiently(call, "x", 600, sleep, lambda: now[0]) == "done"
    assert waited[0] == 37
    assert waited[1:] == pytest.approx([2, 4, 8], rel=0.21)  # longer from time to time, and not all at once

    def never() -> str:
        raise ConnectionResetError

    waited.clear()
    with pytest.raises(ConnectionResetError):
        patiently(never, "x", 600, sleep, lambda: now[0])
    assert 400 < sum(waited) <= 600
    with pytest.raises(Refusal):
        patiently(lambda: (_ for _ in ()).throw(Refusal(404)), "x", 600, sleep, lambda: now[0])


def test_names_of_datasets_are_taken_apart() -> None:
    assert Dataset.parse("hf://a/b") == Dataset("a/b")
    assert Dataset.parse("hf://datasets/a/b@v1/some/folder/") == Dataset("a/b", "v1", "some/folder")
    for wrong in ("hf://", "hf://a", "hf:///b"):
        with pytest.raises(BadConfiguration, match="names no dataset"):
            Dataset.parse(wrong)
