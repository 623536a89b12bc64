"""The length of a run in closed form is what counting its rounds one by one gives."""

from hypothesis import given
from hypothesis import strategies as st

from spes_peer.run.length import Length, num_merges
from spes_peer.run.manifest import RunFile, parse_run_file
from spes_peer.run.presets import PRESETS

DEMO = parse_run_file(PRESETS["demo"])


def counted(run: RunFile) -> tuple[int, int, int]:
    """Rounds, sequences and merges, as records make them one after the other."""
    training, sync = run.training, run.sync
    step = num_rounds = num_sequences = merges = 0
    while step < training.total_steps:
        num_steps = training.steps_per_round_at(step)
        num_sequences += num_steps * training.batch_sequences_at(step)
        step, num_rounds = step + num_steps, num_rounds + 1
        is_due = step % sync.merge_interval_steps == 0 and step < sync.merge_warmup_steps
        merges += is_due and sync.merge_alpha > 0
    return num_rounds, num_sequences, merges


@given(
    st.integers(1, 60), st.integers(1, 60), st.integers(1, 2000), st.sampled_from([0.0, 0.1, 0.3, 0.9]),
    st.integers(1, 150), st.integers(0, 2500),
)  # fmt: skip
def test_rounds_sequences_and_merges_are_counted(
    steps: int, late_steps: int, total: int, fraction: float, interval: int, warmup: int
) -> None:
    training = DEMO.training.model_copy(
        update={
            "steps_per_round": steps,
            "final_phase_steps_per_round": late_steps,
            "total_steps": total,
            "final_phase_fraction": fraction,
        }
    )
    sync = DEMO.sync.model_copy(update={"merge_interval_steps": interval, "merge_warmup_steps": warmup})
    run = DEMO.model_copy(update={"training": training, "sync": sync})
    length = Length.of(run)
    merges = sum(num_merges(phase, sync) for phase in length.phases)
    assert (length.num_rounds, length.num_sequences, merges) == counted(run)


def test_the_demo_has_a_hundred_rounds_and_no_final_phase() -> None:
    length = Length.of(DEMO)
    assert (length.num_rounds, len(length.phases), length.num_tokens) == (100, 1, 2000 * 32 * 128)
