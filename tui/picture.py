"""A picture of the dashboard for the documentation: `python -m tui.picture CONTROL_SOCKET OUT.svg`, beside a daemon."""

import asyncio
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tui.app import Dashboard
from tui.feed import LiveFeed

_SIZE = (120, 40)
_LOOK_SECONDS = 10.0
_FONTS = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
_FONT_SIZE = "font-size: 20.3px"  # these fonts are a little narrower than the one that the picture is laid out for


async def draw(socket_path: Path, look_seconds: float, clock: Callable[[], float] = time.time) -> str:
    """SVG of what the dashboard shows after `look_seconds`, when there is something to see of the speed."""
    app = Dashboard(LiveFeed(socket_path, clock=clock))
    async with app.run_test(size=_SIZE) as pilot:
        await pilot.pause(look_seconds)
        return _self_contained(app.export_screenshot())


def _self_contained(svg: str) -> str:
    """The picture without the fonts that it would load from elsewhere, and with every space kept."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg).replace("Fira Code", _FONTS).replace("font-size: 20px", _FONT_SIZE)
    return svg.replace("<text ", '<text xml:space="preserve" ')


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(asyncio.run(draw(Path(sys.argv[1]), _LOOK_SECONDS)))
