"""`spes-peer bench data`: preparing text, beside what the library `tokenizers` alone does with the same text.

The library gets the documents as strings that lie in memory, and what it makes is thrown away; ours reads them from a
file of JSON lines, and makes shards, a held-out split and a journal. Both use as many cores. Their turns alternate.
What it takes to start (processes, the tokenizer's file) is left out on both sides: `--workers` times a batch.
"""

import contextlib
import json
import os
import resource
import statistics
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer.bench.report import write_report
from spes_peer.data.corpus import standard_library
from spes_peer.data.preparing.documents import texts
from spes_peer.data.preparing.encoders import load
from spes_peer.data.preparing.order import Order
from spes_peer.data.preparing.prepare import prepare
from spes_peer.data.preparing.sources import Recipe, SourceRecipe
from spes_peer.data.reading.inputs import find, records
from spes_peer.data.reading.records import Meter
from spes_peer.errors import BadConfiguration

_LIBRARY_BYTES = 4 << 20  # at a time: more makes it no faster, and takes a hundred times as much memory
_NUM_IDS = 8192


@dataclass(frozen=True)
class _Size:
    text_bytes: int
    """Documents are repeated, with a number each, until they are so many."""
    num_repeats: int


_FULL = _Size(24 << 20, 3)
_QUICK = _Size(3 << 20, 1)


@dataclass
class _Clock:
    """Of `prepare`: seconds and tokens from the moment on when every worker is at work."""

    num_to_skip: int
    began_at: float = 0.0
    first_tokens: int = 0
    num_tokens: int = 0

    def went_on(self, what: str, num_bytes: int, num_tokens: int) -> None:
        del what, num_bytes
        self.num_to_skip -= 1
        self.num_tokens = num_tokens
        if self.num_to_skip == 0:
            self.began_at, self.first_tokens = time.perf_counter(), num_tokens


def run_bench(options: Namespace) -> dict[str, Any]:
    """Measure, print, and write `options.report` where it is given; gives what is written there."""
    size = _QUICK if options.quick else _FULL
    workers = int(options.workers) or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="spes-peer-bench-") as folder:
        place = Path(folder)
        documents = list(_documents(Path(options.text) if options.text else None, size.text_bytes))
        tokenizer = Path(options.tokenizer) if options.tokenizer else _trained(documents, place / "trained.json")
        file = place / "text.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        turns = [_turn(documents, tokenizer, file, workers, place / f"run-{turn}") for turn in range(size.num_repeats)]
    report = {
        "documents": len(documents),
        "text_bytes": sum(len(text.encode()) for text in documents),
        "tokenizer": tokenizer.stem,
        "workers": workers,
        "quick": options.quick,
        "library_tokens_per_second": statistics.median(turn["library"] for turn in turns),
        "ours_tokens_per_second": statistics.median(turn["ours"] for turn in turns),
        "ratio": statistics.median(turn["ours"] / turn["library"] for turn in turns),
        "ratio_of_each_turn": [turn["ours"] / turn["library"] for turn in turns],
        "peak_memory_bytes": {
            "worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        },
    }
    print(table(report), flush=True)
    if options.report:
        write_report(options.report, report)
    return report


def table(report: dict[str, Any]) -> str:
    """For a person."""
    turns = ", ".join(f"{ratio:.2f}" for ratio in report["ratio_of_each_turn"])
    return "\n".join(
        [
            f"{report['documents']:,} documents, {report['text_bytes'] / 1e6:.1f} MB, tokenizer {report['tokenizer']},"
            f" {report['workers']} cores; tokens/s, larger is better",
            f"the library alone     {report['library_tokens_per_second']:>12,.0f}",
            f"data prepare          {report['ours_tokens_per_second']:>12,.0f}",
            f"ratio                 {report['ratio']:>12.2f}   (of each turn: {turns})",
            f"memory of a worker    {report['peak_memory_bytes']['worker'] / 1e6:>9.0f} MB",
        ]
    )


def _turn(documents: list[str], tokenizer: Path, file: Path, workers: int, folder: Path) -> dict[str, float]:
    return {
        "library": _library_rate(documents, tokenizer, workers),
        "ours": _our_rate(tokenizer, file, workers, folder),
    }


def _library_rate(documents: list[str], tokenizer: Path, workers: int) -> float:
    library = load(tokenizer)
    with _parallel(workers):
        library.encode_batch_fast(documents[:64], add_special_tokens=False)  # its threads start
        began_at, num_tokens = time.perf_counter(), 0
        for some in _groups(documents):
            num_tokens += sum(map(len, library.encode_batch_fast(some, add_special_tokens=False)))
        return num_tokens / (time.perf_counter() - began_at)


def _our_rate(tokenizer: Path, file: Path, workers: int, folder: Path) -> float:
    folder.mkdir()
    recipe = SourceRecipe(name="text", paths=(str(file),))
    clock = _Clock(workers)
    prepare(folder, Order(Recipe(source=(recipe,)), (find([file]),), tokenizer), num_workers=workers, shows=clock)
    if not clock.began_at or clock.num_tokens == clock.first_tokens:
        raise BadConfiguration(f"there is too little text for {workers} workers")
    return (clock.num_tokens - clock.first_tokens) / (time.perf_counter() - clock.began_at)


@contextlib.contextmanager
def _parallel(workers: int) -> Iterator[None]:
    """The library's own threads, as many as we have processes."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _groups(documents: list[str]) -> Iterator[list[str]]:
    some: list[str] = []
    size = 0
    for text in documents:
        some.append(text)
        size += len(text)
        if size >= _LIBRARY_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _documents(folder: Path | None, num_bytes: int) -> Iterator[str]:
    """Of a folder (its paragraphs, where it holds plain text), or else of the standard library."""
    some = list(_read(folder)) if folder else list(standard_library(0).documents)
    if not some:
        raise BadConfiguration(f"there is no text in {folder}")
    total = turn = 0
    while total < num_bytes:
        for text in some:
            numbered = f"{turn} {text}" if turn else text  # copies of held-out documents would be left out
            total += len(numbered)
            yield numbered
            if total >= num_bytes:
                return
        turn += 1


def _read(folder: Path) -> Iterator[str]:
    for file in find([folder]).files:
        for one in texts(list(records(file, "text", "paragraph", Meter())), "text", Counter()):
            if one.is_document:
                yield "".join(one.parts)


def _trained(documents: list[str], path: Path) -> Path:
    """A small tokenizer for the occasion."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_IDS,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(documents[: max(1, len(documents) // 4)], trainer)
    library.save(str(path))
    return path
