"""A picture of the dashboard for the documentation, beside a daemon: `python -m tui.picture CONTROL_SOCKET OUT.svg`.

Keys that are pressed before it is taken may follow, such as `2` for the second screen.
"""

import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tui.app import Dashboard
from tui.feed import Feed, LiveFeed

_SIZE = (120, 36)
_LOOK_SECONDS = 10.0
_FONTS = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
_FONT_SIZE = "font-size: 20.3px"  # these fonts are a little narrower than the one that the picture is laid out for


async def draw(feed: Feed, look_seconds: float, keys: Sequence[str] = (), size: tuple[int, int] = _SIZE) -> str:
    """SVG of what the dashboard shows after `look_seconds`, when there is something to see of the speed."""
    app = Dashboard(feed)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(look_seconds)
        await pilot.press(*keys)
        await pilot.pause()
        return _self_contained(app.export_screenshot())


def _self_contained(svg: str) -> str:
    """The picture without fonts from elsewhere, with every space kept and every letter in its cell."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg).replace("Fira Code", _FONTS).replace("font-size: 20px", _FONT_SIZE)
    return svg.replace("<text ", '<text xml:space="preserve" lengthAdjust="spacingAndGlyphs" ')


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(asyncio.run(draw(LiveFeed(Path(sys.argv[1])), _LOOK_SECONDS, sys.argv[3:])))
