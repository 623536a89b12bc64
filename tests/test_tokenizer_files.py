"""The tokenizer of a run as files that Hugging Face's libraries read."""

import json
from pathlib import Path

import pytest
import tokenizers
import transformers
from data_parts import made_up_data
from tokenizers import models, pre_tokenizers

from spes_peer.data.huggingface_tokenizer import tokenizer_files
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import Data

TEXT = "to be or not to be"
WORDS = ["<end>", "to", "be", "or", "not", "?"]


def word_level() -> tokenizers.Tokenizer:
    """Its end of text is a word of its vocabulary."""
    made = tokenizers.Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def with_special_token() -> tokenizers.Tokenizer:
    """… or was added to it, as most have it."""
    made = tokenizers.Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS[1:])}))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<|end|>"])
    return made


def unigram() -> tokenizers.Tokenizer:
    """… or stands in a list."""
    made = tokenizers.Tokenizer(models.Unigram([(word, -float(number)) for number, word in enumerate(WORDS)], unk_id=5))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def data_with(content: bytes, end_of_text: int) -> Data:
    tokenizer = {"kind": "json", "name": "words", "blob": "ee" * 32, "size_bytes": len(content)}
    return Data.model_validate(
        {**made_up_data(), "tokenizer": {**tokenizer, "num_ids": 50, "end_of_text": end_of_text}}
    )


@pytest.mark.parametrize(
    ("ours", "end_of_text", "token"),
    [(word_level(), 0, "<end>"), (with_special_token(), 5, "<|end|>"), (unigram(), 0, "<end>")],
)
def test_their_library_reads_it_with_the_token_that_ends_a_text(
    ours: tokenizers.Tokenizer, end_of_text: int, token: str, tmp_path: Path
) -> None:
    content = ours.to_str().encode()
    asked: list[tuple[str, str]] = []

    def read(blob: str, what: str) -> bytes:
        asked.append((blob, what))
        return content

    made = tokenizer_files(data_with(content, end_of_text), 64, read)
    assert asked == [("ee" * 32, "the tokenizer")]
    assert made.files["tokenizer.json"].encode() == content
    for name, text in made.files.items():
        (tmp_path / name).write_text(text)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT)["input_ids"] == ours.encode(TEXT).ids
    assert (theirs.eos_token, theirs.eos_token_id, theirs.model_max_length) == (token, end_of_text, 64)
    assert made.end_of_text == end_of_text


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b'{"model": 3}', b'{"added_tokens": [7], "model": {}}', b"[" * 100_000]
)
def test_what_is_no_tokenizer_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(BadConfiguration, match=r"tokenizer\.json cannot be read"):
        tokenizer_files(data_with(b"x", 0), 64, lambda _blob, _what: content)


def test_a_tokenizer_that_does_not_tell_the_end_of_text_is_written_without() -> None:
    content = json.dumps({"model": {"vocab": {"a": 1}}}).encode()
    made = tokenizer_files(data_with(content, 0), 64, lambda _blob, _what: content)
    assert json.loads(made.files["tokenizer_config.json"])["eos_token"] is None
