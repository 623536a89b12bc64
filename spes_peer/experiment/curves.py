"""Held-out loss against what it cost, as PNG: the mean over seeds, and their range as a band."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spes_peer.errors import UserError
from spes_peer.experiment.results import CellResult, Point, by_arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXES: dict[str, tuple[str, Callable[[Point], float]]] = {
    "loss-tokens.png": ("tokens", lambda point: float(point.tokens)),
    "loss-bytes.png": ("bytes per peer, sent and received", lambda point: point.bytes_sent + point.bytes_received),
}

_STYLES = ("-", "--", "-.")
_NUM_COLORS = 10  # matplotlib's own cycle


def draw_curves(folder: Path, name: str, results: tuple[CellResult, ...]) -> None:
    """Write both pictures; `UserError` where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            "no curves are drawn without matplotlib; install it with: pip install 'spes-peer[experiment]'"
        ) from None
    for file_name, (label, cost) in _AXES.items():
        figure = Figure(figsize=(10, 5), layout="constrained")
        axes = figure.subplots()
        for index, (arm, cells) in enumerate(by_arm(results)):
            _draw(axes, arm, cells, cost, f"C{index}", _STYLES[index // _NUM_COLORS % len(_STYLES)])
        axes.set_xlabel(label)
        axes.set_ylabel("held-out loss, nats per token")
        axes.set_title(name)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.set_xscale("log" if file_name == "loss-bytes.png" else "linear")
            figure.legend(loc="outside right upper", fontsize="small")  # many arms would cover the curves
        figure.savefig(folder / file_name, dpi=120)


def _draw(
    axes: "Axes", arm: str, cells: tuple[CellResult, ...], cost: Callable[[Point], float], color: str, style: str
) -> None:
    """From the first measurement behind the first weights on; an arm that costs nothing is a level, its last."""
    columns = list(zip(*(cell.points for cell in cells), strict=False))[1:]
    losses = [[point.held_out_loss for point in column] for column in columns]
    at = [cost(column[0]) for column in columns]
    if not any(at):
        axes.axhline(statistics.fmean(losses[-1]), linestyle=":", color=color, label=f"{arm}, at its end")
        return
    axes.plot(at, [statistics.fmean(values) for values in losses], style, marker=".", color=color, label=arm)
    least, most = [min(values) for values in losses], [max(values) for values in losses]
    axes.fill_between(at, least, most, alpha=0.2, color=color, linewidth=0)
