"""The run's page in a real browser: on a phone and on a desk, light and dark, with and without its script."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from browser import CHROMIUM, WHY_NOT, Browser, Page, started
from web_runs import MadeUp
from web_site import Shown, shown

from spes_peer.run.manifest import Manifest

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.slow,
]

PHONE, DESK = (360, 740), (1440, 900)
LONG = "W" * 31
# of text against what lies behind it, by WCAG 2; SVG text has its colour in `fill`
CONTRAST = """
(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const bad = [];
  for (const one of document.querySelectorAll("body *")) {
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    if (one.closest("script, style, noscript")) continue;
    const style = getComputedStyle(one);
    const [a, b] = [light(one.closest("svg") ? style.fill : style.color), light(behind(one))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push([one.outerHTML.slice(0, 80), (a + 0.05) / (b + 0.05)]);
  }
  return bad;
})()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with started(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def run(manifest: Manifest) -> MadeUp:
    return MadeUp(manifest)


def large(manifest: Manifest) -> MadeUp:
    """32 experts, 200 volunteers, names as long as they may be."""
    model = manifest.model.model_copy(update={"num_experts": 32})
    training = manifest.training.model_copy(update={"num_subsets": 32})
    manifest = manifest.model_copy(update={"model": model, "training": training})
    return MadeUp(
        manifest, num_peers=200, num_closed=300, names=(LONG, *(f"{LONG[:-4]}{n}" for n in range(1000, 1199)))
    )


async def opened(browser: Browser, site: Shown, size: tuple[int, int], is_dark: bool = False) -> Page:
    page = await browser.page()
    await page.look(*size, is_dark)
    await page.open(f"{site.url}/")
    return page


async def text_of(page: Page) -> str:
    return str(await page.value("document.body.innerText"))


@pytest.mark.parametrize("size", [PHONE, DESK])
@pytest.mark.parametrize("is_dark", [False, True])
async def test_it_is_readable_and_wants_nothing_from_elsewhere(
    browser: Browser, run: MadeUp, size: tuple[int, int], is_dark: bool
) -> None:
    async with shown(run.facts()) as site:
        page = await opened(browser, site, size, is_dark)
        assert await page.value("document.documentElement.scrollWidth") <= size[0]
        assert await page.value(CONTRAST) == []
        assert (
            await page.value("[...document.querySelectorAll('.curve')].filter((one) => one.checkVisibility()).length")
            == 1
        )
        assert page.complaints == []
        assert {url for url in page.requested if not url.startswith("data:")} == {f"{site.url}/"}


@pytest.mark.parametrize("size", [PHONE, DESK])
async def test_two_hundred_volunteers_with_long_names_fit(
    browser: Browser, manifest: Manifest, size: tuple[int, int]
) -> None:
    async with shown(large(manifest).facts()) as site:
        page = await opened(browser, site, size)
        assert await page.value("document.documentElement.scrollWidth") <= size[0]
        assert await page.value("document.querySelector('#volunteers .scroll').scrollWidth") <= size[0]
        assert page.complaints == []


@pytest.mark.parametrize("num_closed", [0, 1])
async def test_a_run_that_has_hardly_begun_is_shown_as_such(
    browser: Browser, manifest: Manifest, num_closed: int
) -> None:
    facts = MadeUp(manifest, num_closed=num_closed).facts()
    async with shown(facts if num_closed else replace(facts, tallies={}, states={}, beat=None)) as site:
        page = await opened(browser, site, PHONE)
        assert await page.value("document.documentElement.scrollWidth") <= PHONE[0]
        assert ("You could be the first" in await text_of(page)) == (num_closed == 0)
        assert page.complaints == []


async def test_without_its_script_the_figures_are_there_and_it_loads_itself_again(
    browser: Browser, run: MadeUp
) -> None:
    async with shown(run.facts()) as site:
        page = await browser.page()
        await page.without_script()
        await page.open(f"{site.url}/")
        text = await text_of(page)
        for figure in ("Training round 41", "2.113", "3.28", "old laptop", "Experts 2–3", "spes-peer join"):
            assert figure in text, figure
        assert "Copy" not in text  # a button that could do nothing
        assert await page.value("document.querySelector('meta[http-equiv=refresh]') !== null")


async def test_what_changes_arrives_by_itself_and_an_open_list_stays_open(browser: Browser, manifest: Manifest) -> None:
    made_up = large(manifest)
    async with shown(made_up.facts()) as site:
        page = await opened(browser, site, DESK)
        await page.value("document.querySelector('#experts details').open = true")
        await page.value("window.scrollTo(0, 500)")
        site.facts = replace(made_up, num_closed=301).facts()
        await page.until("document.querySelector('h1 + #now').innerText.includes('Training round 302')")
        assert await page.value("document.querySelector('#experts details').open")
        assert await page.value("window.scrollY") == 500
        assert (await page.value("document.title")).endswith("Training round 302")
        assert page.complaints == []


async def test_what_somebody_uses_is_not_exchanged_under_his_hands(browser: Browser, run: MadeUp) -> None:
    async with shown(run.facts()) as site:
        page = await opened(browser, site, DESK)
        await page.value("document.querySelector('#records .scroll').focus()")
        site.facts = replace(run, num_closed=41).facts()
        await page.until("document.querySelector('#figures .figure').innerText === '42'")
        assert await page.value("document.activeElement.closest('#records') !== null")
        assert await page.value("document.querySelector('#records tbody th').innerText") == "41"


async def test_the_page_says_when_the_node_is_gone(browser: Browser, run: MadeUp) -> None:
    async with shown(run.facts()) as site:
        page = await opened(browser, site, PHONE)
    await page.until("document.getElementById('live').innerText.includes('does not answer')")
    assert "Training round 41" in await text_of(page)


async def test_the_copy_button_copies_the_command(browser: Browser, run: MadeUp) -> None:
    async with shown(run.facts()) as site:
        page = await opened(browser, site, DESK)
        await page.do("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        copied = await page.value(
            "(async () => { document.querySelector('button[data-copies=command]').click();"
            " await new Promise((done) => setTimeout(done, 300)); return navigator.clipboard.readText(); })()"
        )
        assert copied.startswith("spes-peer join --bootstrap /dns/run.example.org/tcp/4510/p2p/")
        assert "\n" not in copied


async def test_names_of_markup_stay_text_and_no_script_of_theirs_runs(browser: Browser, manifest: Manifest) -> None:
    names = (
        "<script>document['title']='x'</script>",
        "<img src=x onerror=alert(1)>",
        "\u05d0\u05d1\u05d2",
        "</bdi></table>",
    )
    async with shown(MadeUp(manifest, names=names).facts()) as site:
        page = await opened(browser, site, DESK)
        text = await text_of(page)
        for name in names[:2]:
            assert name[:32] in text
        assert await page.value("document.querySelectorAll('#volunteers tbody tr').length") == 10
        assert page.complaints == []
        assert await page.value("document.title") == "demo: Training round 41"


async def test_it_can_be_read_by_its_structure_and_used_with_the_keyboard(browser: Browser, run: MadeUp) -> None:
    async with shown(run.facts()) as site:
        page = await opened(browser, site, DESK)
        assert await page.value("document.documentElement.lang") == "en"
        assert await page.value("document.querySelectorAll('h1').length") == 1
        assert await page.value(
            "['header', 'main', 'footer'].every((one) => document.querySelectorAll(one).length === 1)"
        )
        titles = "[...document.querySelectorAll('section')].map((one) => one.getAttribute('aria-labelledby'))"
        unnamed = f"{titles}.filter((title) => !document.getElementById(title)).length"
        assert await page.value(unnamed) == 0
        assert await page.value("[...document.querySelectorAll('th')].every((one) => one.scope)")
        assert await page.value(
            "[...document.querySelectorAll('svg')].every((one) => one.role === 'img' ? one.ariaLabel : one.ariaHidden)"
        )
        reached = []
        for _ in range(12):
            for kind in ("keyDown", "keyUp"):
                await page.do("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            reached.append(await page.value("document.activeElement.innerText.slice(0, 14)"))
        assert reached[0] == "To the figures"
        assert "Copy" in reached


async def test_it_can_be_printed(browser: Browser, run: MadeUp, tmp_path: Path) -> None:
    async with shown(run.facts()) as site:
        page = await opened(browser, site, DESK, is_dark=True)
        await page.do("Emulation.setEmulatedMedia", media="print")
        assert await page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not await page.value("document.querySelector('button').checkVisibility()")
        assert (await page.do("Page.printToPDF", printBackground=False))["data"]
