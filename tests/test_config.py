"""A volunteer's settings file: what it may say, how it is refused, and what wins over it."""

import argparse
import tomllib
from pathlib import Path

import pytest

from spes_peer.config import Repeated, read_settings, settings_of, shown, template
from spes_peer.errors import BadConfiguration


def size(text: str) -> int:
    if not text.removesuffix("MB").isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a size")
    return int(text.removesuffix("MB")) * (10**6 if text.endswith("MB") else 1)


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lend")
    parser.add_argument("--bootstrap", action=Repeated, default=[], metavar="ADDRESS", help="a node of the run")
    parser.add_argument("--name", default="", help="what others see you as")
    parser.add_argument("--max-upload", type=size, default=0, metavar="SIZE", help="at most 100%% of it (%(default)s)")
    parser.add_argument("--data-dir", type=Path, metavar="FOLDER", help="where state lies")
    parser.add_argument("--optimizer-bits", type=int, choices=(32, 8), default=32, help="of each value")
    parser.add_argument("--relay", action="store_true", help="relay for others")
    parser.add_argument("--config", type=Path, help="the file")
    return parser


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_a_file_sets_what_flags_set(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    text = 'bootstrap = ["a", "b"]\nmax_upload = "2MB"\nrelay = true\noptimizer_bits = 8\ndata_dir = "/lent"\n'
    parser.set_defaults(**read_settings(write(tmp_path, text), parser))
    options = parser.parse_args([])
    assert (options.bootstrap, options.max_upload, options.relay) == (["a", "b"], 2_000_000, True)
    assert (options.optimizer_bits, options.data_dir, options.name) == (8, Path("/lent"), "")


def test_what_is_typed_wins_over_the_file_also_where_it_may_be_given_twice(
    parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    text = 'bootstrap = "old"\nname = "file"\nmax_upload = 7\n'
    parser.set_defaults(**read_settings(write(tmp_path, text), parser))
    options = parser.parse_args(["--bootstrap", "x", "--bootstrap", "y", "--name", "typed"])
    assert (options.bootstrap, options.name, options.max_upload) == (["x", "y"], "typed", 7)
    assert parser.parse_args([]).bootstrap == ["old"]  # one parse leaves nothing behind for the next


def test_without_a_file_nothing_is_set(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    assert read_settings(tmp_path / "none.toml", parser) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('data_dir = ""', "data_dir: '' is not a whole path"),
        ('data_dir = "lent"', "data_dir: 'lent' is not a whole path"),
        ('max-uplod = "2MB"', "unknown key 'max-uplod'; did you mean max_upload?"),
        ("config = 'x'", "unknown key 'config'"),
        ('max_upload = "fast"', "max_upload: 'fast' is not a size"),
        ("relay = 1", "relay: 1 is neither true nor false"),
        ("name = true", "name: True is neither a text nor a number"),
        ("bootstrap = [[1]]", r"bootstrap: \[1\] is neither a text nor a number"),
        ("optimizer_bits = 16", "optimizer_bits: 16 is none of 32, 8"),
        ("name = ", "Invalid value"),
        ("[network]\n", "unknown key 'network'"),
    ],
)
def test_what_the_flag_would_refuse_is_refused_with_file_and_key(
    parser: argparse.ArgumentParser, tmp_path: Path, text: str, complaint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadConfiguration, match=f"^{path}: .*{complaint}"):
        read_settings(path, parser)


def test_a_file_that_cannot_be_read_is_refused(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"cannot read .*: Is a directory"):
        read_settings(tmp_path, parser)
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00")
    with pytest.raises(BadConfiguration, match=r"binary\.toml"):
        read_settings(tmp_path / "binary.toml", parser)


def test_a_folder_is_the_same_wherever_a_command_is_typed(
    parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert read_settings(write(tmp_path, 'data_dir = "~/lent"'), parser) == {"data_dir": Path("/home/ann/lent")}


def test_who_needs_but_one_key_gets_it_whatever_is_wrong_with_the_rest(
    parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    path = write(tmp_path, 'data_dir = "/lent"\nmax_upload = "fast"\nnonsense = 1\n')
    assert read_settings(path, parser, only=("data_dir",)) == {"data_dir": Path("/lent")}
    with pytest.raises(BadConfiguration, match="is not a whole path"):
        read_settings(write(tmp_path, 'data_dir = "lent"'), parser, only=("data_dir",))


def test_the_template_names_every_key_and_sets_none(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    text = template(parser)
    assert tomllib.loads(text) == {}
    lines = [line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert {line.split(" = ")[0] for line in lines} == set(settings_of(parser))
    assert "at most 100% of it (0)" in text
    read_settings(write(tmp_path, "\n".join(lines)), parser)  # each is a good value for its key


def test_what_is_shown_says_where_it_comes_from_and_can_be_read_back(
    parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    path = write(tmp_path, 'name = "a \\"b\\""\nbootstrap = ["x"]\n')
    from_file = read_settings(path, parser)
    parser.set_defaults(**from_file)
    text = shown(vars(parser.parse_args([])), from_file, path, parser)
    assert 'name = "a \\"b\\""\n' in text
    assert "\n#relay = false" in text
    read_back = read_settings(write(tmp_path, text), parser)
    assert read_back == {"name": 'a "b"', "bootstrap": ["x"]}
