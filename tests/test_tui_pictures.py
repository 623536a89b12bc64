"""Every screen as it was when somebody last looked at it: tests/pictures/, SVG at 80 × 24.

`SPES_UPDATE_PICTURES=1 pytest tests/test_tui_pictures.py` takes them anew; look at them before they are committed.
(pytest-textual-snapshot wants a syrupy of years ago; all that is needed of it are these few lines.)
"""

import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from tui_feeds import MadeUpFeed
from tui_screens import shows, until
from tui_statuses import status

from tui.app import PAGES, Dashboard

PICTURES = Path(__file__).with_name("pictures")
TEXTUAL, PLOTEXT = "8.2.8", "5.3.2"
"""Others draw the same a little differently."""


@pytest.fixture(autouse=True)
def in_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The log shows local times, and a terminal may have no colours or no characters."""
    for name in ("NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as context:
        context.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.skipif((version("textual"), version("plotext")) != (TEXTUAL, PLOTEXT), reason="other versions")
@pytest.mark.parametrize("name", [page.NAME for page in PAGES])
async def test_a_screen_looks_as_it_did(name: str) -> None:
    app = Dashboard(MadeUpFeed([status()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app._num_statuses == 1)
        app.action_open(name)
        await shows(pilot, "bytes-of-python", "q detach")
        await pilot.pause()
        await pilot.pause()
        picture = app.export_screenshot()
    path = PICTURES / f"{name.lower()}.svg"
    if os.environ.get("SPES_UPDATE_PICTURES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(picture)
    assert picture == path.read_text(), f"{path.name} has changed; look at it with SPES_UPDATE_PICTURES=1"
