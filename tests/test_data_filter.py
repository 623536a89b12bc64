"""Which sequences have their labels masked, against a reference that compares repetitions one by one."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.blobs import BlobStore
from spes_peer.data.corpus import Corpus, standard_library
from spes_peer.data.filter import IGNORED_TARGET, MAX_PERIOD, MIN_REPEATS, mask_repeats, repeats
from spes_peer.data.sampler import Sampler
from spes_peer.data.shards import make_shards
from spes_peer.data.tokenizer import encode
from spes_peer.identity import Identity
from spes_peer.model import losses
from spes_peer.model.decoder import Decoder
from spes_peer.run.manifest import Manifest, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import DataRange

LENGTH = 600


def is_repetitive(sequence: list[int]) -> bool:
    """The definition, word for word."""
    for period in range(1, 14):
        for start in range(len(sequence) - 32 * period + 1):
            pattern = sequence[start : start + period]
            if sequence[start : start + 32 * period] == pattern * 32:
                return True
    return False


def distinct(length: int) -> list[int]:
    """Tokens of which no two are equal."""
    return list(range(1000, 1000 + length))


@pytest.mark.parametrize("period", range(1, MAX_PERIOD + 1))
def test_a_pattern_that_repeats_often_enough_masks_its_sequence(period: int) -> None:
    for start in (0, 7, LENGTH - MIN_REPEATS * period):
        sequence = distinct(LENGTH)
        sequence[start : start + MIN_REPEATS * period] = list(range(period)) * MIN_REPEATS
        assert repeats(np.array([sequence, distinct(LENGTH)])).tolist() == [True, False]


@pytest.mark.parametrize("period", range(1, MAX_PERIOD + 1))
def test_one_token_less_is_not_enough(period: int) -> None:
    sequence = distinct(LENGTH)
    sequence[5 : 5 + MIN_REPEATS * period - 1] = (list(range(period)) * MIN_REPEATS)[:-1]
    assert not repeats(np.array([sequence])).any()


def test_a_longer_period_is_let_through() -> None:
    assert not repeats(np.array([list(range(MAX_PERIOD + 1)) * MIN_REPEATS * 2])).any()


def test_sequences_shorter_than_a_period_are_let_through() -> None:
    assert repeats(np.zeros((2, 5), dtype=np.int64)).tolist() == [False, False]


@given(st.data())
def test_the_filter_agrees_with_the_definition(data: st.DataObject) -> None:
    """Sequences are runs of few tokens spliced together, so that both answers occur."""
    period = data.draw(st.integers(1, 15))
    pattern = data.draw(st.lists(st.integers(0, 2), min_size=period, max_size=period))
    length = data.draw(st.integers(0, 33 * period))
    around = st.lists(st.integers(0, 3), max_size=40)
    sequence = [*data.draw(around), *(pattern * 33)[:length], *data.draw(around)]
    assert repeats(np.array([sequence], dtype=np.int64)).tolist() == [is_repetitive(sequence)]


def test_all_labels_of_the_sequence_are_masked_and_no_others() -> None:
    tokens = np.stack([np.arange(LENGTH), np.zeros(LENGTH, dtype=np.int64)])
    targets = tokens + 1
    masked = mask_repeats(tokens, targets)
    assert (masked[0] == targets[0]).all()
    assert (masked[1] == IGNORED_TARGET).all()
    assert (targets == tokens + 1).all()


def test_without_repeats_nothing_is_copied() -> None:
    tokens = np.arange(LENGTH).reshape(1, -1)
    assert mask_repeats(tokens, tokens) is tokens


def test_the_losses_leave_out_what_the_filter_masks() -> None:
    assert losses.IGNORED_TARGET == IGNORED_TARGET


def test_only_training_sequences_are_masked(tmp_path: Path) -> None:
    run_file = parse_run_file(PRESETS["demo"])
    length = run_file.model.sequence_length
    blobs = BlobStore(tmp_path)
    corpus = Corpus("rules", ("-" * 4 * length, "-" * 4 * length))
    data = make_shards(corpus, blobs, run_file.model, held_out_tokens=2 * length)
    organizer = Identity.from_seed(b"1" * 32).peer_id
    manifest = Manifest.model_validate({**run_file.model_dump(), "data": data.model_dump(), "organizers": [organizer]})
    sampler = Sampler(manifest, blobs)
    (trained,) = sampler.training([DataRange(0, 3)], [3])
    assert trained.num_tokens == 3 * length
    assert (trained.targets_BT == IGNORED_TARGET).all()
    (held_out,) = sampler.held_out(0, 1, 9)
    assert (held_out.targets_BT != IGNORED_TARGET).all()


def test_the_filter_takes_next_to_nothing_of_a_step() -> None:
    """Less than 2 % of a step of the demo's model on as many tokens; the best of several: machines are busy."""
    run_file = parse_run_file(PRESETS["demo"])
    length, batch = run_file.model.sequence_length, run_file.training.batch_sequences // 4
    text = np.concatenate([encode(document) for document in standard_library(1, 200_000).documents])
    tokens = text[: batch * length].reshape(batch, length).astype(np.int64)
    decoder = Decoder(run_file.model, "cpu", run_file.training)
    decoder.own((0, 1))
    inputs = torch.from_numpy(tokens)

    def step() -> None:
        decoder(inputs, inputs).total.backward()

    assert best_seconds(lambda: mask_repeats(tokens, tokens), 30) < 0.02 * best_seconds(step, 5)


def best_seconds(work: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best
