"""Token ids to text as they come, and a prompt to token ids: by the tokenizer.json beside a model, or bytes.

A character may be made of several tokens: what is not whole yet is held back, and shown at the end as what it is.
"""

import codecs
import json
from pathlib import Path
from typing import Any, Protocol

from spes_peer.data import library
from spes_peer.data.huggingface_tokenizer import byte_tokenizer_files
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import MAX_TOKENIZER_BYTES

_BROKEN = "\ufffd"
_LOOKED_BACK = 16  # tokens before the newest that may change how those are written


class Spelling(Protocol):
    """A tokenizer for one text."""

    num_ids: int

    def ids_of(self, text: str) -> list[int]: ...

    def add(self, token: int) -> str:
        """What is readable with one token more and was not before."""

    def rest(self) -> str:
        """What is left at the end."""


class Bytes:
    """The bytes of UTF-8; ids from 256 on are no text."""

    num_ids = 257

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def ids_of(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogateescape"))

    def add(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if token < 256 else ""

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


class Words:
    """Of a tokenizer.json, read by the library `tokenizers`. `BadConfiguration` for a text that it cannot encode, and
    for tokens that it cannot write."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.num_ids = int(tokenizer.get_vocab_size(with_added_tokens=True))
        self._tokens: list[int] = []
        self._shown = ""

    def ids_of(self, text: str) -> list[int]:
        with library.failing_plainly("the model's tokenizer.json cannot encode this text"):
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def add(self, token: int) -> str:
        self._tokens.append(token)
        text = self._text()
        if text.endswith(_BROKEN) or not text.startswith(self._shown):
            return ""
        new, self._shown = text[len(self._shown) :], text
        if len(self._tokens) > 2 * _LOOKED_BACK:
            self._tokens = self._tokens[-_LOOKED_BACK:]
            self._shown = self._text()
        return new

    def rest(self) -> str:
        return self._text()[len(self._shown) :]

    def _text(self) -> str:
        with library.failing_plainly("the model's tokenizer.json cannot write what the model says"):
            return str(self._tokenizer.decode(self._tokens, skip_special_tokens=True))


def showable(text: str) -> str:
    """Printable signs, tabs and lines alone: a model, or a text it learns from, may hold what moves the cursor."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else _BROKEN for sign in text)


def spelling_of(folder: Path) -> Spelling:
    """Of a Hugging Face folder; `BadConfiguration` where its tokenizer cannot be used."""
    path = folder / "tokenizer.json"
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise BadConfiguration(
                f"{path} has {path.stat().st_size} bytes, and at most {MAX_TOKENIZER_BYTES} are read"
            )
        content = path.read_bytes()
        if json.loads(content) == _ours():
            return Bytes()
    except FileNotFoundError:
        raise BadConfiguration(f"{folder} has no tokenizer.json, the only kind of tokenizer that is read") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadConfiguration(f"cannot read {path}: {error}") from None
    spelling = Words(library.load(content, path))
    if not spelling.num_ids:
        raise BadConfiguration(f"{path} has no token at all")
    return spelling


def _ours() -> Any:
    return json.loads(byte_tokenizer_files(1)["tokenizer.json"])
