"""What a person types. Parsing only; each command lives where its work is done and is imported when it is asked for:
one asks for `status` again and again, and what an organizer's commands stand on takes a second to import."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from spes_peer import __version__
from spes_peer.cli.parsing import GroupedHelp, Parser, add_log_level
from spes_peer.errors import BadConfiguration, SpesError, UserError
from spes_peer.logs import last_words, log_to_person

logger = logging.getLogger(__name__)

INTERRUPTED = 130

EXIT_CODES = """\
exit codes:
  0  done, or left as asked          4  this version is too old for the run
  1  failed                          5  not admitted to the run, or no longer
  2  wrong usage or configuration    6  no device here can train its model
  3  no node of the run answers    130  interrupted"""

_EXAMPLES = """\
examples:
  spes-peer demo                        try it on this machine alone
  spes-peer join --bootstrap ADDRESS    lend this machine to a run
  spes-peer status                      what it does, and what it waits for
  spes-peer run new FOLDER              start a run of your own
"""


COMMANDS = {
    "lend this machine": ("join", "watch", "status", "pause", "resume", "leave", "logs", "replay", "runs"),
    "and see to it": ("doctor", "config", "service", "identity"),
    "start a run of your own": ("run", "data", "plan"),
    "take its model": ("export", "eval", "generate"),
    "try, strike and measure": ("demo", "chaos", "bench", "experiment"),
    "this program": ("completion", "version"),
}
"""All of them, by what one wants."""


class _Help(GroupedHelp):
    groups = COMMANDS


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; a person's error is one line on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run_command(_parser(*arguments[:1]), arguments))


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Parse and run; shared by `spes-peer` and `spes-bootstrap`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(arguments)
    line_format = getattr(options, "log_format", "text")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # or it tells the terminal of every connection that is lost
    if getattr(options, "with_parent", False):
        from spes_peer.tied import end_with_parent

        end_with_parent(signal.SIGTERM)
    try:
        if (settings := getattr(options, "settings", None)) is not None:
            settings.become_defaults(options.config)
            options = parser.parse_args(arguments)
            line_format = getattr(options, "log_format", "text")
        log_to_person(getattr(logging, options.log_level), line_format)
        options.arguments = arguments
        return int(options.run(options) or 0)
    except UserError as error:
        print(last_words(parser.prog, str(error), line_format), file=sys.stderr)
        return error.exit_code
    except SpesError as error:
        print(last_words(parser.prog, str(error), line_format), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell
        return 1
    except OSError as error:  # of a file or a socket that nothing closer to it could say more about
        logger.debug("the system refuses something", exc_info=True)
        print(last_words(parser.prog, _refused(error), line_format), file=sys.stderr)
        return 1


def _refused(error: OSError) -> str:
    what = f"use {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else "go on"
    return f"cannot {what}: {error.strerror or error or type(error).__name__} (--log-level DEBUG shows where)"


def _parser(asked: str = "") -> argparse.ArgumentParser:
    """That knows the command that is asked for and those beside it, or all of them when there is none of that name."""
    parser = Parser(
        prog="spes-peer",
        usage="spes-peer COMMAND [OPTIONS]",
        description="Pretrain a mixture-of-experts language model together with other volunteers, peer to peer.",
        formatter_class=_Help,
        epilog=f"{_EXAMPLES}\n{EXIT_CODES}\n\nOptions of a command: spes-peer COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"spes-peer {__version__}", help="print the version")

    def help_(_options: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return BadConfiguration.exit_code

    parser.set_defaults(run=help_, log_level="INFO")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog="spes-peer")
    wanted = [add for add, names in _BESIDE_EACH_OTHER.items() if asked in names]
    for add in wanted or _BESIDE_EACH_OTHER:
        add(commands)
    return parser


def _add_volunteer(commands: Any) -> None:
    from spes_peer.cli.volunteer import add_volunteer_commands

    add_volunteer_commands(commands)


def _add_run(commands: Any) -> None:
    from spes_peer.cli.organizer import add_run

    add_run(commands)


def _add_data(commands: Any) -> None:
    from spes_peer.cli.data import add_data

    add_data(commands)


def _add_plan(commands: Any) -> None:
    from spes_peer.training.plan_command import add_plan_command

    add_plan_command(commands)


def _add_model(commands: Any) -> None:
    from spes_peer.evaluating.command import add_eval_command
    from spes_peer.exporting.command import add_export_command
    from spes_peer.generating.command import add_generate_command

    for add in (add_export_command, add_eval_command, add_generate_command):
        add_log_level(add(commands))


def _add_trials(commands: Any) -> None:
    from spes_peer.bench.command import add_bench_command
    from spes_peer.cli.local import add_chaos, add_demo
    from spes_peer.experiment.command import add_experiment_command

    for add in (add_demo, add_chaos, add_bench_command, add_experiment_command):
        add(commands)


def _add_program(commands: Any) -> None:
    from spes_peer.cli.completion import add_completion

    add_completion(commands, _parser)
    version = commands.add_parser("version", help="print this program's version and those of what it stands on")
    version.set_defaults(run=_version, log_level="INFO")


_BESIDE_EACH_OTHER: dict[Callable[[Any], None], tuple[str, ...]] = {
    _add_volunteer: (*COMMANDS["lend this machine"], *COMMANDS["and see to it"]),
    _add_run: ("run",),
    _add_data: ("data",),
    _add_plan: ("plan",),
    _add_model: COMMANDS["take its model"],
    _add_trials: COMMANDS["try, strike and measure"],
    _add_program: COMMANDS["this program"],
}
"""What imports little for commands that are not asked for."""


def _version(_options: argparse.Namespace) -> None:
    """What a report of a fault should name."""
    from importlib.metadata import version

    parts = ", ".join(f"{name} {version(name)}" for name in ("torch", "hivemind", "libp2p", "grpcio", "textual"))
    print(f"spes-peer {__version__}\nPython {sys.version.split()[0]}, {parts}")
