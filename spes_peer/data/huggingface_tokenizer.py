"""A run's tokenizer as the files that Hugging Face's libraries read: the same ids for the same text.

Bytes are a byte-level BPE without a single merge. That wants a printable letter for each byte, and has the table of
GPT-2 for it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spes_peer.errors import BadConfiguration
from spes_peer.run.data import BYTES_END_OF_TEXT, Data

END_OF_TEXT_TOKEN = "<|endoftext|>"


@dataclass(frozen=True)
class TokenizerFiles:
    """By name, and the id that ends a text."""

    files: dict[str, str]
    end_of_text: int


def tokenizer_files(data: Data, sequence_length: int, read: Callable[[str, str], bytes]) -> TokenizerFiles:
    """Of a run; `read` gives the bytes of a blob, and takes words for what it is. `BadConfiguration` for a
    tokenizer.json that is none."""
    tokenizer = data.tokenizer
    if tokenizer.kind == "bytes":
        return TokenizerFiles(byte_tokenizer_files(sequence_length), BYTES_END_OF_TEXT)
    content = read(tokenizer.blob, "the tokenizer")
    try:
        text = content.decode()
        token = _token_of(json.loads(text), tokenizer.end_of_text)
    except (ValueError, RecursionError, TypeError, AttributeError, LookupError):
        raise BadConfiguration("the run's tokenizer.json cannot be read") from None
    files = {"tokenizer.json": text, "tokenizer_config.json": _config(token, sequence_length)}
    return TokenizerFiles(files, tokenizer.end_of_text)


def _token_of(tokenizer: dict[str, Any], token_id: int) -> str | None:
    """How a tokenizer.json writes a token; None where it does not say."""
    for added in tokenizer.get("added_tokens") or ():
        if added["id"] == token_id:
            return str(added["content"])
    vocabulary = tokenizer["model"].get("vocab")
    if isinstance(vocabulary, list):  # of the kind Unigram: tokens and their scores, by id
        return str(vocabulary[token_id][0]) if token_id < len(vocabulary) else None
    return next((str(token) for token, number in (vocabulary or {}).items() if number == token_id), None)


def _config(end_of_text: str | None, sequence_length: int) -> str:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_text,
        "model_max_length": sequence_length,
        "clean_up_tokenization_spaces": False,
    }
    return json.dumps(config, indent=1) + "\n"


def byte_tokenizer_files(sequence_length: int) -> dict[str, str]:
    """Their names and contents."""
    special = {"id": BYTES_END_OF_TEXT, "content": END_OF_TEXT_TOKEN, "special": True, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**special, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {letter_of(byte): byte for byte in range(256)}, "merges": []},
    }
    return {
        "tokenizer.json": json.dumps(tokenizer, indent=1) + "\n",
        "tokenizer_config.json": _config(END_OF_TEXT_TOKEN, sequence_length),
    }


def letter_of(byte: int) -> str:
    """GPT-2's letter for a byte: itself where Latin-1 shows something, else the next one from U+0100 on."""
    if _is_shown(byte):
        return chr(byte)
    return chr(256 + sum(not _is_shown(lower) for lower in range(byte)))


def _is_shown(byte: int) -> bool:
    return 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
