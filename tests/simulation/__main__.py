"""`python -m tests.simulation SEED` replays one run as a trace; `FIRST END` checks the seeds in that range."""

import sys
import time

from .checking import check
from .invariants import Violation
from .scenario import Outcome, random_run

_USAGE = "usage: python -m tests.simulation SEED | FIRST END"


def main(arguments: list[str]) -> int:
    numbers = [int(argument) for argument in arguments if argument.isdecimal()]
    if len(numbers) != len(arguments) or len(numbers) not in (1, 2):
        print(_USAGE, file=sys.stderr)
        return 2
    if len(numbers) == 1:
        try:
            print(random_run(numbers[0], write=print))
        except Violation as violation:
            print(f"VIOLATED {violation}")
            return 1
        return 0
    started_at, outcomes, num_bad = time.perf_counter(), [], 0
    for result in check(range(*numbers)):
        if isinstance(result, Outcome):
            outcomes.append(result)
        else:
            num_bad += 1
            print(result, flush=True)
    print(f"{len(outcomes)} runs are good, {num_bad} are not, in {time.perf_counter() - started_at:.0f} s")
    if outcomes:
        worst = max(outcomes, key=lambda one: one.recovery_seconds / one.bound_seconds)
        seconds = sorted(one.recovery_seconds for one in outcomes)
        parts = sorted(one.recovery_seconds / one.bound_seconds for one in outcomes)
        together = max(outcomes, key=lambda one: one.together_seconds)
        print(f"recovery: median {seconds[len(seconds) // 2]:.0f} s, worst {seconds[-1]:.0f} s")
        print(f"of its bound: median {parts[len(parts) // 2]:.2f}, worst {parts[-1]:.2f} (seed {worst.seed})")
        print(f"two sole owners in calm weather: {together.together_seconds:.0f} s at most (seed {together.seed})")
        print(f"rounds certified: {sum(one.rounds_certified for one in outcomes)}")
        print(f"uncertified records given up, over all nodes: {sum(one.rounds_lost for one in outcomes)}")
        print(f"faults: {sum(one.num_faults for one in outcomes)}, events: {sum(one.num_events for one in outcomes)}")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
