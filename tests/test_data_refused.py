"""What `data prepare` and `data show` cannot do with what people give them: said in one line, whatever it is."""

import json
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from prepare_parts import END, order_of, run, source, words, write_lines
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Library
from tokenizers import decoders as library_decoders

from spes_peer.blobs import BlobStore
from spes_peer.data.preparing.prepare import prepare
from spes_peer.errors import BadConfiguration
from spes_peer.run.manifest import parse_run_file
from spes_peer.run.presets import PRESETS

# ---- tokenizers ----


def of_words(path: Path, decoder: object = None, num_words: int = 5000) -> Path:
    """A tokenizer.json that knows some words, and fails at any other."""
    library = Library(models.WordLevel({END: 0, **{f"w{number}": number + 1 for number in range(num_words)}}))
    library.add_special_tokens([END])
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoder
    path.parent.mkdir(exist_ok=True)
    library.save(str(path))
    return path


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_text_that_the_tokenizer_cannot_encode_is_named_with_its_file_and_place(
    num_workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = [" ".join(f"w{number % 5000}" for number in range(index, index + 40)) for index in range(2500)]
    write_lines(tmp_path / "in" / "a.jsonl", [*fine[:2001], "", "what is this?", *fine[2001:]])
    tokenizer = of_words(tmp_path / "words.json")
    arguments = (tmp_path / "out", tmp_path / "in", "--tokenizer", tokenizer)
    assert run("data", "prepare", *arguments, "--workers", num_workers) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'in' / 'a.jsonl'}, record 2003, with the tokenizer words: " in said
    assert "Missing [UNK] token" in said


def test_a_tokenizer_that_panics_at_every_text_is_refused_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = of_words(tmp_path / "words.json")
    described_there = json.loads(tokenizer.read_text())
    tokenizer.write_text(json.dumps({**described_there, "pre_tokenizer": {"type": "FixedLength", "length": 0}}))
    write_lines(tmp_path / "in" / "a.jsonl", ["w1"])
    assert run("data", "prepare", tmp_path / "out", tmp_path / "in", "--tokenizer", tokenizer, "--workers", 1) == 2
    assert "a.jsonl, record 1, with the tokenizer words: the tokenizer cannot encode it (" in capsys.readouterr().err


def test_samples_that_the_tokenizer_cannot_write_are_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [" ".join(f"w{index}" for _ in range(20)) for index in range(400)])
    to_w = library_decoders.Replace(Regex("w.*"), "w")
    panics = library_decoders.Sequence([to_w, library_decoders.Strip("w", 9, 9)])  # there is not so much to strip
    tokenizer = of_words(tmp_path / "words.json", panics)
    arguments = (tmp_path / "out", tmp_path / "in", "--tokenizer", tokenizer)
    assert run("data", "prepare", *arguments, "--workers", 1) == 0
    assert run("data", "show", tmp_path / "out") == 0
    capsys.readouterr()
    assert run("data", "show", tmp_path / "out", "--sample", 1) == 2
    assert "in, shard 0, with the tokenizer words: the tokenizer cannot write these" in capsys.readouterr().err


def test_a_shard_that_was_cut_short_is_named_when_samples_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = prepare(tmp_path, order_of(source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 400)))))
    path = BlobStore(tmp_path / "blobs").path(made.data.held_out.blob)
    path.chmod(0o644)
    for content in (b"", b"cut"):
        path.write_bytes(content)
        assert run("data", "show", tmp_path, "--sample", 1) == 2
        assert f"{path} is damaged" in capsys.readouterr().err


# ---- before anything is made ----


def test_what_is_refused_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    model = parse_run_file(PRESETS["demo"]).model
    enough = source(write_lines(tmp_path / "in" / "a.jsonl", words(1, 400)))
    short = source(write_lines(tmp_path / "in" / "b.jsonl", ["w1 w2 w3"]))
    large, small = of_words(tmp_path / "large.json"), of_words(tmp_path / "small.json", num_words=9)
    folder = tmp_path / "out"
    for order, said in (
        (order_of(enough, tokenizer=large), "set vocab_rows to 5120"),
        (order_of(enough, shard_tokens=128), "a shard of 128 tokens holds no sequence .* needs 129: make them larger"),
        (order_of(short, tokenizer=small), "has 4 tokens to train on, and one sequence needs 129"),
    ):
        with pytest.raises(BadConfiguration, match=said):
            prepare(folder, order, model)
        assert not list(folder.rglob("*.data"))
        assert not (folder / "data.work").exists()


@pytest.mark.parametrize("flag", ["--text-field=content", "--documents=line", "--split=test", "--memmap=uint16"])
def test_what_a_mixture_says_of_each_source_is_not_said_beside_it(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mix.toml").write_text('[[source]]\nname = "x"\npaths = ["in"]\n')
    assert run("data", "prepare", tmp_path / "out", "--mixture", tmp_path / "mix.toml", flag) == 2
    key = flag.partition("=")[0]
    [said] = capsys.readouterr().err.splitlines()
    assert f"{key} goes with texts on the command line" in said
    assert f"say {key.removeprefix('--').replace('-', '_')} at each source" in said


def test_a_licence_that_is_typed_is_that_of_a_source_of_the_mixture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", words(1, 400))
    (tmp_path / "mix.toml").write_text('licence = "mixed"\n[[source]]\nname = "x"\npaths = ["in"]\nlicence = "CC"\n')
    made = ("data", "prepare", tmp_path / "out", "--mixture", tmp_path / "mix.toml", "--workers", 1, "--json")
    assert run(*made, "--licence", "x=MIT") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["licence"], said["sources"][0]["licence"]) == ("mixed", "MIT")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--shard-tokens=1", "from 9 to 268435456"),
        ("--shard-tokens=268435457", "from 9 to 268435456"),
        ("--workers=2147483647", "from 1 to 1024"),
        ("--ratio=a=1e400", "such as wiki=0.3"),
        ("--ratio=a=nan", "such as wiki=0.3"),
        ("--held-out-tokens=-1", "a whole number from 1 on"),
    ],
)
def test_numbers_that_cannot_be_are_refused_as_they_are_typed(
    flag: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "prepare", tmp_path / "out", "a=x", flag) == 2
    assert said in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_is_called_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_lines(tmp_path / "a.jsonl", words(1, 400))
    for command, said in (
        (("data", "prepare", text, text), f"{text} is a file: name the run's folder first, and then the texts"),
        (("data", "prepare", text / "run", text), f"there is no folder {text}"),
        (("data", "show", text), f"{text} is no folder of a run"),
        (("run", "new", text), f"{text} is a file; a run has a folder"),
        (("run", "new", text / "run"), f"cannot make {text / 'run'}: {text} is a file"),
        (("run", "sign", text), f"{text} is a file; a run has a folder"),
    ):
        assert run(*command) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert said in line


def test_what_is_refused_makes_no_folder(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "a.jsonl", words(1, 400))
    assert run("data", "prepare", tmp_path / "out", text, "--tokenizer", tmp_path / "missing.json") == 2
    assert not (tmp_path / "out").exists()


# ---- files that are not what they look like ----


def numpy_file(path: Path, header: str) -> Path:
    content = header.encode().ljust(9000) + b"\n"
    path.write_bytes(b"\x93NUMPY\x02\x00" + len(content).to_bytes(4, "little") + content + bytes(500))
    return path


def test_files_that_nothing_can_be_read_from_are_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    pyarrow.parquet.write_table(
        pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"]), tmp_path / "two.parquet"
    )
    shape = "{'descr': '<u2', 'fortran_order': False, 'shape': (%s,), }"
    cases: list[tuple[Path, str, tuple[str, ...]]] = [
        (tmp_path / "pipe.jsonl", "neither a file nor a folder", ()),
        (tmp_path / "loop.jsonl", "there is no", ()),
        (tmp_path / "two.parquet", "several columns 'text'", ()),
        (numpy_file(tmp_path / "deep.npy", "-" * 8000 + "1"), "cannot read", ("--memmap", "uint16")),
        (numpy_file(tmp_path / "huge.npy", shape % 10**30), "cannot read", ("--memmap", "uint16")),
        (numpy_file(tmp_path / "odd.npy", shape % True), "cannot read", ("--memmap", "uint16")),
        (tmp_path / "a\udcff.jsonl", "a source cannot be called", ()),
    ]
    for path, said, flags in cases:
        assert run("data", "prepare", tmp_path / "out", path, "--workers", 1, *flags) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert said in line


def test_samples_of_a_text_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(
        tmp_path, order_of(source(write_lines(tmp_path / "in" / "a.jsonl", [f"\x1b[2J{n} \n" for n in range(900)])))
    )
    assert run("data", "show", tmp_path, "--sample", 1) == 0
    said = capsys.readouterr().out
    assert "\ufffd[2J" in said
    assert "\x1b" not in said
