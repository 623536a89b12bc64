"""Draws docs/run-page.png, the run's page of a made-up run: `python tests/draw_run_page.py`. It takes Chromium."""

import asyncio
import math
import tempfile
from pathlib import Path

from browser import WHY_NOT, started
from web_runs import NAMES, MadeUp
from web_site import shown

from spes_peer.identity import Identity
from spes_peer.run.manifest import Manifest, parse_run_file
from spes_peer.run.presets import PRESETS

PICTURE = Path(__file__).parents[1] / "docs" / "run-page.png"
SIZE = (1100, 980)
OTHERS = (
    "garage",
    "top shelf",
    "cellar",
    "rack 2",
    "old mac",
    "basement",
    "lab-4",
    "Pi no more",
    "node zero",
    "spare",
)


def made_up() -> MadeUp:
    shards = {"num_tokens": 500_000_000_000, "shard_tokens": 1 << 24, "index": "ab" * 32}
    source = {"name": "a corpus", "licence": "ODC-By", "shards": shards}
    data = {"sources": [source], "held_out": {"blob": "cd" * 32, "num_tokens": 1_000_000}, "token_dtype": "uint32"}
    written = parse_run_file(PRESETS["spes-2b"]).model_dump(mode="json")
    organizer = Identity.from_seed(b"\1" * 32).peer_id
    manifest = Manifest.model_validate({**written, "data": data, "organizers": [organizer]})
    return MadeUp(
        manifest,
        num_peers=20,
        num_closed=320,
        round_seconds=1460.0,
        names=NAMES + OTHERS,
        num_gone=4,
        loss_after=slowly,
    )


def slowly(closed: int) -> float:
    """As losses of large models fall: steeply, then ever less."""
    return 1.75 + 9.2 / (1 + closed) ** 0.45 + 0.012 * math.sin(closed * 2.7)


async def draw(path: Path) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with started(Path(folder)) as browser, shown(made_up().facts()) as site:
            page = await browser.page()
            await page.look(*SIZE)
            await page.open(f"{site.url}/")
            await page.picture(path)


if __name__ == "__main__":
    try:
        asyncio.run(draw(PICTURE))
    except AssertionError:
        raise SystemExit(WHY_NOT) from None
