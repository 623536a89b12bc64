"""The process that `spes-peer bench trainer` starts."""

import argparse
import sys

from spes_peer.bench.command import add_arguments
from spes_peer.bench.trainer import run_bench
from spes_peer.errors import SpesError


def main() -> int:
    parser = argparse.ArgumentParser(prog="spes-peer bench trainer")
    add_arguments(parser)
    try:
        run_bench(parser.parse_args())
    except SpesError as error:
        print(f"spes-peer bench: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
