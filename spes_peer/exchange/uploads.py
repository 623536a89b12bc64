"""What this node was asked for lately, and by whom. It tells others, who then ask each other and not all of them it."""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from spes_peer.identity import PeerId

MAX_BLOBS = 256
MAX_PEERS_PER_BLOB = 32  # that others are told of


class Uploads:
    """Forgets what is longest ago. What is noted is a hint: whom it names may have nothing."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, OrderedDict[PeerId, set[int]]] = OrderedDict()

    @contextlib.contextmanager
    def noting(self, name: str, peer: PeerId, pieces: Sequence[int]) -> Iterator[set[int]]:
        """Note that `peer` will have these pieces; what is left in the set when the block ends was not sent."""
        pieces_of = self._of.setdefault(name, OrderedDict())
        noted = pieces_of.setdefault(peer, set())
        self._of.move_to_end(name)
        pieces_of.move_to_end(peer)
        unsent = set(pieces)
        noted |= unsent
        self._forget_oldest(pieces_of)
        try:
            yield unsent
        finally:
            noted -= unsent
            if not noted and pieces_of.get(peer) is noted:
                del pieces_of[peer]

    def _forget_oldest(self, pieces_of: OrderedDict[PeerId, set[int]]) -> None:
        if len(pieces_of) > MAX_PEERS_PER_BLOB:
            pieces_of.popitem(last=False)
        if len(self._of) > MAX_BLOBS:
            self._of.popitem(last=False)

    def to_others(self, name: str, than: PeerId) -> dict[PeerId, frozenset[int]]:
        """The pieces of a blob that peers other than `than` have or will have from here."""
        if name not in self._of:
            return {}
        return {peer: frozenset(pieces) for peer, pieces in self._of[name].items() if peer != than and pieces}
