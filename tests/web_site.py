"""The web page of a made-up run, served on loopback."""

import contextlib
import time
from collections.abc import AsyncIterator

from bootstrap.web.limits import Limits
from bootstrap.web.server import Site
from bootstrap.web.shelf import Shelf
from bootstrap.web.view import Facts


class Shown:
    """What the page shows: change `facts` to let the run go on."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.num_gathered = 0
        self.fault: Exception | None = None
        self.now = time.monotonic
        self.url = ""
        self.shelf = Shelf(self._gather, lambda: self.now(), offers_download=True)

    async def _gather(self) -> Facts:
        self.num_gathered += 1
        if self.fault is not None:
            raise self.fault
        return self.facts


@contextlib.asynccontextmanager
async def shown(facts: Facts, limits: Limits | None = None) -> AsyncIterator[Shown]:
    run = Shown(facts)
    async with Site(run.shelf, limits=limits).serving("127.0.0.1", 0) as place:
        run.url = f"http://{place}"
        yield run
