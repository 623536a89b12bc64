"""Nodes of the exchange in the lab: `python fetching.py serve FOLDER HOST BYTES`, which says its entry and the blob's
name, and `python fetching.py take FOLDER ENTRY NAME BYTES STALL_SECONDS`, which says for how many seconds it fetched.
"""

import asyncio
import base64
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from exchange_nodes import Node

from spes_peer.exchange.fetch import Fetcher
from spes_peer.run.peers import PeerEntry
from spes_peer.wire import convert


async def serve(folder: str, host: str, size_bytes: str) -> None:
    node = Node(Path(folder) / "source")
    await node.start(f"{host}:4510")
    blob = node.store.put(os.urandom(int(size_bytes)))
    print(base64.b64encode(convert.encode(node.entry([f"{host}:4510"]))).decode(), blob.name, flush=True)
    await asyncio.Event().wait()


async def take(folder: str, entry_text: str, name: str, size_bytes: str, stall_seconds: str) -> None:
    node = Node(Path(folder) / f"taker{os.getpid()}")
    entry = convert.decode(PeerEntry, base64.b64decode(entry_text))
    node.connections.update_entry(entry)
    began_at = time.monotonic()
    await Fetcher(node.holdings, node.connections, float(stall_seconds)).fetch(name, int(size_bytes), [entry.peer_id])
    print(time.monotonic() - began_at)
    await node.stop()


if __name__ == "__main__":
    asyncio.run({"serve": serve, "take": take}[sys.argv[1]](*sys.argv[2:]))
