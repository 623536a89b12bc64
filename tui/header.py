"""The run in a few lines: what it is, how far it is, what happens now, what it waits for and until when, and why."""

from textual import events
from textual.content import Content
from textual.widgets import Static

from spes_peer.wire.control_pb2 import Phase, Service
from tui import figures
from tui.chart import bar
from tui.look import BOLD, DIM, FAINT, PHASES, SELF, SPEED, WARNING, safe
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


def header_lines(view: View, width: int, max_lines: int) -> list[Content]:
    """At most `max_lines` lines of at most `width` cells."""
    status = view.status
    if width < _NARROW or max_lines < 4:
        lines = [_short_run(view, width), _phase(view), _why(view, status.phase)]
    else:
        lines = [_run(view, width), _progress(view, width), *_folded(_phase_with_why(view), width)]
        if status.round_phase.name:
            lines += _folded(_round_phase(view), width)
    return [line.truncate(width, ellipsis=True) for line in lines[:max_lines]]


def machine_lines(view: View, width: int, max_lines: int) -> list[Content]:
    """What is wrong with this machine, and how the daemon's own processes are; where there is no room, only those that
    do not run."""
    services, lines = list(view.status.services), []
    has_room = width >= _NARROW and max_lines >= 4
    if shown := [service for service in services if has_room or service.state != "running"]:
        lines.append(Content.styled("  ·  ", DIM).join([_service(view, service) for service in shown]))
    return [line.truncate(width, ellipsis=True) for line in lines]


def _service(view: View, service: Service) -> Content:
    is_well = service.state == "running"
    words = [safe(service.name, 16), "" if is_well else safe(service.state, 16)]
    words.append(figures.since(service.since_at, view.now))
    why = f" ({safe(service.why)})" if service.why else ""
    return Content.assemble((" ".join(filter(None, words)), DIM if is_well else WARNING), (why, DIM))


def _run(view: View, width: int) -> Content:
    status = view.status
    left = Content.assemble(*_name(view), (safe(status.run.model), DIM))
    up = figures.since(status.started_at, view.now)
    reach = "" if status.reachability == "nobody yet" else safe(status.reachability, 16)
    facts = " · ".join(word for word in (reach, _disk(view), f"up {up}" if up else "") if word)
    right = Content.assemble((safe(status.name, 24) or view.name(status.peer_id), f"bold {SELF}"), (f"  {facts}", DIM))
    room = max(0, width - right.cell_length - 2)
    return Content.assemble(left.truncate(room, ellipsis=True, pad=True), "  ", right)


def _disk(view: View) -> str:
    used, limit = view.status.disk_used_bytes, view.status.disk_limit_bytes
    return f"disk {figures.size(used)}{f' of {figures.size(limit)}' if limit else ''}" if used else ""


def _name(view: View) -> list[tuple[str, str]]:
    run = view.status.run
    if not run.run_id:
        return [("no run yet  ", BOLD)]
    return [(safe(run.name, 32) or "unnamed", BOLD), (f"  {safe(run.run_id[:_RUN_ID_CHARACTERS])}  ", FAINT)]


def _progress(view: View, width: int) -> Content:
    status = view.status
    total = status.run.total_steps
    words = f"step {status.step:,} of {total:,}" if total else f"step {status.step:,}"
    return _with_bar(view, Content.assemble((f"round {status.round}", BOLD), (f"  {words}  ", DIM)), width)


def _short_run(view: View, width: int) -> Content:
    status = view.status
    name = (safe(status.run.name, 16) or "unnamed") if status.run.run_id else "no run yet"
    return _with_bar(view, Content.assemble((name, BOLD), (f"  round {status.round}  ", DIM)), width)


def _with_bar(view: View, start: Content, width: int) -> Content:
    """The rest of the line shows how much of the run is done."""
    part = figures.share(view.status.step, view.status.run.total_steps)
    percent = f"  {100 * part:.0f} %"
    return Content.assemble(start, bar(part, width - start.cell_length - len(percent), SELF), (percent, DIM))


def _phase(view: View) -> Content:
    phase = view.status.phase
    colour = PHASES.get(phase.name, SPEED)
    return Content.assemble(("● ", colour), (_phase_name(phase), f"bold {colour}"), *_times(view, phase))


def _phase_with_why(view: View) -> Content:
    pausing = "  pauses after this round" if view.status.is_paused and view.status.phase.name != "paused" else ""
    return Content.assemble(_phase(view), (pausing, WARNING), "  ", _why(view, view.status.phase))


def _round_phase(view: View) -> Content:
    """What the coordinator says; aligned with this peer's own phase."""
    phase = view.status.round_phase
    return Content.assemble(("★ ", WARNING), (_phase_name(phase), BOLD), *_times(view, phase), "  ", _why(view, phase))


def _phase_name(phase: Phase) -> str:
    return (safe(phase.name, 16) or "unknown").ljust(_PHASE_CHARACTERS)


def _times(view: View, phase: Phase) -> list[tuple[str, str]]:
    """For how long already, and for how long still."""
    parts = [(f" {figures.since(phase.since_at, view.now):>6}", DIM)]
    if phase.until_at > 0:
        left = phase.until_at - view.now
        late = figures.duration(-left)
        parts += [(f"  {figures.duration(left)}", BOLD), (" left", DIM)] if left >= 0 else [(f"  {late} late", WARNING)]
    return parts


def _why(view: View, phase: Phase) -> Content:
    who = f"waits for {view.someone(list(phase.waiting_for))}" if phase.waiting_for else ""
    return Content.assemble((who, ""), (": " if who and phase.why else "", DIM), (safe(phase.why), DIM))


def _folded(line: Content, width: int) -> list[Content]:
    """The line, or two where it does not fit."""
    first, *rest = line.wrap(width)
    return [first, Content("  ").join([Content(), *rest])] if rest else [first]
