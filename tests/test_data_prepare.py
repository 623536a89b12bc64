"""Text to shards: what is made, that nothing but the texts decides it, and that it goes on after a kill."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import prepare_child
import psutil
import pytest
from data_parts import made_up_data, made_up_source
from hypothesis import given, settings
from hypothesis import strategies as st
from prepare_child import two_sources
from prepare_parts import END, order_of, run, source, words, write_lines
from tokenizers import Tokenizer as Library
from tokenizers import decoders as library_decoders
from tokenizers import models, pre_tokenizers, trainers

from spes_peer.blobs import BlobStore
from spes_peer.data.index import ShardIndex
from spes_peer.data.prepared import read_data
from spes_peer.data.preparing.documents import Counts
from spes_peer.data.preparing.encoders import JsonEncoder, Special, described, end_among
from spes_peer.data.preparing.held_out import Document, Elsewhere, HeldOut, LowestKeys, elsewhere_of
from spes_peer.data.preparing.lanes import NUM_LANES, Lanes
from spes_peer.data.preparing.order import Order, check_model, tokenizer_of
from spes_peer.data.preparing.prepare import Prepared, prepare
from spes_peer.data.preparing.progress import Shown, Silent, count_words
from spes_peer.data.preparing.sources import (
    Recipe,
    SourceRecipe,
    as_written,
    checked,
    licensed,
    read_recipe,
    recipe_of,
    shares,
)
from spes_peer.data.preparing.workers import Batch, Position, Setup, encode, encoded
from spes_peer.data.reading.records import PART_BYTES, Record
from spes_peer.errors import BadConfiguration
from spes_peer.lock import holder_of, locked
from spes_peer.run.data import Data, Tokenizer
from spes_peer.run.manifest import parse_run_file
from spes_peer.run.presets import PRESETS

LARGE_TOKENIZER = Path(__file__).parents[2] / "shared" / "data" / "tokenizers" / "dolma2.json"


def rows(folder: Path, data: Data) -> list[np.ndarray]:
    """The tokens of each source, and those held out."""
    blobs = BlobStore(folder / "blobs")
    index = ShardIndex.read(data, blobs)
    found: list[list[np.ndarray]] = [[] for _ in data.sources]
    for at in index.numbers():
        found[at.source].append(
            np.frombuffer(blobs.read(index.shard(at).blob), f"<{data.token_dtype[0]}{'24'['32' in data.token_dtype]}")
        )
        assert found[at.source][-1].size == index.shard(at).num_tokens
    held_out = np.frombuffer(blobs.read(data.held_out.blob), found[0][0].dtype)
    return [*(np.concatenate(some) for some in found), held_out]


def documents_in(row: np.ndarray, end: int = 256) -> list[str]:
    """Of the bytes tokenizer."""
    assert row[-1] == end
    return [bytes(part[:-1].tolist()).decode() for part in np.split(row, np.flatnonzero(row == end) + 1)[:-1]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = library_decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator(words(0, 200), trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "small.json"
    library.save(str(path))
    return path


# ---- what is made ----


def test_every_document_is_trained_on_once_or_held_out(tmp_path: Path) -> None:
    texts = words(1, 400)
    made = prepare(tmp_path, order_of(source(write_lines(tmp_path / "in" / "a.jsonl", texts))))
    trained, held_out = rows(tmp_path, made.data)
    assert sorted(documents_in(trained) + documents_in(held_out)) == sorted(texts)
    assert 500 <= held_out.size <= 700
    assert made.data.held_out.num_tokens == held_out.size
    assert made.num_documents == (400,)
    assert read_data(tmp_path) == made.data
    assert not (tmp_path / "data.work").exists()


def test_documents_that_stand_together_do_not_stand_together_in_shards(tmp_path: Path) -> None:
    texts = words(1, 2000)
    made = prepare(tmp_path, order_of(source(write_lines(tmp_path / "in" / "a.jsonl", texts)), held_out_tokens=200))
    order = [int(text.split()[0].split(".")[1]) for text in documents_in(rows(tmp_path, made.data)[0])]
    steps = np.abs(np.diff(order))
    assert (steps == NUM_LANES).mean() > 0.9


def test_copies_of_a_held_out_document_are_trained_on_nowhere(tmp_path: Path) -> None:
    texts = words(1, 300)
    one = write_lines(tmp_path / "in" / "one.jsonl", texts + [f" {text}\n" for text in texts])
    two = write_lines(tmp_path / "in" / "two.jsonl", words(2, 900) + texts)
    made = prepare(tmp_path, order_of(source(one), source(two), held_out_tokens=3000))
    *trained, held_out = rows(tmp_path, made.data)
    held = {text.strip() for text in documents_in(held_out)}
    assert len(held) > 20
    assert {text.split(".")[0] for text in held} == {"1", "2"}
    for row in trained:
        assert not held & {text.strip() for text in documents_in(row)}
    assert sum(counts["duplicates"] for counts in made.counts) >= sum(text.startswith("1.") for text in held)


def test_each_source_gives_to_the_held_out_split_by_its_ratio(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "in" / "one.jsonl", words(1, 1000))
    two = write_lines(tmp_path / "in" / "two.jsonl", words(2, 1000))
    made = prepare(tmp_path, order_of(source(one, ratio=3), source(two, ratio=1), held_out_tokens=4000))
    assert 3000 <= made.num_held_out[0] <= 3100
    assert 1000 <= made.num_held_out[1] <= 1100
    assert [float(share) for share in made.data.shares()] == [0.75, 0.25]


def test_at_most_a_tenth_of_a_source_is_held_out(tmp_path: Path) -> None:
    made = prepare(
        tmp_path, order_of(source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 300))), held_out_tokens=10**6)
    )
    assert 0.08 < made.data.held_out.num_tokens / (made.data.num_tokens + made.data.held_out.num_tokens) <= 0.1


def test_text_that_is_too_short_is_refused_in_one_line_and_leaves_no_work(tmp_path: Path) -> None:
    model = parse_run_file(PRESETS["demo"]).model
    for texts, said in ((["short"], "needs 129"), (["x" * 400, "y" * 300, "z" * 200], "the held-out split has 0")):
        path = write_lines(tmp_path / "in" / "a.jsonl", texts)
        with pytest.raises(BadConfiguration, match=said) as caught:
            prepare(tmp_path, order_of(source(path)), model)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "data.work").exists()
        assert not (tmp_path / "data.json").exists()


def test_a_large_document_is_trained_on_whole_and_never_held_out(tmp_path: Path) -> None:
    large = "".join(f"line {index}\n" for index in range(100_000))
    assert len(large) > 2 * PART_BYTES
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "large.txt").write_text(large)
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps({"text": f"{large}!"}) + "\n")
    write_lines(tmp_path / "in" / "small.jsonl", words(1, 300))
    made = prepare(tmp_path, order_of(source(tmp_path / "in", documents="file"), shard_tokens=1 << 22))
    trained, held_out = rows(tmp_path, made.data)
    found = documents_in(trained)
    assert large in found
    assert f"{large}!" in found
    assert len(found) + len(documents_in(held_out)) == 302


# ---- nothing else decides it ----


def test_every_worker_leaves_ctrl_c_to_the_command(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    batches = (
        Batch([Record(b"some text")] * 20, Position(0, number), Counts(), number, "here") for number in range(40)
    )
    ignoring = []
    for count, _ in enumerate(encoded(batches, Setup(Tokenizer(), "uint16", tmp_path, "text"), 3)):
        if count == 5:
            born = set(psutil.Process().children()) - before
            ignoring = [_ignores(one.pid, signal.SIGINT) for one in born if "spawn_main" in str(one.cmdline())]
    assert ignoring == [True] * 3


def test_workers_hand_over_what_they_have_when_the_work_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is killed meanwhile leaves half a result, whose rest is waited for without end."""
    monkeypatch.setattr("spes_peer.data.preparing.workers._PATIENCE_SECONDS", 60.0)  # one may be starting still
    others = set(active_children())
    some = (Batch([Record(b"x" * 500_000)], Position(0, number), Counts(), number, "here") for number in range(40))
    running = encoded(some, Setup(Tokenizer(), "uint16", tmp_path, "text"), 2)
    next(running)
    workers = set(active_children()) - others
    running.close()  # type: ignore[attr-defined]
    deadline_at = time.monotonic() + 60
    while None in (codes := [worker.exitcode for worker in workers]):  # the pool's thread may be about to note it
        assert time.monotonic() < deadline_at
    assert codes == [0, 0]


def _ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
    return bool(int(ignored, 16) >> (number - 1) & 1)


def test_the_result_hangs_on_neither_workers_nor_stops_nor_where_the_texts_lie(tmp_path: Path) -> None:
    made: list[Prepared] = []
    for number, num_workers in enumerate((1, 3)):
        texts = tmp_path / f"place {number}" / "texts"
        for name in ("a", "b", "c"):
            write_lines(texts / f"{name}.jsonl", words(ord(name), 700))
        (tmp_path / str(number)).mkdir()
        made.append(
            prepare(tmp_path / str(number), order_of(source(texts), shard_tokens=9000), num_workers=num_workers)
        )
    assert made[0].data == made[1].data
    other = prepare(
        tmp_path / "0", order_of(source(tmp_path / "place 0" / "texts"), seed=1, shard_tokens=9000), starts_over=True
    )
    assert other.data != made[0].data
    left = set(BlobStore(tmp_path / "0" / "blobs").names())
    assert len(left) == other.data.sources[0].shards.num_shards + 2  # none of the first ones


def test_a_preparation_that_is_killed_again_and_again_makes_what_it_would_have_made(tmp_path: Path) -> None:
    for name, number in (("one", 3000), ("two", 8000)):
        for part in range(2):
            write_lines(tmp_path / "in" / name / f"{part}.jsonl", words(part + number, number))
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = prepare(tmp_path / "whole", two_sources(tmp_path))
    ends = []
    for num_batches in (1, 2, 3, 2, 0):
        command = [sys.executable, prepare_child.__file__, str(tmp_path), str(num_batches)]
        ends.append(subprocess.run(command, timeout=100, check=False).returncode)
    assert ends == [-signal.SIGKILL] * (len(ends) - 1) + [0]
    assert read_data(tmp_path / "killed") == whole.data
    made, wanted = (set(BlobStore(tmp_path / name / "blobs").names()) for name in ("killed", "whole"))
    assert made >= wanted


def test_data_is_neither_replaced_while_the_run_is_signed_nor_signed_while_it_is_made(tmp_path: Path) -> None:
    order = order_of(source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 400))))
    data = prepare(tmp_path, order).data
    with (
        locked(tmp_path),  # as `run sign` does
        pytest.raises(BadConfiguration, match="another program is at work on"),
    ):
        prepare(tmp_path, replace(order, seed=2), starts_over=True)
    seen: list[str] = []

    class Looks(Silent):
        def went_on(self, what: str, num_bytes: int, num_tokens: int) -> None:
            seen.append(holder_of(tmp_path))

    assert read_data(tmp_path) == data
    prepare(tmp_path, order, starts_over=True, shows=Looks())
    assert seen
    assert set(seen) == {str(os.getpid())}


@pytest.mark.parametrize("damage", ["description", "index"])
def test_data_that_cannot_be_read_any_more_is_replaced_by_the_command_that_is_named(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    order = order_of(source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 400))))
    made = prepare(tmp_path, order).data
    if damage == "description":
        (tmp_path / "data.json").write_bytes(b"{ damaged")
        with pytest.raises(BadConfiguration, match=r"is damaged .* --anew"):
            read_data(tmp_path)
    else:
        path = BlobStore(tmp_path / "blobs").path(made.sources[0].shards.index)
        path.chmod(0o644)
        path.write_bytes(b"damaged")
    assert prepare(tmp_path, order, starts_over=True).data == made
    assert read_data(tmp_path) == made
    assert ("nobody can say" in caplog.text) == (damage == "description")


def test_a_run_that_was_signed_just_before_its_data_would_change_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = order_of(source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 400))))
    data = prepare(tmp_path, order).data

    def tokenizer_and_meanwhile(order: Order) -> tuple[Tokenizer, bytes]:
        (tmp_path / "manifest.spes").write_bytes(b"signed")
        return tokenizer_of(order)

    monkeypatch.setattr("spes_peer.data.preparing.prepare.tokenizer_of", tokenizer_and_meanwhile)
    with pytest.raises(BadConfiguration, match="is signed, and its data is part of that"):
        prepare(tmp_path, replace(order, seed=2), starts_over=True)
    assert read_data(tmp_path) == data


# ---- held out ----

ALL = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@given(ALL, ALL, st.integers(1, 30), st.integers(1, 30), st.integers(2, 40))
def test_no_document_is_on_both_sides_whatever_comes_in_whatever_order(
    first: list[int], second: list[int], first_target: int, second_target: int, most_keys: int
) -> None:
    finished: list[HeldOut] = []
    trained: list[set[int]] = []
    for keys, target in ((first, first_target), (second, second_target)):
        held_out = HeldOut(target, elsewhere_of(finished), _trained=LowestKeys(most_keys))
        out = []
        for number, key in enumerate(keys):
            out += held_out.offer(Document(key, number, np.full(3, key, np.uint16)))
        out += held_out.shrink(3 * len(out))
        finished.append(held_out)
        trained.append({document.key for document in out})
        kept = [int(document.tokens[0]) for document in held_out.documents()]
        assert kept == sorted(set(kept))
        assert set(keys) <= trained[-1] | set(kept) | finished[0].keys()
        alone = held_out.elsewhere == Elsewhere()
        assert not alone or not kept or max(kept) < min(trained[-1], default=41)  # the lowest of all
    both = finished[0].keys() | finished[1].keys()
    assert not both & (trained[0] | trained[1])


@given(ALL, st.integers(1, 30), st.integers(0, 60))
def test_held_out_documents_are_the_same_after_a_stop(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], target: int, stop: int
) -> None:
    path = tmp_path_factory.mktemp("held-out") / "x.npz"
    straight, stopped = HeldOut(target, Elsewhere()), HeldOut(target, Elsewhere())
    for number, key in enumerate(keys):
        document = Document(key, number, np.full(key % 4 + 1, key, np.uint16))
        if number == stop:
            stopped.save(path)
            stopped = HeldOut.load(path, target, Elsewhere(), "uint16")
        assert [one.number for one in straight.offer(document)] == [one.number for one in stopped.offer(document)]
    assert straight.keys() == stopped.keys()
    assert straight.trained().array().tolist() == stopped.trained().array().tolist()


# ---- lanes ----


@settings(max_examples=25)  # each waits for the disk
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), max_size=60), st.integers(0, 60))
def test_lanes_that_were_cut_off_go_on_as_if_they_had_not_been(
    tmp_path_factory: pytest.TempPathFactory, documents: list[tuple[int, int]], stop: int
) -> None:
    folder = tmp_path_factory.mktemp("lanes")
    blobs = BlobStore(folder / "blobs")

    def feed(lanes: Lanes, some: list[tuple[int, int]]) -> None:
        for number, size in some:
            lanes.append(number, np.full(size, number, np.uint16))

    straight, stopped = (Lanes(folder / name, blobs, "uint16", 16) for name in ("a", "b"))
    feed(straight, documents)
    feed(stopped, documents[:stop])
    state = stopped.checkpoint()
    stopped.forget_old()
    feed(stopped, [(3, 9), *documents[stop:]])  # what was not kept
    stopped.close()
    again = Lanes(folder / "b", blobs, "uint16", 16, state)
    feed(again, documents[stop:])
    assert straight.finish() == again.finish()
    assert straight.num_tokens == again.num_tokens == sum(size for _, size in documents)
    straight.close()
    again.close()


# ---- tokenizers ----


def test_any_tokenizer_makes_ids_and_the_end_of_text_is_found(tmp_path: Path, tokenizer: Path) -> None:
    texts = [*words(1, 400), f"a document that says {END} of itself"]
    made = prepare(
        tmp_path,
        order_of(source(write_lines(tmp_path / "in" / "a.jsonl", texts)), tokenizer=tokenizer, held_out_tokens=200),
    )
    library = Library.from_file(str(tokenizer))
    assert made.data.tokenizer.model_dump(include={"kind", "name", "num_ids", "end_of_text"}) == {
        "kind": "json", "name": "small", "num_ids": 400, "end_of_text": library.token_to_id(END),
    }  # fmt: skip
    assert made.data.token_dtype == "uint16"
    assert BlobStore(tmp_path / "blobs").read(made.data.tokenizer.blob) == tokenizer.read_bytes()
    found = []
    for row in rows(tmp_path, made.data):
        parts = np.split(row, np.flatnonzero(row == library.token_to_id(END)) + 1)[:-1]
        found += [library.decode(part[:-1].tolist(), skip_special_tokens=False) for part in parts]
    assert sorted(found) == sorted(texts)  # the one that names the end of text is not ended by it


def test_which_token_ends_a_text_is_asked_where_it_is_not_clear(tmp_path: Path, tokenizer: Path) -> None:
    assert end_among(Special(9, {"<s>": 1, "</s>": 2}), "t") == "</s>"
    assert end_among(Special(9, {END: 1, "</s>": 2}, said_end=END), "t") == END
    with pytest.raises(BadConfiguration, match=r"it has <\|endoftext\|> and </s>; say it with --end-of-text"):
        end_among(Special(9, {END: 1, "</s>": 2}), "t")
    with pytest.raises(BadConfiguration, match=r"its special tokens: \[PAD\]; say it with --end-of-text"):
        end_among(Special(9, {"[PAD]": 1}), "t")
    with pytest.raises(BadConfiguration, match="has no token 'nothing'"):
        described(tokenizer, "nothing")
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|endoftext|>"}}')
    assert described(tmp_path / "tokenizer.json").name == tmp_path.name
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadConfiguration, match=r"is no tokenizer\.json"):
        described(tmp_path / "bad.json")


def test_a_tokenizer_may_have_fewer_ids_than_the_model_rows_and_not_more() -> None:
    model = parse_run_file(PRESETS["demo"]).model
    check_model(Tokenizer(), model)
    check_model(Tokenizer(), None)
    large = Tokenizer.model_construct(kind="json", name="large", num_ids=model.vocab_rows + 1, end_of_text=0)
    with pytest.raises(BadConfiguration, match=f"has {model.vocab_rows + 1} ids.*set vocab_rows to"):
        check_model(large, model)


@pytest.mark.skipif(not LARGE_TOKENIZER.exists(), reason="needs the tokenizer beside the checkout")
def test_a_large_document_in_parts_has_the_tokens_that_it_has_whole(tmp_path: Path) -> None:
    encoder = JsonEncoder(LARGE_TOKENIZER, "uint32")
    text = "".join(
        f"{'  ' * (index % 3)}Line {index} of it, with numbers {index * 7}.\n{chr(10) * (index % 2)}"
        for index in range(15_000)
    )
    assert PART_BYTES < len(text) < 2 * PART_BYTES
    made_by = described(LARGE_TOKENIZER)
    setup = Setup(made_by, "uint32", tmp_path, "text")
    made = encode(setup, encoder, [Record(json.dumps({"text": text}).encode(), "json")])
    [whole] = encoder.encode([text])
    assert made.tokens.tolist() == [*whole.tolist(), made_by.end_of_text]


# ---- memory maps ----


def test_memory_maps_are_taken_as_they_are_and_mixed_with_text(tmp_path: Path, tokenizer: Path) -> None:
    library = Library.from_file(str(tokenizer))
    end = library.token_to_id(END)
    documents = [encoding.ids for encoding in library.encode_batch(words(1, 500), add_special_tokens=False)]
    row = np.array([token for one in documents for token in (*one, end)], "<u4")
    (tmp_path / "in").mkdir()
    row[:-1].tofile(tmp_path / "in" / "part-0.npy")  # the last one is not closed
    text = write_lines(tmp_path / "in" / "a.jsonl", words(2, 500))
    made = prepare(
        tmp_path,
        order_of(source(tmp_path / "in" / "part-0.npy", memmap="uint32"), source(text), tokenizer=tokenizer),
    )
    mapped, _, held_out = rows(tmp_path, made.data)
    assert made.data.token_dtype == "uint16"
    found = {tuple(part.tolist()) for part in np.split(mapped, np.flatnonzero(mapped == end) + 1)}
    held = {tuple(part.tolist()) for part in np.split(held_out, np.flatnonzero(held_out == end) + 1)}
    assert {(*one, end) for one in documents} <= found | held
    assert not (found & held) - {()}
    assert made.num_documents == (500, 500)


# ---- mixtures ----


def test_a_recipe_says_what_is_mixed_and_its_paths_lie_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        'licence = "mixed"\n[[source]]\nname = "wiki"\npaths = ["texts", "hf://a/b"]\nratio = 0.25\nlicence = "CC"\n'
        '[[source]]\nname = "web"\npaths = ["/far"]\ntext_field = "content"\n'
    )
    recipe = read_recipe(path)
    assert recipe.licence == "mixed"
    assert recipe.source[0].paths == (str(tmp_path / "texts"), "hf://a/b")
    assert recipe.source[1].text_field == "content"
    assert shares(recipe, [10, 30]) == [0.25, 0.75]
    for wrong, said in (
        ('licens = "x"', "did you mean licence"),
        ("x = ", "not TOML"),
        ('[[source]]\nname = "x"\npaths = ["a"]\n' * 2, "two sources are called 'x'"),
        ('[[source]]\nname = "x"\npaths = ["a"]\nratio = 1\n[[source]]\nname = "y"\npaths = ["a"]', "nothing is left"),
    ):
        path.write_text(wrong)
        with pytest.raises(BadConfiguration, match=said):
            read_recipe(path)


def test_sources_are_named_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    like = SourceRecipe(name="like", paths=("x",), documents="line")
    recipe = recipe_of([str(tmp_path / "crawl"), "w=b.txt", str(tmp_path / "c.txt"), "w=~/d.txt"], {"w": 0.5}, like)
    assert [(one.name, len(one.paths), one.ratio) for one in recipe.source] == [("crawl", 2, None), ("w", 2, 0.5)]
    assert recipe.source[1].paths == ("b.txt", str(Path.home() / "d.txt"))
    assert {one.documents for one in recipe.source} == {"line"}
    with pytest.raises(BadConfiguration, match="no source is called 'v'; there are: w"):
        recipe_of(["w=a"], {"v": 1.0}, like)
    with pytest.raises(BadConfiguration, match="nobody here is called so"):
        recipe_of(["w=~no-such-user/a"], {}, like)


def test_licences_are_those_of_the_named_source_or_of_all() -> None:
    like = SourceRecipe(name="like", paths=("x",))
    recipe = recipe_of(["texts/a.txt", "w=b"], {}, like)
    found = licensed(recipe, ["w=CC=0", "a=MIT", "see https://example.org/?page=2"])
    assert [one.licence for one in found.source] == ["MIT", "CC=0"]
    assert found.licence == "see https://example.org/?page=2"
    assert licensed(found, ["none"]).source == found.source
    for wrong, said in (("v=CC0", "no source is called 'v'; there are: a, w"), ("w=" + "x" * 501, "at most 500")):
        with pytest.raises(BadConfiguration, match=said):
            licensed(recipe, [wrong])


def mixed(*ratios: float | None) -> Recipe:
    return Recipe(source=tuple(SourceRecipe(name=f"s{n}", paths=("x",), ratio=one) for n, one in enumerate(ratios)))


@given(st.lists(st.one_of(st.none(), st.floats(5e-324, 1.7e308)), min_size=1, max_size=20), st.data())
def test_ratios_that_are_taken_make_a_manifest_whatever_the_lengths(
    ratios: list[float | None], data: st.DataObject
) -> None:
    recipe = mixed(*ratios)
    with contextlib.suppress(BadConfiguration):
        checked(recipe)
        found = shares(recipe, data.draw(st.lists(st.integers(1, 10**13), min_size=len(ratios), max_size=len(ratios))))
        assert sum(found) == pytest.approx(1)
        parts = [made_up_source(name=f"s{n}", ratio=as_written(share)) for n, share in enumerate(found)]
        Data.model_validate(made_up_data(*parts))


def test_ratios_that_no_manifest_takes_are_refused_before_anything_is_read() -> None:
    for ratios in ((1e308, 1e308), (5e-324, 5e-324), (1.0, 4095.0), (0.5, None), (1e-300,)):
        assert sum(shares(checked(mixed(*ratios)), [1] * len(ratios))) == pytest.approx(1)
    for ratios, said in (
        ((5e-324, 1.0), "the ratio of 's0' is 4.9e-324 of all, and the least is 1/4096"),
        ((1.0, 1e308, 1e308), "the ratio of 's0' is .* and the least is 1/4096"),
        ((1e-5, None), "the ratio of 's0' is 1e-05 of all"),
        ((1e308, 1e308, None), "the ratios come to inf, and nothing is left"),
        ((0.9999, None), "nothing is left"),
    ):
        with pytest.raises(BadConfiguration, match=said):
            checked(mixed(*ratios))


@pytest.mark.parametrize("num_short", [1, 8, 254])
def test_without_ratios_sources_are_trained_by_their_length_and_none_falls_below_the_least(num_short: int) -> None:
    found = shares(mixed(None, None, *[None] * num_short), [10**9, 3 * 10**9, *[1] * num_short])
    assert sum(found) == pytest.approx(1)
    assert min(found) > 1 / 4096
    assert found[1] == pytest.approx(3 * found[0])
    assert shares(mixed(None, None), [1, 3]) == [0.25, 0.75]


# ---- the command ----


def test_the_command_prepares_shows_and_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [*words(1, 800), "", "x"])
    (tmp_path / "in" / "a.jsonl").open("ab").write(b"not json\n")
    run_folder = tmp_path / "my-run"
    run_folder.mkdir()
    (run_folder / "run.toml").write_text(PRESETS["demo"])
    assert run("data", "show", run_folder) == 2
    assert "spes-peer data prepare" in capsys.readouterr().err
    arguments = ("data", "prepare", run_folder, f"wiki={tmp_path / 'in'}", "--workers", 1, "--licence", "wiki=CC0")
    assert run(*arguments) == 0
    said = capsys.readouterr().out
    for words_ in ("wiki", "CC0", "1 lines that should be JSON and are not", "1 empty documents", "801 documents"):
        assert words_ in said
    assert run("data", "show", run_folder, "--sample", 2) == 0
    said = capsys.readouterr().out
    assert said.count("--- wiki, shard 0") == 2
    assert "w" in said.split("--- held out")[1]
    assert run(*arguments, "--anew", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["sources"][0]["documents"] == 801
    assert made["sources"][0]["met"]["no json"] == 1
    assert run(*arguments, "--anew", "--strict") == 2
    assert "lines that should be JSON and are not" in capsys.readouterr().err
    assert run("data", "prepare", run_folder, "--anew", f"a={tmp_path}/in", "--ratio", "a=-1") == 2
    assert run("data", "prepare", run_folder) == 2
    assert "name texts" in capsys.readouterr().err


def test_signed_data_is_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "manifest.spes").write_bytes(b"x")
    with pytest.raises(BadConfiguration, match="is signed"):
        prepare(tmp_path, order_of(source(write_lines(tmp_path / "in" / "a.jsonl", ["x"]))), starts_over=True)


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Shown(1000, lambda: now[0]) as shown:
        for second in range(31):
            now[0] = float(second)
            shown.went_on("wiki", 20 * second, 1_000_000 * second)
    assert capsys.readouterr().err.splitlines()[:1] == ["wiki: 20 % read, 10 M tokens, 1 M tokens/s, 40 s left"]
    assert [count_words(number) for number in (7, 1234, 999_499, 12_345_678, 5e12)] == [
        "7", "1.23 k", "999 k", "12.3 M", "5 T",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "docs" / "recipes").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_recipes_of_the_docs_can_be_read(path: Path) -> None:
    recipe = read_recipe(path)
    assert all(url.startswith("hf://") for one in recipe.source for url in one.paths)
    given = [one.ratio for one in recipe.source]
    assert given == [None] or all(given)
    assert all(one.licence for one in recipe.source)
