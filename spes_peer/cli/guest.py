"""What keeps a machine usable while it trains: options of `join`, and from these the rules for the guest."""

import argparse
from typing import Any

from spes_peer.guest.hours import Hours
from spes_peer.guest.rules import COOLER_BY, GuestRules
from spes_peer.measures import size

_LEAST_DEGREES, _MOST_DEGREES = 30, 120


def add_guest(parser: argparse.ArgumentParser) -> None:
    guest = parser.add_argument_group(
        "good guest", "When it rests by itself, and goes on by itself. Each pause says its reason."
    )
    guest.add_argument(
        "--hours",
        type=_hours,
        metavar="FROM-TO",
        help="train only within these hours of this machine's clock, such as 22:00-08:00; several with commas between"
        " (always)",
    )
    guest.add_argument(
        "--on-battery", action="store_true", help="train on battery too (rests at once when it is not plugged in)"
    )
    guest.add_argument(
        "--yield-gpu",
        action="store_true",
        help="give the GPU back at once, memory too, while another program uses it or much of its memory",
    )
    guest.add_argument(
        "--max-temperature",
        type=_degrees,
        default=0,
        metavar="C",
        help=f"rest at once when the device is warmer, until it is {COOLER_BY:.0f} degrees cooler (no limit)",
    )
    for direction, what in (("upload", "sent"), ("download", "taken")):
        guest.add_argument(
            f"--max-{direction}-per-day",
            type=size,
            default=0,
            metavar="SIZE",
            help=f"rest till midnight when so much was {what} today, such as 20GB; a round that has begun is finished"
            " (no limit)",
        )
    guest.add_argument(
        "--priority",
        choices=("low", "normal"),
        default="low",
        help="of training among this machine's programs: low lets the others go first (%(default)s)",
    )


def guest_rules(options: argparse.Namespace) -> GuestRules:
    return GuestRules(
        hours=options.hours,
        works_on_battery=options.on_battery,
        yields_gpu=options.yield_gpu,
        max_temperature=float(options.max_temperature),
        max_upload_per_day=options.max_upload_per_day,
        max_download_per_day=options.max_download_per_day,
    )


def _hours(text: str) -> Any:
    try:
        return Hours.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _degrees(text: str) -> int:
    if text.isdecimal() and _LEAST_DEGREES <= int(text) <= _MOST_DEGREES:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not degrees Celsius from {_LEAST_DEGREES} to {_MOST_DEGREES}")
