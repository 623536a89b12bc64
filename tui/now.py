"""What happens now: this peer's phase and the round's, whom each waits for, until when and why, and how far it is."""

from textual.content import Content

from spes_peer.wire.control_pb2 import Phase, Progress
from tui import figures
from tui.chart import Part, bar, stacked_bar
from tui.look import BOLD, DIM, FAINT, PARTS, PHASES, SELF, SPEED, WARNING, safe
from tui.memory import View
from tui.panel import Drawing, Panel

_LABEL = 7
_RUN_ID_CHARACTERS = 8
_UNITS = {"bytes": "B"}
_FEW_COLUMNS = 60
_ROOMY = 30
"""Lines of a screen on which nothing needs to be left out."""


class NowPanel(Panel):
    TITLE = "now"
    TAKES_FOCUS = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        lines = now_lines(view, width, is_roomy=self.screen.size.height >= _ROOMY)
        return Drawing(Content("\n").join(lines), subtitle=_run_id(view))


def _run_id(view: View) -> str:
    run_id = safe(view.status.run.run_id[:_RUN_ID_CHARACTERS])
    return f"run {run_id}" if run_id.isalnum() else ""


def now_lines(view: View, width: int, is_roomy: bool = True) -> list[Content]:
    """Lines of at most `width` cells."""
    status = view.status
    lines = _folded(_phase(view), width)
    if status.HasField("progress") and status.progress.what:
        lines.append(_progress(view, status.progress, width))
    if status.round_phase.name:
        lines += _folded(_round_phase(view), width)
    parts = _parts(view)
    if status.training.num_steps and (is_roomy or not parts):
        lines.append(_steps(view, width))
    if parts:
        lines.append(_labelled("parts", stacked_bar(parts, width - _LABEL)))
    lines.append(_whole_run(view, width))
    return [line.truncate(width, ellipsis=True) for line in lines]


def _labelled(label: str, content: Content) -> Content:
    return Content.assemble((label.ljust(_LABEL), DIM), content)


def _phase(view: View) -> Content:
    """`training  0:06, 0:47 left  step 13 of 20 on its own part of the text`."""
    status, phase = view.status, view.status.phase
    colour = PHASES.get(phase.name, SPEED)
    pausing = "  pauses after this round" if status.is_paused and phase.name != "paused" else ""
    why = _why(view, phase)
    if status.pause_why and status.pause_why not in phase.why:
        why = Content.assemble(why, "  " if why else "", (safe(status.pause_why), WARNING))
    return Content.assemble(
        ("you".ljust(_LABEL), DIM),
        (_phase_name(phase), f"bold {colour}"),
        *_times(view, phase),
        (pausing, WARNING),
        "  ",
        why,
    )


def _round_phase(view: View) -> Content:
    """What the coordinator says of the round; aligned with this peer's own phase."""
    phase = view.status.round_phase
    name = (_phase_name(phase), BOLD)
    return _labelled("round", Content.assemble(name, *_times(view, phase), "  ", _why(view, phase)))


def _phase_name(phase: Phase) -> str:
    return safe(phase.name, 16) or "unknown"


def _times(view: View, phase: Phase) -> list[tuple[str, str]]:
    """For how long already, and for how long still."""
    parts = [(f"  {figures.since(phase.since_at, view.now)}", DIM)]
    if phase.until_at > 0:
        left = phase.until_at - view.now
        late = figures.duration(-left)
        parts += [(f"  {figures.duration(left)} left", "")] if left >= 0 else [(f"  {late} late", WARNING)]
    return parts


def _why(view: View, phase: Phase) -> Content:
    who = f"waits for {view.someone(list(phase.waiting_for))}" if phase.waiting_for else ""
    return Content.assemble((who, ""), (": " if who and phase.why else "", DIM), (safe(phase.why), DIM))


def _folded(line: Content, width: int) -> list[Content]:
    """The line, or two where it does not fit."""
    first, *rest = line.wrap(width)
    return [first, Content(" ").join([Content(" " * (_LABEL - 1)), *rest])] if rest else [first]


def _progress(view: View, progress: Progress, width: int) -> Content:
    """What takes its time, how far it is, how fast it goes and how long it will take."""
    unit = _UNITS.get(progress.unit, f" {safe(progress.unit, 8)}")
    rate = figures.ratio(progress.done, view.now - progress.since_at)
    left = figures.ratio(progress.whole - progress.done, rate)
    words = [f"{figures.count(progress.done)}{f' of {figures.count(progress.whole)}' if progress.whole else ''}{unit}"]
    words += [f"{figures.count(rate)}{unit}/s"] if rate > 0 else []
    words += [f"{figures.duration(left)} left"] if progress.whole and rate > 0 else []
    start = Content.assemble((" " * _LABEL, ""), (safe(progress.what, 32), BOLD), "  ")
    end = Content.styled(f"  {', '.join(words)}", DIM)
    room = width - start.cell_length - end.cell_length
    is_known = progress.whole > 0 and room >= _LABEL
    return Content.assemble(
        start, bar(figures.share(progress.done, progress.whole), room, SELF) if is_known else "", end
    )


def _steps(view: View, width: int) -> Content:
    training = view.status.training
    end = f"  {training.steps_done} of {training.num_steps} steps"
    room = max(0, width - _LABEL - len(end))
    part = figures.share(training.steps_done, training.num_steps)
    return _labelled("steps", Content.assemble(bar(part, room, SELF), (end, DIM)))


def _parts(view: View) -> list[Part]:
    return [Part(safe(part.name, 12), part.seconds, PARTS.get(part.name, FAINT)) for part in view.status.parts]


def _whole_run(view: View, width: int) -> Content:
    """How much of the run is done, in steps."""
    status = view.status
    total = status.run.total_steps
    if not total:
        what = f"step {status.step:,}" if status.run.run_id else "comes with the manifest of the run"
        return _labelled("run", Content.styled(what, DIM))
    end = f"  {100 * figures.share(status.step, total):.0f} %"
    end = f"  {status.step:,} of {total:,} steps,{end[1:]}" if width >= _FEW_COLUMNS else ""
    room = max(0, width - _LABEL - len(end))
    return _labelled("run", Content.assemble(bar(figures.share(status.step, total), room, SELF), (end, DIM)))
