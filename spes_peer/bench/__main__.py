"""The process that `spes-peer bench` starts."""

import argparse
import importlib
import sys

from spes_peer.bench.command import add_subjects
from spes_peer.errors import SpesError


def main() -> int:
    parser = argparse.ArgumentParser(prog="spes-peer bench")
    add_subjects(parser)
    options = parser.parse_args()
    try:
        importlib.import_module(f"spes_peer.bench.{options.subject}").run_bench(options)  # not all need torch
    except SpesError as error:
        print(f"spes-peer bench: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
