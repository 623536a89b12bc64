"""One cell, from its first weights to its last held-out loss."""

import time
from collections.abc import Callable

from spes_peer.experiment.config import Cell
from spes_peer.experiment.results import CellResult, Point
from spes_peer.experiment.swarm import Swarm, open_swarm
from spes_peer.experiment.texts import read_texts
from spes_peer.experiment.traffic import Traffic


def run_cell(cell: Cell, on_round: Callable[[int, float], None] = lambda _rounds, _loss: None) -> CellResult:
    """The same cell gives the same numbers, but for seconds. `on_round` hears (rounds done, newest held-out loss).

    Raises `SpesError` where a run diverges or its parts do not fit."""
    corpus = read_texts(cell.texts, cell.about.text_bytes)
    swarm = open_swarm(cell, corpus)
    points = _points(cell, swarm, on_round)
    layout, manifest = swarm.layout, swarm.layout.manifest
    sequences = points[-1].tokens / manifest.model.sequence_length
    return CellResult(
        arm=cell.arm_name,
        seed=cell.seed,
        hash=cell.hash,
        config=cell.config,
        points=points,
        num_rounds=swarm.num_rounds_done,
        bytes_fp32=swarm.traffic.sent_fp32 + swarm.traffic.received_fp32,
        num_shared=layout.num_shared,
        num_expert_parameters=layout.num_per_expert * manifest.model.num_experts,
        source=corpus.source,
        epochs=sequences / manifest.num_sequences,
        cpu_seconds=vars(swarm.cpu_seconds).copy(),
    )


def _points(cell: Cell, swarm: Swarm, on_round: Callable[[int, float], None]) -> tuple[Point, ...]:
    started_at = time.perf_counter()
    points = [_point(swarm, 0, None, started_at)]
    tokens, tokens_since, loss_since = 0, 0, 0.0
    while not swarm.is_finished:
        done = swarm.run_round()
        tokens += done.tokens
        tokens_since += done.tokens
        loss_since += done.train_loss * done.tokens
        if swarm.is_finished or swarm.num_rounds_done % cell.about.evaluate_every == 0:
            points.append(_point(swarm, tokens, loss_since / tokens_since, started_at))
            tokens_since, loss_since = 0, 0.0
        on_round(swarm.num_rounds_done, points[-1].held_out_loss)
    return tuple(points)


def _point(swarm: Swarm, tokens: int, train_loss: float | None, started_at: float) -> Point:
    traffic: Traffic = swarm.traffic
    return Point(
        round=swarm.num_rounds_done,
        step=swarm.head.record.step,
        tokens=tokens,
        bytes_sent=traffic.sent,
        bytes_received=traffic.received,
        held_out_loss=swarm.held_out_loss(),
        train_loss=train_loss,
        seconds=time.perf_counter() - started_at,
    )
