"""spes-peer: sparse expert synchronization between volunteers' machines.

The folders answer one question each, and import only downwards:

    cli, demo, chaos  what a person types
    first_start, doctor  before a machine is lent, and whether it is fit
    amending          an organizer's changes of a run that goes on
    bench, experiment what it costs, and what it learns: measured
    daemon            one peer of a run: composes everything below
    following         who introduces us, the records, and the coordinator of the open round, whoever that is
    coordinating      this node's own turn as coordinator
    exchange          blobs and messages, and how they travel
    membership        who is here and who owns what
    rounds            the coordinator's decisions and the members' checks, without I/O
    training          local steps: the trainer process
    sync              arithmetic on blocks, without I/O
    model, data       the decoder; text to tokens to disjoint ranges
    run               what everybody agreed on: manifest, records, signatures
    wire              messages as bytes
    blobs, identity, files, measures, errors
"""

import sys

__version__ = "0.1.0"


def refuse_windows(platform: str) -> None:
    """Ends the program there, whatever was typed: files are locked, and processes tied to each other, by what native
    Windows does not have."""
    if platform == "win32":
        sys.stderr.write("spes-peer: native Windows is not supported; run it in WSL (untested), or on Linux\n")
        sys.exit(2)


refuse_windows(sys.platform)
