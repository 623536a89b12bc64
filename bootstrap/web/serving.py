"""The web page of one node: puts the parts together. `async with served(…)` while the node runs."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from bootstrap.web.checkpoint import is_downloadable
from bootstrap.web.download import Download
from bootstrap.web.server import Site
from bootstrap.web.shelf import Shelf
from bootstrap.web.source import Source
from spes_peer.exchange.addresses import Endpoint
from spes_peer.following.follower import Follower
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.ports import is_wildcard

logger = logging.getLogger(__name__)

_NAMES_SECONDS = 10.0  # so often names are looked at, whether or not somebody looks at the page


@contextlib.asynccontextmanager
async def served(
    follower: Follower, host: str, port: int, addresses: Callable[[], Sequence[str]]
) -> AsyncIterator[Source]:
    """Serve the page of the node that follows meanwhile, and say where; it hears what coordinators say. `addresses` are
    those at which volunteers can join. `BadConfiguration` if the place is taken."""
    node, hears = follower.node, follower.on_message
    source = Source(node, addresses, lambda: follower.coordinating.present)

    def hear(sender: PeerId, message: Any) -> None:
        source.on_message(message)
        hears(sender, message)

    follower.on_message = hear
    download = _download(node, source)
    site = Site(Shelf(source.facts, time.monotonic, download is not None), download)
    async with site.serving(host, port) as place:
        at = Endpoint(node.settings.announce[0].host, place.port) if is_wildcard(host) else place
        print(f"the run's web page: http://{at}/", flush=True)
        remembering = asyncio.create_task(_remember_names(source))
        try:
            yield source
        finally:
            remembering.cancel()
            await asyncio.gather(remembering, return_exceptions=True)


def _download(node: Node, source: Source) -> Download | None:
    if not is_downloadable(node.layout):
        return None
    return Download(node.layout, node.run_id, source.checkpoint, node.blobs, node.upload)


async def _remember_names(source: Source) -> None:
    """Of who comes and goes while nobody looks at the page."""
    while True:
        try:
            source.note_names()
        except Exception:  # of the page alone: the node goes on
            logger.exception("cannot note the names of volunteers")
        await asyncio.sleep(_NAMES_SECONDS)
