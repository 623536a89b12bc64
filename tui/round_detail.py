"""One round opened: its figures, its parts, and what everybody who had a place in it brought."""

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from spes_peer.wire.control_pb2 import ContributionStatus, RoundStatus, Traffic
from tui import figures, parts
from tui.chart import bar, stacked_bar
from tui.look import BOLD, DIM, FAINT, HELD_OUT, SPEED, TRAINING, WARNING, safe
from tui.memory import View
from tui.rows import Field, Rows

_LEAST_ROWS = 3
_LABEL = 12


class RoundDetail(Vertical):
    """Above the figures, below the contributions."""

    DEFAULT_CSS = "RoundDetail .figures { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }"

    def __init__(self) -> None:
        super().__init__(classes="panel")
        self._shown: tuple[View, RoundStatus, bool] | None = None

    def compose(self) -> ComposeResult:
        yield Static(classes="figures", markup=False)
        yield Rows()

    @property
    def list(self) -> Rows[ContributionStatus]:
        return self.query_one(Rows)

    def on_resize(self, _event: events.Resize) -> None:
        if self._shown is not None:
            self.show(*self._shown)

    def show(self, view: View, round_: RoundStatus, is_open: bool) -> None:
        self._shown = (view, round_, is_open)
        self.border_title = f"round {round_.round}" + (", open" if is_open else "")
        width, height = max(1, self.content_size.width), self.content_size.height
        lines = figure_lines(view, round_, width)[: max(1, height - _LEAST_ROWS)]
        self.query_one(".figures", Static).update(Content("\n").join(lines))
        brought = list(round_.contributions)
        missing = sum(one.is_missing for one in brought)
        self.border_subtitle = f"{len(brought) - missing} of {len(brought)} contributed" if brought else ""
        self.list.put(
            contribution_fields(view, brought),
            brought,
            [one.peer_id for one in brought],
            instead=Content.styled(_without_contributions(is_open), DIM),
        )


def _without_contributions(is_open: bool) -> str:
    if is_open:
        return "the round is open: its record says at its end what everybody contributed"
    return "what everybody contributed is kept for the newest rounds only"


def figure_lines(view: View, round_: RoundStatus, width: int) -> list[Content]:
    """What is known of the round, the most telling first, an empty line at the end."""
    speed = round_.tokens / round_.seconds if round_.seconds > 0 else -1
    loss = Content.assemble(
        ("training ", DIM),
        (figures.loss(round_.train_loss or -1), f"{BOLD} {TRAINING}"),
        (", the mean over all contributors   held-out ", DIM),
        (figures.loss(round_.held_out_loss), f"{BOLD} {HELD_OUT}"),
    )
    began = f"{figures.clock(round_.opened_at)}, " if round_.opened_at > 0 else ""
    lines = [
        _line("loss", loss),
        _line("time", Content.assemble(began, ("took ", DIM), figures.brief(round_.seconds))),
        *_parts(round_, width),
        _line("tokens", Content.assemble(figures.count(round_.tokens), ("   ", DIM), f"{figures.count(speed)} tok/s")),
        _line("updates", _updates(round_)),
    ]
    if round_.merge:
        lines.append(_line("merge", Content(safe(round_.merge))))
    if round_.coordinator:
        name = Content.styled(view.name(round_.coordinator), view.colour(round_.coordinator))
        lines.append(_line("proposed by", name))
    if round_.traffic:
        lines.append(_line("this machine", _traffic(round_)))
    if round_.state_root:
        lines.append(_line("state root", Content.styled(safe(round_.state_root, 64), FAINT)))
    return [line.truncate(width, ellipsis=True) for line in (*lines, Content())]


def _line(label: str, value: Content) -> Content:
    return Content.assemble((label.ljust(_LABEL + 2), DIM), value)


def _parts(round_: RoundStatus, width: int) -> list[Content]:
    if not round_.parts:
        return []
    room = max(1, width - _LABEL - 2)
    whole = stacked_bar(parts.of_a_whole(round_.parts), room)
    return [_line("parts", whole), *(_line("", line) for line in parts.in_words(round_.parts, room))]


def _updates(round_: RoundStatus) -> Content:
    if not round_.num_updates:
        return Content.styled("not known" if not round_.contributions else "none", DIM)
    return Content.assemble(str(round_.num_updates), (", together ", DIM), f"{figures.size(round_.update_bytes)}B")


def _traffic(round_: RoundStatus) -> Content:
    rows = [_moved(one) for one in round_.traffic if one.bytes_sent or one.bytes_received]
    return Content("     ").join(rows) if rows else Content.styled("moved nothing", DIM)


def _moved(one: Traffic) -> Content:
    sent, received = figures.size(one.bytes_sent), figures.size(one.bytes_received)
    return Content.assemble((f"{safe(one.transport, 8)} ", DIM), f"↑ {sent}B  ↓ {received}B")


def contribution_fields(view: View, brought: list[ContributionStatus]) -> list[Field[ContributionStatus]]:
    whole = sum(one.tokens for one in brought)

    def share(one: ContributionStatus, width: int) -> Content:
        return bar(figures.share(one.tokens, whole), width, SPEED)

    return [
        Field("peer", 10, lambda one, _: _peer(view, one.peer_id), most=26),
        Field("tokens", 6, lambda one, _: Content(figures.count(one.tokens) if one.tokens else ""), 1, is_right=True),
        Field("of all", 6, lambda one, _: _percent(one, whole), 4, is_right=True),
        Field("", 8, share, 6, most=24),
        Field("subsets", 8, lambda one, _: Content(figures.ranges(one.subsets)), 3, most=16),
        Field("updates", 7, lambda one, _: Content(str(one.num_updates) if one.num_updates else ""), 2, is_right=True),
        Field("outcome", 23, _outcome),
    ]


def _peer(view: View, peer_id: str) -> Content:
    you = " (you)" if peer_id == view.status.peer_id else ""
    return Content.styled(view.name(peer_id) + you, view.colour(peer_id))


def _percent(one: ContributionStatus, whole: int) -> Content:
    return Content(f"{100 * figures.share(one.tokens, whole):.0f} %" if one.tokens else "")


def _outcome(one: ContributionStatus, _width: int) -> Content:
    if not one.is_missing:
        return Content.styled("in the record", DIM)
    return Content.styled("late: not in the record", WARNING)
