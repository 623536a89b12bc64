"""`spes-peer join`: its options, and from these the daemon's settings."""

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spes_peer import config
from spes_peer.cli.guest import add_guest, guest_rules
from spes_peer.cli.parsing import (
    add_announce,
    add_data_dir,
    add_log_format,
    add_log_level,
    add_max_disk,
    add_pace,
    add_relay_limits,
    add_with_parent,
    can_draw,
    count,
    data_dir,
    metrics_address,
    port,
    relay_limits,
)
from spes_peer.errors import BadConfiguration
from spes_peer.exchange.relay_limits import OF_VOLUNTEER
from spes_peer.training.choices import Memory, add_memory_choices, size_or_part

if TYPE_CHECKING:
    from spes_peer.daemon.program import Daemon, JoinSettings


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap",
        action=config.Repeated,
        default=[],
        metavar="ADDRESS",
        help="a node of the run, as its organizer gives it, or any of its peers; may be given several times, or several"
        " with commas between (those met before, in a folder that has joined a run)",
    )


def invitation(text: str) -> Any:
    """The text itself, or the file that it was saved to."""
    from spes_peer.run.invitations import MAX_TEXT_CHARACTERS, Invitation

    try:
        if not text.startswith("spes-") and Path(text).is_file():
            with Path(text).open(errors="replace") as file:
                text = file.read(2 * MAX_TEXT_CHARACTERS)
        return Invitation.from_text(text)
    except (BadConfiguration, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def bootstraps(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(one for given in options.bootstrap for one in given.split(","))


def add_join(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "join",
        usage="spes-peer join --bootstrap ADDRESS [OPTIONS]",
        help="lend this machine to a run",
        description="Join a run through one of its nodes: claim experts that nobody trains, train them, swap updates.",
        epilog="examples:\n"
        "  spes-peer join --bootstrap /dns4/run.example.org/tcp/4510/p2p/12D3KooW…\n"
        "  spes-peer join                                  the same run again\n"
        "  spes-peer join --hours 22:00-08:00 --max-upload 500KB --gpu-memory 50%\n\n"
        "In a terminal the daemon goes on when the dashboard is closed; elsewhere Ctrl-C ends it.\n"
        "The first start shows what the run is and takes, and asks.",
    )
    add_bootstrap(parser)
    add_data_dir(parser)
    add_max_disk(parser)
    parser.add_argument(
        "--invitation",
        type=invitation,
        metavar="TEXT|FILE",
        help="with which its organizer lets you in, where the run asks for one; kept in the state folder",
    )
    parser.add_argument(
        "-y",
        "--yes",
        action="store_true",
        help="agree to the first start without being asked: for services and scripts",
    )
    parser.add_argument(
        "--name",
        default="",
        help="what others see you as, on the run's public page too (this machine's name up to the first dot)",
    )
    network = parser.add_argument_group("network")
    network.add_argument("--host", default="", help="address to listen on (all that this machine has, or gets)")
    network.add_argument(
        "--port", type=port, default=0, metavar="N", help="first of three ports to listen on; 0 picks free ones (0)"
    )
    add_announce(network, "what others find to lead here when they dial back")
    network.add_argument(
        "--no-inbound", action="store_true", help="take no connections from others: be reached through a relay"
    )
    network.add_argument(
        "--no-port-mapping", action="store_true", help="do not ask the router to open ports for this machine"
    )
    network.add_argument(
        "--relay", action="store_true", help="relay for peers that nobody can dial, where this machine can be dialled"
    )
    add_pace(network)
    add_relay_limits(network, OF_VOLUNTEER)
    device = parser.add_argument_group("device")
    device.add_argument("--device", default="", help="cpu, cuda or cuda:N (the best there is)")
    device.add_argument(
        "--threads", type=count, default=0, metavar="N", help="threads of a cpu device; 0 leaves it to torch (0)"
    )
    device.add_argument(
        "--max-subsets", type=count, default=0, metavar="N", help="train at most so many subsets; 0: what fits (0)"
    )
    device.add_argument(
        "--gpu-memory",
        type=size_or_part,
        default=Memory(),
        metavar="SIZE|PERCENT",
        help="use at most so much of the memory of what trains, such as 20GB or 50%% (all free)",
    )
    add_memory_choices(device)
    add_guest(parser)
    display = parser.add_argument_group("display")
    display.add_argument("--no-tui", action="store_true", help="plain log lines instead of the dashboard")
    display.add_argument("--detach", action="store_true", help="start the daemon and return; it logs into its folder")
    display.add_argument(
        "--metrics",
        type=metrics_address,
        metavar="ADDRESS",
        help="let Prometheus read figures at HOST:PORT, or at PORT of this machine alone (nowhere)",
    )
    add_with_parent(display)
    add_log_level(display)
    add_log_format(display)
    parser.set_defaults(run=_join)
    return parser  # type: ignore[no-any-return]


def check_join(options: argparse.Namespace) -> None:
    """What no single flag can see."""
    from spes_peer.exchange.addresses import parse_address

    for flag in ("announce", "relay"):
        if options.no_inbound and getattr(options, flag):
            raise BadConfiguration(f"--{flag} needs others to dial this machine, and --no-inbound forbids it; drop one")
    if options.detach and options.with_parent:
        raise BadConfiguration("--detach starts what outlives this command, and --with-parent ends it; drop one")
    for address in bootstraps(options):
        parse_address(address)


def _join(options: argparse.Namespace) -> int:
    check_join(options)
    from spes_peer import known_runs
    from spes_peer.daemon.foreground import join_detached, join_with_dashboard, refuse_second
    from spes_peer.daemon.program import Daemon

    settings = join_settings(options)
    refuse_second(settings.data_dir)
    if not agrees(options, settings):
        return 0
    if not options.with_parent:  # what a program starts and ends is its own
        known_runs.remember(settings.data_dir.absolute())
    if not options.detach and (options.no_tui or not can_draw()):
        return asyncio.run(_shown(Daemon(settings), has_bar=options.log_format == "text"))
    arguments = [argument for argument in options.arguments if argument != "--detach"]
    return (join_detached if options.detach else join_with_dashboard)(arguments, settings.data_dir)


async def _shown(daemon: "Daemon", has_bar: bool) -> int:
    from spes_peer.daemon.progress_shown import shown

    async with shown(lambda: daemon.progress, has_bar):
        return await daemon.run()


def agrees(options: argparse.Namespace, settings: "JoinSettings") -> bool:
    """Whether the owner wants this machine lent, asked where that was not said before."""
    from spes_peer.first_start.command import agree, has_joined

    return options.yes or has_joined(settings.data_dir) or agree(settings, options.arguments)


def join_settings(options: argparse.Namespace) -> "JoinSettings":
    """For the daemon."""
    from spes_peer.daemon.program import JoinSettings

    return JoinSettings(
        bootstraps=bootstraps(options),
        invitation=options.invitation,
        data_dir=data_dir(options),
        name=options.name,
        host=options.host,
        port=options.port,
        inbound=not options.no_inbound,
        announce=tuple(dict.fromkeys(options.announce)),
        relay=relay_limits(options) if options.relay else None,
        maps_ports=not options.no_port_mapping,
        max_upload=options.max_upload,
        max_download=options.max_download,
        max_disk=options.max_disk,
        metrics=options.metrics,
        device=options.device,
        num_threads=options.threads,
        max_subsets=options.max_subsets,
        memory_bytes=options.gpu_memory.size_bytes,
        memory_part=options.gpu_memory.part,
        resident=options.resident,
        checkpointing=options.checkpointing,
        optimizer_bits=options.optimizer_bits,
        log_format=options.log_format,
        guest=guest_rules(options),
        has_low_priority=options.priority == "low",
    )
