"""The process that `spes-peer experiment` becomes."""

import argparse
import sys

from spes_peer.errors import SpesError
from spes_peer.experiment.command import add_arguments
from spes_peer.experiment.program import run_experiment


def main() -> int:
    parser = argparse.ArgumentParser(prog="spes-peer experiment")
    add_arguments(parser)
    try:
        return run_experiment(parser.parse_args())
    except SpesError as error:
        print(f"spes-peer experiment: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


if __name__ == "__main__":
    sys.exit(main())
