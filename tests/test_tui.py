"""The dashboard on a screen, against a real control server on a Unix socket."""

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from control_program import Program, served, short_folder
from textual import events
from textual.keys import _character_to_key
from textual.widgets import Input
from tui_screens import DEADLINE_SECONDS, dashboard, screen_of, shows, until
from tui_statuses import NOW, status, status_before_the_first_round

import tui
from spes_peer import control
from spes_peer.control import ControlClient, ControlServer
from tui.feed import LiveFeed
from tui.help import HelpScreen
from tui.picture import draw


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def program() -> Program:
    return Program(status())


@pytest.fixture
async def socket_path(program: Program, folder: Path) -> AsyncIterator[Path]:
    async with served(program, folder) as path:
        yield path


async def test_the_overview_shows_run_phase_and_what_is_waited_for(socket_path: Path) -> None:
    async with dashboard(socket_path).run_test(size=(120, 40)) as pilot:
        await shows(pilot, "bytes-of-python", "0:47 left", "step 13 of 20", "waits for birch, dogwood")
        await shows(pilot, "training 2.532", "held-out 2.548", "mine 4.31k", "RTX 4090", "41.2M tokens", "detach")


async def test_a_change_reaches_the_screen(socket_path: Path, program: Program) -> None:
    async with dashboard(socket_path).run_test(size=(120, 40)) as pilot:
        await shows(pilot, "round 24")
        changed = status(25)
        changed.phase.name, changed.phase.why = "reducing", "3 of 4 blocks are averaged"
        program.show(changed)
        await shows(pilot, "round 25", "reducing", "3 of 4 blocks are averaged")


async def test_the_log_follows_its_end_when_it_shrinks_until_somebody_scrolls_up(
    socket_path: Path, program: Program
) -> None:
    async with dashboard(socket_path).run_test(size=(120, 44)) as pilot:
        await pilot.press("6")
        await shows(pilot, "round closed round=23", "following")
        await pilot.resize_terminal(120, 36)
        for number in (25, 26):
            program.show(status(number))
            await shows(pilot, f"round closed round={number - 1}")
        await pilot.press("home")
        await shows(pilot, "round opened round=1 ", "not following")
        program.show(status(27))
        await shows(pilot, "round 27", "78 of 78 lines", "round opened round=1 ")
        await pilot.press("t")
        await shows(pilot, "round closed round=26", "following")


async def test_the_log_shows_levels_and_lines_with_a_word(socket_path: Path) -> None:
    async with dashboard(socket_path).run_test(size=(100, 24)) as pilot:
        await pilot.press("6")
        await shows(pilot, "69 of 69 lines")
        await pilot.press("v")
        await shows(pilot, "4 of 69 lines", "warnings and errors", "a fetch goes on with another source")
        await pilot.press("v")
        await shows(pilot, "0 of 69 lines", "no line passes")
        await pilot.press("v", "f", *"round=7 ")
        await shows(pilot, "3 of 69 lines", "with round=7")
        await pilot.press("enter", "2", "6")
        await shows(pilot, "3 of 69 lines")
        await pilot.press("escape")
        await shows(pilot, "69 of 69 lines")


async def test_the_log_is_searched_from_its_end_and_on(socket_path: Path) -> None:
    async with dashboard(socket_path).run_test(size=(100, 16), notifications=True) as pilot:
        await pilot.press("6")
        await shows(pilot, "69 of 69 lines")
        await pilot.press("slash", *"held_out", "enter")
        await shows(pilot, "round closed round=23")
        for round_ in (22, 21, 20, 19, 18, 16, 15):
            await pilot.press("n")
            await shows(pilot, f"round closed round={round_}")
        await pilot.press("N", "N", "N", "N")
        await shows(pilot, "not following")
        await pilot.press("slash", *"nowhere", "enter")
        await shows(pilot, "no line has nowhere")
        await pilot.press("escape", "n")
        await shows(pilot, "search with / first")


async def test_c_copies_the_lines_that_are_shown(socket_path: Path) -> None:
    async with dashboard(socket_path).run_test(size=(100, 24), notifications=True) as pilot:
        await pilot.press("6", "v")
        await shows(pilot, "4 of 69 lines")
        await pilot.press("c")
        await shows(pilot, "copied 4 lines")
        assert pilot.app.clipboard.count("WARNING a fetch goes on with another source") == 4


async def test_before_the_first_round_the_screen_says_what_is_missing(socket_path: Path, program: Program) -> None:
    program.show(status_before_the_first_round())
    async with dashboard(socket_path).run_test(size=(120, 40)) as pilot:
        await shows(pilot, "2 more volunteers are needed", "2 of 4 volunteers admitted")
        await pilot.press("2")
        await shows(pilot, "claimed by cedar")
        await pilot.press("6")
        await shows(pilot, "joined the run")
        log = screen_of(pilot.app).split(" lines ")[1].splitlines()  # type: ignore[arg-type]
        assert "joined the run" in log[1]  # a short log starts at the top


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_detaching_ends_the_dashboard_and_not_the_daemon(socket_path: Path, program: Program, key: str) -> None:
    app = dashboard(socket_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "round 24")
        await pilot.press(key)
    assert app.return_value == "detached; the daemon goes on"
    assert program.commands == []
    async with ControlClient(socket_path) as client:
        assert (await client.status_once()).round == 24


@pytest.mark.parametrize("key", ["question_mark", "escape", "q"])
async def test_help_opens_and_closes(socket_path: Path, key: str) -> None:
    async with dashboard(socket_path).run_test(size=(120, 40)) as pilot:
        await shows(pilot, "round 24")
        await pilot.press("question_mark")
        await shows(pilot, "the dashboard ends, the daemon goes on", "hash of the whole public state")
        await pilot.press(key)
        await until(pilot, lambda: not isinstance(pilot.app.screen, HelpScreen))
        assert pilot.app.is_running


async def test_other_keys_do_nothing(socket_path: Path, program: Program) -> None:
    async with dashboard(socket_path).run_test(size=(80, 24)) as pilot:
        await shows(pilot, "round 24")
        await pilot.press("x", "Q", "f1", "backspace", "enter", "space", "left", "home", "0", "9", "escape")
        await shows(pilot, "round 24", "step 13 of 20")
        assert pilot.app.is_running
        assert len(pilot.app.screen_stack) == 1
    assert program.commands == []


async def test_p_pauses_and_resumes_and_shows_the_answer(socket_path: Path, program: Program) -> None:
    async with dashboard(socket_path).run_test(size=(120, 40), notifications=True) as pilot:
        await shows(pilot, "round 24")
        await pilot.press("p")
        await shows(pilot, "pauses after round 24", "pauses after this round", "p resume")
        await pilot.press("p")
        await shows(pilot, "takes part again", "p pause")
    assert program.commands == ["pause", "resume"]


SCREENS = {
    "Overview": "step 13 of 20",
    "Experts": "alder (you)",
    "Rounds": "2.548",
    "Peers": "birch",
    "Exchange": "on its way",
    "Log": "round closed round=23",
}
"""What tells each screen from the others."""


async def test_number_keys_and_tab_open_the_screens(socket_path: Path) -> None:
    async with dashboard(socket_path).run_test(size=(80, 24)) as pilot:
        for number, text in enumerate(SCREENS.values(), start=1):
            await pilot.press(str(number))
            await shows(pilot, text)
        for text in SCREENS.values():
            await pilot.press("tab")
            await shows(pilot, text)
        for text in list(reversed(SCREENS.values()))[1:]:
            await pilot.press("shift+tab")
            await shows(pilot, text)


async def test_a_click_on_a_tab_opens_its_screen(socket_path: Path) -> None:
    async with dashboard(socket_path).run_test(size=(80, 24)) as pilot:
        await shows(pilot, "round 24")
        for name, text in SCREENS.items():
            tabs = screen_of(pilot.app).splitlines()[1]  # type: ignore[arg-type]
            await pilot.click("#tabs", offset=(tabs.index(name), 0))
            await shows(pilot, text)


async def test_the_palette_opens_screens_and_gives_commands(socket_path: Path, program: Program) -> None:
    async with dashboard(socket_path).run_test(size=(100, 30)) as pilot:
        await shows(pilot, "round 24")
        await pilot.press("ctrl+p", *"peers")
        await shows(pilot, "who is here")
        await pilot.press("enter")
        await shows(pilot, SCREENS["Peers"])
        await pilot.press("ctrl+p", *"pause")
        await shows(pilot, "Pause or resume")
        await pilot.press("enter")
        await until(pilot, lambda: program.commands == ["pause"])


@pytest.mark.parametrize(("key", "command"), [("r", "leave at_once=False"), ("n", "leave at_once=True")])
async def test_l_asks_and_leaves(socket_path: Path, program: Program, key: str, command: str) -> None:
    async with dashboard(socket_path).run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "round 24")
        await pilot.press("l")
        await shows(pilot, "leave the run?", "after the round")
        assert program.commands == []
        await pilot.press(key)
        await shows(pilot, "leaves")
        assert program.commands == [command]


@pytest.mark.parametrize("key", ["escape", "q", "s", "l"])
async def test_one_may_stay_after_all(socket_path: Path, program: Program, key: str) -> None:
    async with dashboard(socket_path).run_test(size=(80, 24)) as pilot:
        await shows(pilot, "round 24")
        await pilot.press("l")
        await shows(pilot, "leave the run?")
        await pilot.press(key)
        await until(pilot, lambda: "leave the run?" not in screen_of(pilot.app))  # type: ignore[arg-type]
        assert pilot.app.is_running
    assert program.commands == []


@pytest.mark.parametrize("keys", ["4/dog p", "6fdog p"])
async def test_what_is_typed_in_one_go_reaches_the_line_that_its_first_keys_open(
    socket_path: Path, program: Program, keys: str
) -> None:
    async with dashboard(socket_path).run_test(size=(100, 24)) as pilot:
        await shows(pilot, "round 24")
        for character in keys:
            pilot.app.post_message(events.Key(_character_to_key(character), character))
        await until(pilot, lambda: isinstance(pilot.app.focused, Input) and pilot.app.focused.value == "dog p")
    assert program.commands == []


async def test_names_from_strangers_are_text_and_not_markup(socket_path: Path, program: Program) -> None:
    hostile = status()
    hostile.peers[1].name = "[/red][x"
    hostile.peers[2].name = "\x1b[2Jowl\r\n\x07\u202e"
    hostile.run.name = "[bold]run[/"
    hostile.phase.why = hostile.round_phase.why = "because [/] \x1b[31m"
    hostile.device.name = hostile.training.device = "gpu [0][/"
    hostile.log.add(sequence=10_000, at=1e300, level="ERROR", text="[/nope] \x1b]0;title\x07")
    program.show(hostile)
    for size in ((120, 40), (80, 24)):
        async with dashboard(socket_path).run_test(size=size) as pilot:
            await shows(pilot, "[bold]run[/", "because [/]")
            for key, text in (("1", "[bold]run[/"), ("2", "[/red][x"), ("3", "2.548"), ("4", "owl"), ("6", "[/nope]")):
                await pilot.press(key)
                await shows(pilot, text)
                assert not {"\x1b", "\x07", "\r", "\u202e"} & set(screen_of(pilot.app))  # type: ignore[arg-type]


async def test_any_size_and_a_storm_of_sizes_are_fine(socket_path: Path, program: Program) -> None:
    async with dashboard(socket_path).run_test(size=(1, 1)) as pilot:
        sizes = [(20, 5), (1, 40), (300, 1), (40, 12), (80, 24), (99, 39), (200, 60), (2, 2), (120, 40)]
        for number, size in enumerate(sizes):
            program.show(status(24 + number))
            await pilot.resize_terminal(*size)
        await shows(pilot, *SCREENS, "dogwood", "round 32")


async def test_what_to_do_about_a_lost_daemon_is_never_cut_off(
    folder: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "last_end", lambda _: f"the last one ended: {'so it did ' * 40}")
    path = folder / "a-long-name-of-a-folder".ljust(93 - len(str(folder)), "x") / "control.sock"  # as long as may be
    path.parent.mkdir()
    server = await ControlServer.start(path, program)
    async with dashboard(path).run_test(size=(80, 24)) as pilot:
        await shows(pilot, "round 24")
        await server.stop()
        await shows(pilot, "the daemon is gone, reconnecting… no daemon runs")
        assert "start one with: spes-peer join" in " ".join(screen_of(pilot.app).split())  # type: ignore[arg-type]


async def test_a_lost_daemon_is_waited_for_and_found_again(folder: Path, program: Program) -> None:
    async with dashboard(folder / "control.sock").run_test(size=(120, 40), notifications=True) as pilot:
        await shows(pilot, "no daemon runs on this state folder", "waiting for it…")
        server = await ControlServer.start(folder / "control.sock", program)
        await shows(pilot, "round 24")
        await server.stop()
        await shows(pilot, "the daemon is gone, reconnecting…", "step 13 of 20")
        await pilot.press("p")
        await shows(pilot, "no daemon runs")
        server = await ControlServer.start(folder / "control.sock", Program(status(30)))
        await shows(pilot, "round 30")
        await until(pilot, lambda: "reconnecting" not in screen_of(pilot.app))  # type: ignore[arg-type]
        await server.stop()


async def test_the_dashboard_ends_when_the_daemon_leaves(folder: Path, program: Program) -> None:
    app = dashboard(folder / "control.sock")
    async with app.run_test(size=(80, 24)) as pilot:
        async with served(program, folder):
            await shows(pilot, "round 24")
            program.status.phase.name = "leaving"
        await until(pilot, lambda: not app.is_running or app.return_value is not None)
    assert app.return_value == "the daemon has left the run"


def test_the_dashboard_loads_neither_torch_nor_hivemind_nor_libp2p() -> None:
    code = "import sys, tui.app; print(sorted({'torch', 'hivemind', 'libp2p', 'trio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_dumb_terminal_or_none_is_not_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = pty.openpty()
    with os.fdopen(reading, "rb", 0), os.fdopen(writing, "w") as terminal, (Path(os.devnull)).open() as nothing:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        assert tui.can_draw(terminal)
        assert not tui.can_draw(nothing)
        monkeypatch.setenv("TERM", "dumb")
        assert not tui.can_draw(terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", nothing)
        assert not tui.can_draw(terminal)


class Terminal:
    """A dashboard in a terminal of its own."""

    def __init__(self, socket_path: Path, before: str = "pass") -> None:
        self.controller, terminal = pty.openpty()
        self.settings = termios.tcgetattr(terminal)
        code = f"{before}\nimport pathlib, tui; print(tui.run(pathlib.Path({str(socket_path)!r})))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        self.terminal = terminal
        self.output = b""

    async def reads(self, text: bytes) -> None:
        """Read on until `text` was drawn."""
        os.set_blocking(self.controller, False)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while text not in self.output:
                try:
                    self.output += os.read(self.controller, 1 << 16)
                except BlockingIOError:
                    await asyncio.sleep(0.02)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for descriptor in (self.controller, self.terminal):
            os.close(descriptor)


NOISY = """\
import atexit, os, time, threading
atexit.register(os.write, 2, b"afterwards")
def say():
    while os.readlink("/proc/self/fd/2") != os.devnull:
        time.sleep(0.01)
    os.write(2, b"noise on the screen")
    os.write(1, b"said it")
threading.Thread(target=say, daemon=True).start()"""
"""What a library in C++ may do; it waits until the screen is there."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_gives_the_terminal_back(socket_path: Path, number: signal.Signals) -> None:
    terminal = Terminal(socket_path)
    try:
        await terminal.reads(b"alder")
        assert b"\x1b[?1049h" in terminal.output
        assert termios.tcgetattr(terminal.terminal) != terminal.settings
        os.kill(terminal.process.pid, number)
        await terminal.reads(f"ended by {number.name}".encode())
        assert b"\x1b[?1049l" in terminal.output
        assert await asyncio.to_thread(terminal.process.wait, DEADLINE_SECONDS) == 0
        assert termios.tcgetattr(terminal.terminal) == terminal.settings
    finally:
        terminal.close()


async def test_what_libraries_print_never_lands_on_the_screen_and_does_again_afterwards(socket_path: Path) -> None:
    terminal = Terminal(socket_path, NOISY)
    try:
        await terminal.reads(b"alder")
        await terminal.reads(b"said it")
        os.write(terminal.controller, b"q")
        await terminal.reads(b"afterwards")
        assert b"noise on the screen" not in terminal.output
    finally:
        terminal.close()


async def test_a_continue_signal_does_not_start_the_screen_anew(socket_path: Path) -> None:
    terminal = Terminal(socket_path)
    try:
        await terminal.reads(b"alder")
        os.kill(terminal.process.pid, signal.SIGCONT)  # a hangup is followed by one
        os.write(terminal.controller, b"?")
        await terminal.reads(b"open and close this help")
        assert terminal.output.count(b"\x1b[?1049h") == 1
    finally:
        terminal.close()


def test_a_terminal_that_vanishes_ends_the_dashboard(folder: Path) -> None:
    code = f"import pathlib, tui; tui.run(pathlib.Path({str(folder / 'control.sock')!r}))"
    pid, controller = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-c", code])
    deadline = time.monotonic() + DEADLINE_SECONDS
    output = b""
    try:
        while b"waiting for it" not in output:
            output += os.read(controller, 1 << 16)
        os.close(controller)
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert ended == (pid, 0)
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


async def test_a_picture_for_the_documentation_loads_nothing_from_elsewhere(socket_path: Path) -> None:
    svg = await draw(LiveFeed(socket_path, clock=lambda: NOW), look_seconds=4)
    assert svg.startswith("<svg")
    assert "alder" in svg
    assert "url(http" not in svg
    assert "@font-face" not in svg


async def test_the_cursor_explains_a_subset_by_key_and_by_mouse(socket_path: Path) -> None:
    async with dashboard(socket_path).run_test(size=(100, 24)) as pilot:
        await pilot.press("2")
        await shows(pilot, "Subset 0: experts 0, 1", "You train it, and nobody else does.")
        await pilot.press("down")
        await shows(pilot, "Subset 1: experts 2, 3", "birch trains it.")
        await pilot.press("end", "down")
        await shows(pilot, "Subset 3: experts 6, 7", "dogwood trains it.")
        await pilot.press("up", "left_square_bracket")
        await shows(pilot, "Subset 1: experts 2, 3")
        row = next(y for y, line in enumerate(screen_of(pilot.app).splitlines()) if "cedar" in line)  # type: ignore[arg-type]
        await pilot.click(offset=(20, row))
        await shows(pilot, "Subset 2: experts 4, 5", "cedar trains it.")


async def test_the_cursor_goes_through_a_field_of_many_subsets_and_m_changes_its_colours(
    socket_path: Path, program: Program
) -> None:
    large = status()
    del large.subsets[:]
    for number in range(400):
        large.subsets.add(subset=number, experts=[number], rounds_trained=number)
    program.show(large)
    async with dashboard(socket_path).run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await shows(pilot, "Subset 0: expert 0 of every layer.", "It was never trained.")
        await pilot.press("right", "right")
        await shows(pilot, "Subset 2: ")
        await pilot.press("end")
        await shows(pilot, "Subset 399: ", " 399·", "colours: owners", "nobody 400")
        await pilot.press("m")
        await shows(pilot, "colours: rounds trained")
        await pilot.press("m")
        await shows(pilot, "colours: used by the router")
        lines = screen_of(pilot.app).splitlines()  # type: ignore[arg-type]
        row = next(y for y, line in enumerate(lines) if " 397·" in line)
        await pilot.click(offset=(lines[row].index("397"), row))
        await shows(pilot, "Subset 397: ")
        await pilot.press("home")
        await shows(pilot, "Subset 0: ", "  0·")
