"""This machine: the device that trains, what it has given to the run, how it is reached, the daemon's own processes."""

import itertools

from textual.content import Content

from spes_peer.wire.control_pb2 import DeviceStatus, Service, Status
from tui import figures
from tui.chart import bar
from tui.look import BOLD, DIM, HELD_OUT, SELF, WARNING, safe
from tui.memory import View
from tui.panel import Drawing, Panel

_LABEL = 9
_BAR_CELLS = 20
_FULL = 0.92
"""Memory is nearly full from here on."""


class MachinePanel(Panel):
    TITLE = "this machine"
    TAKES_FOCUS = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        lines = [line.truncate(width, ellipsis=True) for line in machine_lines(view, width)]
        return Drawing(Content("\n").join(lines[:height]))


def machine_lines(view: View, width: int) -> list[Content]:
    """The most telling first, for there may be room for a few only."""
    status = view.status
    lines = [*_not_running(view), _given(status, width), *_device(status, width), _reach(status), _disk(view)]
    running = [service for service in status.services if service.state == "running"]
    if running:
        lines.append(_labelled("runs", Content("  ").join([_running(view, service) for service in running])))
    return [line for line in lines if line]


def _labelled(label: str, content: Content) -> Content:
    return Content.assemble((label.ljust(_LABEL), DIM), content)


def _given(status: Status, width: int) -> Content:
    given = status.given
    if not given.rounds and not given.tokens:
        return _labelled("gave", Content.styled("nothing yet; the first closed round counts", DIM))
    plural = "s" if given.rounds != 1 else ""
    figures_and_words = (figures.count(given.tokens), figures.count(given.rounds), figures.hours(given.seconds))
    for words in ((" tokens in ", f" round{plural} and ", ""), (" tokens, ", f" round{plural}, ", "")):
        parts = list(itertools.chain.from_iterable(zip(figures_and_words, words, strict=True)))
        if _LABEL + sum(map(len, parts)) <= width:
            break
    line = Content.assemble(
        (parts[0], f"bold {HELD_OUT}"), *((part, (DIM, BOLD)[n % 2]) for n, part in enumerate(parts[1:]))
    )
    return _labelled("gave", line)


def _device(status: Status, width: int) -> list[Content]:
    device = status.device
    name = safe(device.name or status.training.device, 40)
    if not name:
        return [_labelled("device", Content.styled("the trainer has not said yet", DIM))]
    heat = f"{device.temperature:.0f} °C" if 0 < device.temperature < 1000 else ""
    lines = [_labelled("device", Content.styled(name, BOLD))]
    if status.HasField("device") and 0 <= device.use <= 1:
        words = f"{100 * device.use:.0f} %" + (f", {heat}" if heat else "")
        lines.append(_gauge("use", device.use, words, width))
    elif heat:
        lines.append(_labelled("heat", Content(heat)))
    return [*lines, *_memory(status, device, width)]


def _memory(status: Status, device: DeviceStatus, width: int) -> list[Content]:
    if not device.total_bytes:
        trainers = status.training.memory_bytes
        return (
            [_labelled("memory", Content.styled(f"{figures.size(trainers)}B, the trainer's", DIM))] if trainers else []
        )
    own = f", {figures.size(device.own_bytes)} ours" if device.own_bytes else ""
    words = f"{figures.size(device.used_bytes)} of {figures.size(device.total_bytes)}B{own}"
    return [_gauge("memory", figures.share(device.used_bytes, device.total_bytes), words, width)]


def _gauge(label: str, part: float, words: str, width: int) -> Content:
    room = min(_BAR_CELLS, width - _LABEL - len(words) - 2)
    shown = (
        Content.assemble(bar(part, room, WARNING if part > _FULL and label == "memory" else SELF), "  ")
        if room > 3
        else ""
    )
    return _labelled(label, Content.assemble(shown, (words, DIM)))


def _reach(status: Status) -> Content:
    if not status.reachability:
        return Content()
    why = f": {safe(status.reachability_why)}" if status.reachability_why else ""
    return _labelled("reached", Content.assemble((safe(status.reachability, 16), ""), (why, DIM)))


def _disk(view: View) -> Content:
    used, limit = view.status.disk_used_bytes, view.status.disk_limit_bytes
    up = figures.since(view.status.started_at, view.now)
    disk = f"{figures.size(used)}{f' of {figures.size(limit)}' if limit else ''}B" if used else ""
    words = "  ".join(filter(None, [disk, f"up {up}" if up else ""]))
    return _labelled("disk" if disk else "daemon", Content.styled(words, DIM)) if words else Content()


def _not_running(view: View) -> list[Content]:
    return [
        _labelled(
            "▲",
            Content.assemble(
                (f"{safe(one.name, 16)} {safe(one.state, 16)} {figures.since(one.since_at, view.now)}", WARNING),
                (f" {safe(one.why)}" if one.why else "", DIM),
            ),
        )
        for one in view.status.services
        if one.state != "running"
    ]


def _running(view: View, service: Service) -> Content:
    why = f" ({safe(service.why)})" if service.why else ""
    return Content.styled(f"{safe(service.name, 16)} {figures.since(service.since_at, view.now)}{why}", DIM)
