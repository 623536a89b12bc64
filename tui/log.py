"""The daemon's newest log lines: levels, filter, follow, search, copy."""

import functools
import re
from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from spes_peer.wire.control_pb2 import LogLine
from tui import figures
from tui.lines import Lines
from tui.look import BOLD, CHIP_INK, DIM, ERROR, FAINT, SELF, WARNING, safe
from tui.memory import View
from tui.page import Page

_COLOURS = {"WARNING": WARNING, "ERROR": ERROR, "CRITICAL": ERROR}
_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("all levels", frozenset()),
    ("warnings and errors", frozenset({"WARNING", "ERROR", "CRITICAL"})),
    ("errors", frozenset({"ERROR", "CRITICAL"})),
)
_KEY = re.compile(r"\b[a-z_]+=")
_MOST_CHARACTERS = 400
_MOST_COPIED_CHARACTERS = 70_000
"""Terminals take some 100,000 bytes of base64 into the clipboard."""


class LogPage(Page):
    NAME = "Log"
    MEANING = "what happened, line by line"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask('search')", "search", key_display="/"),
        Binding("f", "ask('filter')", "filter"),
        Binding("v", "change_level", "level"),
        Binding("t", "follow", "follow"),
        Binding("c", "copy", "copy"),
        Binding("n", "find(-1)", show=False),
        Binding("N", "find(1)", show=False),
        Binding("escape", "clear", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._view: View | None = None
        self._shown: list[LogLine] = []
        self._level = 0
        self._asked = ""  # for what the input is
        self._words = {"search": "", "filter": ""}
        self._drawn: object = None
        self._found: tuple[int, int] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="log-facts", markup=False)
        yield Lines()
        yield Input(id="log-input", compact=True)

    def on_mount(self) -> None:
        self.query_one(Input).display = False

    @property
    def first(self) -> Widget:
        return self._lines

    @property
    def _lines(self) -> Lines:
        return self.query_one(Lines)

    def show(self, view: View) -> None:
        self._view = view
        newest = (len(view.log), view.log[-1].sequence, view.log[-1].at) if view.log else None
        mark = (newest, self._level, *self._words.values(), self._found)
        if mark != self._drawn:
            self._drawn = mark
            self._put(view.log)
        self._tell(len(view.log))

    def _put(self, log: Sequence[LogLine]) -> None:
        levels, word = _LEVELS[self._level][1], self._words["filter"].lower()
        self._shown = [line for line in log if _passes(line, levels, word)]
        if not self._shown:
            text = "no line passes; v and f change what does" if log else "nothing has happened yet"
            self._lines.put([None], [Content.styled(text, DIM)])
            return
        search = self._words["search"]
        keys = [_key_of(line) for line in self._shown]
        lines = [
            _line(line.at, line.level, line.text, search, key == self._found)
            for line, key in zip(self._shown, keys, strict=True)
        ]
        self._lines.put(keys, lines)

    def _tell(self, num_lines: int) -> None:
        """What is shown of how much."""
        parts: list[str | tuple[str, str]] = [
            (f"{len(self._shown):,} of {num_lines:,} lines", DIM),
            (f"  {_LEVELS[self._level][0]}", DIM if self._level == 0 else WARNING),
        ]
        for label, word in (("with", self._words["filter"]), ("search", self._words["search"])):
            if word:
                parts += [(f"  {label} ", DIM), (safe(word, 24), BOLD)]
        if self._words["search"]:
            parts.append(("  n older, N newer", DIM))
        parts.append(("  following", SELF) if self._lines.follows else ("  not following", WARNING))
        self.query_one("#log-facts", Static).update(Content.assemble(*parts), layout=False)

    def _show_again(self) -> None:
        if self._view is not None:
            self.show(self._view)

    # keys

    def action_change_level(self) -> None:
        self._level = (self._level + 1) % len(_LEVELS)
        self._show_again()

    def action_follow(self) -> None:
        self._lines.follow(not self._lines.follows)
        self._show_again()

    def action_ask(self, what: str) -> None:
        """Open the line in which one types what to look for."""
        self._asked = what
        line = self.query_one(Input)
        line.placeholder = "search for…  enter finds, esc clears" if what == "search" else "lines with…  esc clears"
        line.display = True
        line.value = self._words[what]
        self.screen.set_focus(line)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if self._asked:
            self._words[self._asked] = event.value[:_MOST_CHARACTERS]
            self._show_again()

    @on(Input.Submitted)
    def _entered(self) -> None:
        what = self._close_input()
        if what == "search":
            self._found = None
            self.action_find(-1)

    def action_clear(self) -> None:
        """Close the input and forget what was typed; without one, forget all."""
        what = self._close_input()
        for name in [what] if what else list(self._words):
            self._words[name] = ""
        self._found = None
        self._show_again()

    def _close_input(self) -> str:
        what, self._asked = self._asked, ""
        self.query_one(Input).display = False
        self.screen.set_focus(self._lines)
        return what

    def action_find(self, by: int) -> None:
        """Go to the next line above or below that has what is searched for."""
        word = self._words["search"].lower()
        matches = [number for number, line in enumerate(self._shown) if word and word in line.text.lower()]
        if not matches:
            self.app.notify(f"no line has {safe(word, 40)}" if word else "search with / first", markup=False)
            return
        here = next((n for n, line in enumerate(self._shown) if _key_of(line) == self._found), len(self._shown))
        above, below = [n for n in matches if n < here], [n for n in matches if n > here]
        number = (above or matches)[-1] if by < 0 else (below or matches)[0]
        self._found = _key_of(self._shown[number])
        self._show_again()
        self._lines.go_to(number)
        self._show_again()

    def action_copy(self) -> None:
        """Put the lines that are shown into the terminal's clipboard, the newest of them where they are many."""
        copied: list[str] = []
        room = _MOST_COPIED_CHARACTERS
        for line in reversed(self._shown):
            text = f"{figures.clock(line.at)} {line.level} {safe(line.text, _MOST_CHARACTERS)}"
            room -= len(text) + 1
            if room < 0:
                break
            copied.append(text)
        self.app.copy_to_clipboard("\n".join(reversed(copied)))
        newest = "the newest " if len(copied) < len(self._shown) else ""
        self.app.notify(f"copied {newest}{len(copied)} lines, if your terminal allows it", markup=False)


def _key_of(line: LogLine) -> tuple[int, int]:
    return line.sequence, int(line.at) if abs(line.at) < 1e12 else 0


def _passes(line: LogLine, levels: frozenset[str], word: str) -> bool:
    return (not levels or line.level in levels) and (not word or word in line.text.lower())


@functools.lru_cache(maxsize=4096)
def _line(at: float, level: str, text: str, search: str, is_found: bool) -> Content:
    colour = _COLOURS.get(level, "")
    content = Content.assemble((figures.clock(at), FAINT), "  ", (safe(text, _MOST_CHARACTERS), colour))
    if not colour:
        content = content.highlight_regex(_KEY, style=DIM)
    if search:
        word = re.compile(re.escape(search), re.IGNORECASE)
        content = content.highlight_regex(word, style=f"{CHIP_INK} on {SELF if is_found else WARNING}")
    return content
