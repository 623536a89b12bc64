"""How learning goes: loss, speed and traffic as plots, each below its newest figures."""

import math

from textual.content import Content

from spes_peer.wire.control_pb2 import RoundStatus, Status
from tui import figures
from tui.look import DIM, HELD_OUT, SELF, SPEED, TRAINING
from tui.memory import View
from tui.panel import Drawing, Panel
from tui.plot import Axis, Line, plot

_FEWEST_ROUNDS = 4.0
_ROUNDS = Axis(lambda value: f"{value:.0f}", is_whole=True, min_span=_FEWEST_ROUNDS)
_AGO = Axis(lambda seconds: "now" if seconds > -1 else f"-{figures.duration(-seconds)}", (0.0,), min_span=60.0)


def _known(loss: float) -> float:
    """The loss, or nan where it is not known yet."""
    return loss if loss >= 0 else math.nan


def newest_held_out(status: Status) -> float:
    """The held-out loss of the newest round that has one; nan if none has."""
    known = [value for value in map(_known, (closed.held_out_loss for closed in status.rounds)) if math.isfinite(value)]
    return known[-1] if known else math.nan


def _below(first: Content, rest: Content, x_unit: str) -> Drawing:
    """Figures, and a plot where there is room for one."""
    return Drawing(Content("\n").join([first, rest]), subtitle=x_unit) if rest else Drawing(first)


class LossPanel(Panel):
    TITLE = "loss in nats per token"
    TAKES_FOCUS = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        status = view.status
        if not status.rounds:
            return Drawing(Content.styled(view.before_the_first_round, DIM))
        rounds = [float(closed.round) for closed in status.rounds]
        held_out = [_known(closed.held_out_loss) for closed in status.rounds]
        trained = [closed.train_loss if closed.train_loss > 0 else math.nan for closed in status.rounds]
        lines = [
            Line(rounds, trained, TRAINING),
            Line([rounds[0] - 1, *rounds], [_known(status.held_out_loss_start), *held_out], HELD_OUT),
        ]
        return _below(_losses(status, width), plot(lines, width, height - 1, _ROUNDS, Axis(figures.loss)), "by round")


def _losses(status: Status, width: int) -> Content:
    held_out, start = newest_held_out(status), _known(status.held_out_loss_start)
    arrow = Content.styled(f"  {'▼' if held_out <= start else '▲'} from {figures.loss(start)}", DIM)
    first = Content.assemble(("held-out ", DIM), (figures.loss(held_out), f"bold {HELD_OUT}"))
    second = Content.assemble(("  training ", DIM), (_training_loss(status), f"bold {TRAINING}"))
    has_room = first.cell_length + arrow.cell_length + second.cell_length <= width
    return first + arrow + second if math.isfinite(start - held_out) and has_room else first + second


def _training_loss(status: Status) -> str:
    if status.training.loss > 0:
        return figures.loss(status.training.loss)
    return figures.loss(status.rounds[-1].train_loss if status.rounds else math.nan)


class SpeedPanel(Panel):
    TITLE = "tokens a second"
    TAKES_FOCUS = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        status = view.status
        rounds = list(status.rounds)
        everybody = [figures.ratio(closed.tokens, closed.seconds) for closed in rounds]
        first = Content.assemble(
            ("mine ", DIM),
            (_count(status.training.tokens_per_second), f"bold {SELF}"),
            ("  the run ", DIM),
            (_count(everybody[-1] if everybody else math.nan), f"bold {SPEED}"),
        )
        numbers = [float(closed.round) for closed in rounds]
        own = [figures.ratio(_own_tokens(status, closed), closed.seconds) for closed in rounds]
        lines = [Line(numbers, everybody, SPEED), Line(numbers, own, SELF)]
        x, x_unit = _ROUNDS, "by round"
        if not any(line.points for line in lines):
            lines = [Line(*_ago(view, [sample.tokens_per_second for sample in view.samples]), SELF)]
            x, x_unit = _AGO, "the last minutes"
        return _below(first, plot(lines, width, height - 1, x, Axis(figures.count, (0.0,))), x_unit)


def _count(value: float) -> str:
    return figures.count(value) if value > 0 else figures.NONE


def _own_tokens(status: Status, closed: RoundStatus) -> float:
    """nan where the daemon does not know it any more."""
    own = [one.tokens for one in closed.contributions if one.peer_id == status.peer_id]
    return float(own[0]) if own else 0.0 if closed.contributions else math.nan


def _ago(view: View, values: list[float]) -> tuple[list[float], list[float]]:
    return [sample.at - view.samples[-1].at for sample in view.samples], values


class TrafficPanel(Panel):
    TITLE = "bytes a second"
    TAKES_FOCUS = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        sent = sum(traffic.bytes_sent for traffic in view.status.traffic)
        received = sum(traffic.bytes_received for traffic in view.status.traffic)
        newest = view.samples[-1] if view.samples else None
        first = Content.assemble(
            ("up ", DIM),
            (figures.size(newest.sent_per_second if newest else math.nan), f"bold {SELF}"),
            ("  down ", DIM),
            (figures.size(newest.received_per_second if newest else math.nan), f"bold {SPEED}"),
        )
        total = Content.styled(f"  {figures.size(sent)}B and {figures.size(received)}B in all", DIM)
        if first.cell_length + total.cell_length <= width:
            first += total
        lines = [
            Line(*_ago(view, [sample.received_per_second for sample in view.samples]), SPEED),
            Line(*_ago(view, [sample.sent_per_second for sample in view.samples]), SELF),
        ]
        return _below(first, plot(lines, width, height - 1, _AGO, Axis(figures.size, (0.0,))), "the last minutes")
