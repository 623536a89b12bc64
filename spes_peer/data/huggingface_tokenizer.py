"""The byte tokenizer as the files that Hugging Face's libraries read: the same ids for the same text.

Their byte-level BPE without a single merge is just that. It wants a printable letter for each byte, and has the table
of GPT-2 for it.
"""

import json
from typing import Any

from spes_peer.data.tokenizer import END_OF_TEXT

END_OF_TEXT_TOKEN = "<|endoftext|>"


def byte_tokenizer_files(sequence_length: int) -> dict[str, str]:
    """Their names and contents."""
    special = {"id": END_OF_TEXT, "content": END_OF_TEXT_TOKEN, "special": True, "normalized": False}
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
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT_TOKEN,
        "model_max_length": sequence_length,
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": json.dumps(tokenizer, indent=1), "tokenizer_config.json": json.dumps(config, indent=1)}


def letter_of(byte: int) -> str:
    """GPT-2's letter for a byte: itself where Latin-1 shows something, else the next one from U+0100 on."""
    if _is_shown(byte):
        return chr(byte)
    return chr(256 + sum(not _is_shown(lower) for lower in range(byte)))


def _is_shown(byte: int) -> bool:
    return 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
