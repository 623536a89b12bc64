"""The byte-level tokenizer: a token id is a byte of UTF-8, and one id beyond marks the end of a document."""

import numpy as np
from numpy.typing import NDArray

from spes_peer.run.data import BYTES_END_OF_TEXT


def encode(document: str) -> NDArray[np.uint16]:
    """The document's token ids, closed by the end of text."""
    content = np.frombuffer(document.encode(), dtype=np.uint8)
    return np.append(content.astype(np.uint16), np.uint16(BYTES_END_OF_TEXT))
