"""Where volunteers can join: this node's address and those of the run's other bootstrap nodes, printed and in a file.

Anybody can call itself a bootstrap node; the others that are named here are those that the organizer has: record 0
names them.
"""

from pathlib import Path

from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.known_nodes import KnownNodes, addresses_of
from spes_peer.files import write_whole
from spes_peer.node import Node

ADDRESS_FILE = "address"


def addresses(node: Node, known: KnownNodes) -> list[str]:
    """This node's first."""
    own = [NodeAddress(one.host, one.port, node.peer_id) for one in node.reach.endpoints("grpc")]
    organizers = node.chain.record(0).sealed.record.candidates
    entries = {one.peer_id: one for one in known.bootstrap_nodes} | node.entries
    others = [one for peer in organizers if (entry := entries.get(peer)) is not None for one in addresses_of(entry)]
    return list(dict.fromkeys(one.text() for one in (*own, *others)))


class AddressFile:
    """`address` in the node's folder, for programs; gone when the node ends."""

    def __init__(self, node: Node, known: KnownNodes) -> None:
        self._node = node
        self._known = known
        self._path: Path = node.folder.path / ADDRESS_FILE
        self._said = ""

    def tell(self) -> None:
        """Print and write it, if it is not what was said last."""
        said = ",".join(addresses(self._node, self._known))
        if said != self._said:
            self._said = said
            write_whole(self._path, f"{said}\n".encode())
            print(f"join this run with: spes-peer join --bootstrap {said}", flush=True)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
