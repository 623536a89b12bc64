"""The rounds of the run, newest first: what each brought, how long it took and with what, who was late."""

import re
import statistics
from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from spes_peer.wire.control_pb2 import RoundStatus
from tui import figures, parts
from tui.look import BOLD, DIM, FAINT, HELD_OUT, SELF, TRAINING, WARNING, safe
from tui.memory import View
from tui.page import Page
from tui.round_detail import RoundDetail
from tui.rows import Field, Rows

_SCALE_MEDIANS = 3
"""One very long round must not make all others unreadably short: bars are cut at so many ordinary rounds."""
_FOOT_FROM_HEIGHT = 12
_ONE_LINE = 1000
_SHARE = re.compile(r"\d{1,3}(\.\d)? ?%")


class RoundsPage(Page):
    """A list, or one of its rounds opened."""

    NAME = "Rounds"
    MEANING = "what every round brought, how long it took, and who was late"
    DEFAULT_CSS = """
    RoundsPage .foot { height: auto; border-top: solid $line; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open the round"),
        Binding("escape,backspace", "close", "back", key_display="esc"),
        Binding("o", "turn(1)", "older"),
        Binding("n", "turn(-1)", "newer"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._view: View | None = None
        self._opened: int | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel list") as frame:
            frame.border_title = "rounds"
            yield Rows(follows_top=True)
            yield Static(classes="foot", markup=False)
        yield RoundDetail()

    def on_mount(self) -> None:
        self._arrange()

    @property
    def first(self) -> Widget:
        return self.query_one(RoundDetail).list if self._opened is not None else self._list

    @property
    def _list(self) -> Rows[RoundStatus]:
        return self.query_one(".list Rows", Rows)

    def show(self, view: View) -> None:
        self._view = view
        rounds = rounds_of(view)
        self._list.put(
            round_fields(view, rounds),
            rounds,
            [one.round for one in rounds],
            instead=Content.styled(view.before_the_first_round, DIM),
        )
        self.query_one(".list").border_subtitle = f"{len(view.status.rounds)} closed" if view.status.rounds else ""
        self._show_foot()
        self._show_opened()

    @on(Rows.Moved)
    def _show_foot(self) -> None:
        foot, shown = self.query_one(".foot", Static), self._list.current
        foot.display = shown is not None and self.size.height >= _FOOT_FROM_HEIGHT
        if shown is not None and self._view is not None:
            scale = scale_of(rounds_of(self._view))
            foot.update(Content("\n").join(foot_lines(self._view, shown, scale, max(1, self.content_size.width - 4))))

    def _show_opened(self) -> None:
        if self._opened is None or self._view is None:
            return
        shown = next((one for one in rounds_of(self._view) if one.round == self._opened), None)
        if shown is None:  # it was forgotten, or the chain has another one now
            self.action_close()
        else:
            self.query_one(RoundDetail).show(self._view, shown, is_open=shown.round == open_round(self._view))

    def on_resize(self, _event: events.Resize) -> None:
        self._show_foot()

    # keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "open":
            return self._opened is None
        return self._opened is not None if action in ("close", "turn") else True

    @on(Rows.Opened)
    def action_open(self) -> None:
        if self._opened is None and (chosen := self._list.current) is not None:
            self._opened = chosen.round
            self._arrange()

    def action_close(self) -> None:
        self._opened = None
        self._arrange()

    def action_turn(self, by: int) -> None:
        """Open the next round in the list instead."""
        self._list.action_step(by)
        if (chosen := self._list.current) is not None:
            self._opened = chosen.round
            self._show_opened()

    def _arrange(self) -> None:
        had_focus = self.has_focus_within
        self.query_one(".list").display = self._opened is None
        self.query_one(RoundDetail).display = self._opened is not None
        self._show_opened()
        if had_focus:
            self.screen.set_focus(self.first)
        self.refresh_bindings()


def open_round(view: View) -> int:
    """The round that is open and of which there is something to show; 0 is none."""
    status = view.status
    is_known = bool(status.rounds) and status.rounds[-1].round >= status.round
    return status.round if status.parts and not is_known else 0


def rounds_of(view: View) -> list[RoundStatus]:
    """Newest first, the open one before all."""
    closed = list(reversed(view.status.rounds))
    if number := open_round(view):
        so_far = parts.seconds_of(view.status.parts)
        closed.insert(0, RoundStatus(round=number, parts=view.status.parts, seconds=so_far, held_out_loss=-1))
    return closed


def scale_of(rounds: Sequence[RoundStatus]) -> float:
    """The seconds that a whole bar stands for."""
    seconds = [one for one in (_length(round_) for round_ in rounds) if one > 0]
    return min(max(seconds), _SCALE_MEDIANS * statistics.median(seconds)) if seconds else 1.0


def _length(round_: RoundStatus) -> float:
    """The longer of what the run took and what this daemon spent."""
    spent = parts.seconds_of(round_.parts)
    return max(spent, round_.seconds) if 0 < round_.seconds < float("inf") else spent


def round_fields(view: View, rounds: Sequence[RoundStatus]) -> list[Field[RoundStatus]]:
    scale, number = scale_of(rounds), open_round(view)

    def closed(text: str, round_: RoundStatus, colour: str = "") -> Content:
        return Content.styled("" if round_.round == number else text, colour)

    return [
        Field("round", 6, lambda one, _: _number(one, number), is_right=True),
        Field("began", 8, lambda one, _: _began(one, number), rank=9),
        Field("took", 6, lambda one, _: Content(figures.brief(one.seconds)), rank=3, is_right=True),
        Field("timeline", 14, lambda one, width: _timeline(one, scale, width), rank=4, most=120),
        Field("tokens", 6, lambda one, _: closed(figures.count(one.tokens), one), rank=5, is_right=True),
        Field("loss", 6, lambda one, _: closed(_loss(one.train_loss), one, TRAINING), rank=2, is_right=True),
        Field("held-out", 8, lambda one, _: closed(figures.loss(one.held_out_loss), one, HELD_OUT), is_right=True),
        Field("peers", 5, lambda one, _: closed(str(one.num_contributors), one), rank=6, is_right=True),
        Field("bytes", 6, lambda one, _: closed(_moved(one), one), rank=8, is_right=True),
        Field("late", 7, lambda one, _: Content.styled(late(view, one), WARNING), rank=1, most=18),
        Field("merge", 6, lambda one, _: Content.styled(_merge(one), DIM), rank=10, is_right=True),
    ]


def _number(round_: RoundStatus, open_number: int) -> Content:
    return Content.styled(str(round_.round), f"{BOLD} {SELF}" if round_.round == open_number else BOLD)


def _began(round_: RoundStatus, open_number: int) -> Content:
    if round_.round == open_number:
        return Content.styled("open", SELF)
    return Content.styled(figures.clock(round_.opened_at) if round_.opened_at > 0 else "", DIM)


def _timeline(round_: RoundStatus, scale: float, width: int) -> Content:
    if round_.parts:
        return parts.parts_bar(round_.parts, scale, width)
    return Content.styled("─" * round(figures.share(round_.seconds, scale) * width), FAINT)


def _loss(value: float) -> str:
    """Nobody ever trained to nought: it stands for no training at all."""
    return figures.loss(value or -1)


def _moved(round_: RoundStatus) -> str:
    """By this machine, both ways."""
    total = sum(one.bytes_sent + one.bytes_received for one in round_.traffic)
    return figures.size(total) if total else figures.NONE


def _merge(round_: RoundStatus) -> str:
    """How much of one there was: the words are for the foot."""
    share = _SHARE.search(round_.merge)
    return share.group() if share else "yes" if round_.merge else ""


def late(view: View, round_: RoundStatus) -> str:
    """Who had a place in a round, and nothing of whom is in its record."""
    return view.someone([one.peer_id for one in round_.contributions if one.is_missing], 2)


def foot_lines(view: View, round_: RoundStatus, scale: float, width: int) -> list[Content]:
    """The round under the cursor in words, and what the bars mean."""
    facts = [Content.assemble((f"{round_.round}", BOLD), ("  so far" if round_.round == open_round(view) else "", DIM))]
    if missing := late(view, round_):
        facts.append(Content.assemble(("late: ", DIM), (missing, WARNING)))
    if round_.parts:
        facts.append(parts.in_words(round_.parts, _ONE_LINE)[0])
    else:
        facts.append(Content.styled("what this machine did in it is not known", DIM))
    if round_.merge:
        facts.append(Content.assemble(("merge: ", DIM), safe(round_.merge)))
    words = Content("  ").join(facts)
    legend = Content.assemble(parts.legend(), (f"   a whole bar is {figures.brief(scale)}", FAINT))
    return [words.truncate(width, ellipsis=True), legend.truncate(width, ellipsis=True)]
