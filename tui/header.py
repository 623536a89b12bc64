"""The line above every screen: the run and its round, this peer and what it does; below it what is wrong."""

from textual import events
from textual.content import Content
from textual.widgets import Static

from spes_peer.wire.control_pb2 import Phase
from tui import figures
from tui.look import BOLD, DIM, PHASES, SELF, SPEED, WARNING, safe
from tui.memory import View

_RUN_ID_CHARACTERS = 8
_NARROW = 70
_PHASE_CHARACTERS = len("contributing")
_MOST_TROUBLES = 2
_LOW = 12
_SHORTEST_NAME = 8


class Header(Static):
    """One line on every screen, and a few more when something is wrong with this machine."""

    def __init__(self) -> None:
        super().__init__(Content.styled("connecting to the daemon…", DIM), id="header", markup=False)
        self._view: View | None = None

    def show(self, view: View) -> None:
        self._view = view
        width = max(1, self.content_size.width)
        most_troubles = _MOST_TROUBLES if self.app.size.height >= _LOW else 1
        lines = [top_line(view, width), *trouble_lines(view, width, most_troubles)]
        self.update(Content("\n").join(lines), layout=len(lines) != self.content_size.height)

    def on_resize(self, _event: events.Resize) -> None:
        if self._view is not None:
            self.show(self._view)


def top_line(view: View, width: int) -> Content:
    """The run and its round at the left, this peer and what it does at the right."""
    status, phase = view.status, view.status.phase
    left = Content.assemble(*_name(view), (f"round {status.round}" if status.run.run_id else "", DIM))
    right = _phase_in_short(view, phase)
    named = Content.assemble((view.name(status.peer_id), f"bold {SELF}"), "  ", right)
    if left.cell_length + named.cell_length + 2 <= width:
        right = named
    room = width - right.cell_length - 2
    if room < _SHORTEST_NAME:
        return right.truncate(width, ellipsis=True)
    return Content.assemble(left.truncate(room, ellipsis=True, pad=True), "  ", right)


def _phase_in_short(view: View, phase: Phase) -> Content:
    colour = PHASES.get(phase.name, SPEED)
    left = phase.until_at - view.now
    times: tuple[str, str] = (f" {figures.since(phase.since_at, view.now)}", DIM)
    if phase.until_at > 0:
        times = (f" {figures.duration(left)} left", DIM) if left >= 0 else (f" {figures.duration(-left)} late", WARNING)
    pausing = " pausing" if view.status.is_paused and phase.name != "paused" else ""
    return Content.assemble(
        ("● ", colour), (safe(phase.name, 16) or "unknown", f"bold {colour}"), times, (pausing, WARNING)
    )


def trouble_lines(view: View, width: int, most: int) -> list[Content]:
    """What is wrong with this machine now, each for its owner."""
    troubles = list(view.status.troubles)
    lines = [Content.styled(f"▲ {safe(trouble)}", WARNING) for trouble in troubles[:most]]
    if len(troubles) > most:
        lines.append(Content.styled(f"▲ and {len(troubles) - most} more", WARNING))
    return [line.truncate(width, ellipsis=True) for line in lines]


def _name(view: View) -> list[tuple[str, str]]:
    run = view.status.run
    if not run.run_id:
        return [("no run yet  ", BOLD)]
    return [(safe(run.name, 32) or "unnamed", BOLD), ("  ", "")]
