"""When a trainer process is frozen, or hangs in a step: decided from its beats and the time for which we were awake."""

from spes_peer.training.work import TrainerBeat

STALL_SECONDS = 90.0
_STEPS_ALLOWED = 10  # so many times the longest step so far may a step take; before there is one, the limit itself


class StallWatch:
    """Time is only what `awake` says has passed while this process itself was running: where the whole machine was
    suspended, the trainer's silence is not its own.

    A process that beats, and whose main thread is not in a step, is never called stalled here: loading, encoding and
    saving take what they take, and end with the time-outs of their requests."""

    def __init__(self, limit_seconds: float = STALL_SECONDS) -> None:
        self._limit_seconds = limit_seconds
        self._beat: TrainerBeat | None = None
        self._silent_seconds = 0.0
        self._in_step_seconds = 0.0
        self._longest_step_seconds = 0.0

    def heard(self, beat: TrainerBeat) -> None:
        """The process runs."""
        self._silent_seconds = 0.0
        if self._beat is None or beat.steps_begun != self._beat.steps_begun or not beat.is_in_step:
            self._longest_step_seconds = max(self._longest_step_seconds, self._in_step_seconds)
            self._in_step_seconds = 0.0
        self._beat = beat

    def awake(self, seconds: float) -> None:
        """So many seconds more have passed."""
        if self._beat is not None:  # before the first it imports its libraries
            self._silent_seconds += seconds
            if self._beat.is_in_step:
                self._in_step_seconds += seconds

    @property
    def why(self) -> str:
        """Why the process must be given up; empty if it need not."""
        if self._silent_seconds > self._limit_seconds:
            return f"stalled {self._silent_seconds:.0f} s: it does not run"
        allowed = max(self._limit_seconds, _STEPS_ALLOWED * (self._longest_step_seconds or self._limit_seconds))
        if self._in_step_seconds > allowed:
            return f"stalled {self._in_step_seconds:.0f} s in one step"
        return ""
