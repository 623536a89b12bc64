"""A libp2p node in the lab, whose daemon echoes: `python punching.py NAME FOLDER HOST PORT relay|SEEN_AT [RELAY]`.

Says its address, then obeys lines on its standard input: "reach PEER_ID ADDRESS" calls that peer once and says how that
went, by what relay, or "punched" or "direct".
"""

import asyncio
import sys
from pathlib import Path

from spes_peer.exchange.relay_limits import OF_BOOTSTRAP
from spes_peer.exchange.tunnels import Libp2pNode
from spes_peer.identity import Identity


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100))
    writer.write_eof()


async def main(name: str, folder: Path, host: str, port: int, seen_at: str, relay: str = "") -> None:
    await asyncio.start_unix_server(echo, folder / f"{name}.sock")
    node = await Libp2pNode.start(
        identity=Identity.generate(),
        host=host,
        port=port,
        relay=OF_BOOTSTRAP if seen_at == "relay" else None,
        relays=(),
        inbound_socket=folder / f"{name}.sock",
        folder=folder / name,
    )
    if relay:
        await node.use_relays((relay,), seen_at)
        while not node.standing_relays:  # noqa: ASYNC110 - in a program of a test
            await asyncio.sleep(0.05)
    print(node.addresses[-1], flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        _, peer, address = line.split()
        reader, writer = await asyncio.open_unix_connection(await node.open_tunnel(peer, (address,)))
        writer.write(b"hello")
        said = (await reader.read(100)).decode()
        await asyncio.sleep(0.1)  # the event comes on another socket
        print(said, node.relay_of(peer) or ("punched" if node.is_punched(peer) else "direct"), flush=True)
        writer.close()
    await node.close()


if __name__ == "__main__":
    name, folder, host, port, *more = sys.argv[1:]
    asyncio.run(main(name, Path(folder), host, int(port), *more))
