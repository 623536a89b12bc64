"""The process that `spes-peer bench` starts."""

import argparse
import sys

from spes_peer.bench import sync, trainer
from spes_peer.bench.command import add_subjects
from spes_peer.errors import SpesError


def main() -> int:
    parser = argparse.ArgumentParser(prog="spes-peer bench")
    add_subjects(parser)
    options = parser.parse_args()
    try:
        (trainer if options.subject == "trainer" else sync).run_bench(options)
    except SpesError as error:
        print(f"spes-peer bench: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
