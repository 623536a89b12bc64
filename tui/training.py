"""How learning goes: this peer's steps, loss over the rounds, and speed."""

import math

from textual.content import Content

from spes_peer.wire.control_pb2 import Status
from tui import figures
from tui.chart import bar, line_chart, sparkline
from tui.look import BOLD, DIM, HELD_OUT, SELF, SPEED, TRAINING, safe
from tui.memory import View
from tui.panel import Drawing, Panel

_LABEL = 10


class TrainingPanel(Panel):
    TITLE = "training"

    def draw(self, view: View, width: int, height: int) -> Drawing:
        lines = [_steps(view.status, width), _losses(view.status, width)]
        speeds = [_own_speed(view, width), _everybodys_speed(view.status, width)]
        speeds = speeds[: max(0, height - 2)]
        chart_height = height - len(lines) - len(speeds)
        if chart_height >= 2:
            lines += _chart(view, width, chart_height)
        return Drawing(Content("\n").join(lines + speeds), subtitle=_device(view.status))


def _device(status: Status) -> str:
    training = status.training
    if not training.device:
        return ""
    # a border's title is markup, and a device's name comes from a driver
    device = safe(training.device, 40).replace("[", "(").replace("\\", "/")
    return device + (f" · {figures.size(training.memory_bytes)}B" if training.memory_bytes else "")


def _steps(status: Status, width: int) -> Content:
    training = status.training
    if not training.num_steps:
        return Content.assemble(("steps".ljust(_LABEL), DIM), ("no round to train in yet", DIM))
    done = f"{training.steps_done}/{training.num_steps}"
    part = figures.share(training.steps_done, training.num_steps)
    room = max(0, width - _LABEL - len(done) - 2)
    return Content.assemble(("steps".ljust(_LABEL), DIM), (done, BOLD), "  ", bar(part, room, SELF))


def newest_held_out(status: Status) -> float:
    """The held-out loss of the newest round that has one; nan if none has."""
    known = [value for value in map(_known, (closed.held_out_loss for closed in status.rounds)) if math.isfinite(value)]
    return known[-1] if known else math.nan


def _known(loss: float) -> float:
    return loss if loss >= 0 else math.nan


def _losses(status: Status, width: int) -> Content:
    held_out, start = newest_held_out(status), _known(status.held_out_loss_start)
    both = Content.assemble(
        ("training".ljust(_LABEL), TRAINING),
        (_training_loss(status), f"bold {TRAINING}"),
        ("   held-out ", HELD_OUT),
        (figures.loss(held_out), f"bold {HELD_OUT}"),
    )
    arrow = "▼" if held_out <= start else "▲"
    change = Content.styled(f"  {arrow} from {figures.loss(start)}", DIM)
    is_shown = math.isfinite(start - held_out) and both.cell_length + change.cell_length <= width
    return both + change if is_shown else both


def _training_loss(status: Status) -> str:
    if status.training.loss > 0:
        return figures.loss(status.training.loss)
    return figures.loss(status.rounds[-1].train_loss if status.rounds else math.nan)


def _chart(view: View, width: int, height: int) -> list[Content]:
    status = view.status
    if not status.rounds:
        message = [Content.styled(view.before_the_first_round[:width], DIM)]
        return [Content()] * ((height - 1) // 2) + message + [Content()] * (height - 1 - (height - 1) // 2)
    held_out = [_known(status.held_out_loss_start), *(_known(closed.held_out_loss) for closed in status.rounds)]
    trained = [math.nan, *(closed.train_loss or math.nan for closed in status.rounds)]
    return line_chart([(held_out, HELD_OUT), (trained, TRAINING)], width, height)


def _own_speed(view: View, width: int) -> Content:
    speed = view.status.training.tokens_per_second
    return _speed("this peer", speed, sparkline(view.speeds, width - _LABEL - 14, SPEED))


def _everybodys_speed(status: Status, width: int) -> Content:
    speeds = [closed.tokens / closed.seconds if closed.seconds > 0 else math.nan for closed in status.rounds]
    newest = speeds[-1] if speeds else math.nan
    return _speed("everybody", newest, sparkline(speeds, width - _LABEL - 14, SPEED))


def _speed(label: str, tokens_per_second: float, line: Content) -> Content:
    figure = figures.count(tokens_per_second) if tokens_per_second > 0 else figures.NONE
    return Content.assemble((label.ljust(_LABEL), DIM), (figure.rjust(5), BOLD), (" tok/s  ", DIM), line)
