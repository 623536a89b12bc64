"""Answers, made at most once a second whoever asks, and handed out as bytes that lie ready.

What the node knows is gathered in its loop, between two awaits; all that is made of it takes a thread, so that a large
run's page delays no round.
"""

import asyncio
import gzip
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bootstrap.web import api, metrics, page
from bootstrap.web.seeing import view_of
from bootstrap.web.view import Facts, RunView

FRESH_SECONDS = 1.0
_HTML = "text/html; charset=utf-8"
_JSON = "application/json; charset=utf-8"
_MAX_ROUND = 10**9


@dataclass(frozen=True)
class Answer:
    """What a GET gets."""

    content_type: str
    body: bytes
    packed: bytes
    """The same with gzip."""
    etag: str
    """Of the body, quoted."""


def answer_of(content_type: str, body: bytes) -> Answer:
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:24]}"'
    return Answer(content_type, body, gzip.compress(body, 6, mtime=0), etag)


@dataclass
class _Looked:
    """What one look at the run showed, and what was made of it so far."""

    run: RunView
    at: float
    answers: dict[str, Answer] = field(default_factory=dict)


class Shelf:
    """Holds what `gather` last showed and the answers made of it."""

    def __init__(
        self, gather: Callable[[], Awaitable[Facts]], now: Callable[[], float], offers_download: bool = False
    ) -> None:
        """`now` is a monotonic clock, in seconds."""
        self._gather = gather
        self._now = now
        self._offers_download = offers_download
        self._looked: _Looked | None = None
        self._making = asyncio.Lock()
        self.num_made = 0
        """Answers made, not handed out: for who watches that visitors cost nothing."""

    async def page(self) -> Answer:
        return await self._answer("/", lambda run: (_HTML, page.render(run, self._offers_download).encode()))

    async def run_json(self) -> Answer:
        return await self._answer("run", lambda run: (_JSON, api.run_json(run)))

    async def rounds_json(self, first: int) -> Answer:
        start = min(max(first, 0), _MAX_ROUND) // api.ROUNDS_AT_ONCE
        looked = await self._look()
        start = min(start, (len(looked.run.rows) - 1) // api.ROUNDS_AT_ONCE + 1)  # all behind the end are one
        first = start * api.ROUNDS_AT_ONCE
        return await self._answer(f"rounds {start}", lambda run: (_JSON, api.rounds_json(run, first)))

    async def experts_json(self) -> Answer:
        return await self._answer("experts", lambda run: (_JSON, api.experts_json(run)))

    async def volunteers_json(self) -> Answer:
        return await self._answer("volunteers", lambda run: (_JSON, api.volunteers_json(run)))

    async def metrics(self) -> Answer:
        return await self._answer("metrics", lambda run: (metrics.CONTENT_TYPE, metrics.metrics_text(run)))

    async def _answer(self, key: str, make: Callable[[RunView], tuple[str, bytes]]) -> Answer:
        looked = await self._look()
        if (made := looked.answers.get(key)) is None:
            async with self._making:
                if (made := looked.answers.get(key)) is None:
                    made = await asyncio.to_thread(lambda: answer_of(*make(looked.run)))
                    looked.answers[key] = made
                    self.num_made += 1
        return made

    async def _look(self) -> _Looked:
        if self._looked is None or self._now() - self._looked.at >= FRESH_SECONDS:
            async with self._making:
                if self._looked is None or self._now() - self._looked.at >= FRESH_SECONDS:
                    run = await asyncio.to_thread(view_of, await self._gather())
                    is_same = self._looked is not None and self._looked.run == run
                    made = self._looked.answers if self._looked is not None and is_same else {}
                    self._looked = _Looked(run, self._now(), made)
        return self._looked
