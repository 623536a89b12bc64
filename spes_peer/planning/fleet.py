"""Who might take part: groups of volunteers with one kind of card and one kind of line."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from spes_peer.errors import BadConfiguration
from spes_peer.measures import LEAST, MOST, size
from spes_peer.run.manifest import validated
from spes_peer.run.section import Section
from spes_peer.toml import read_file
from spes_peer.training.traffic import Line
from spes_peer.training.traffic_command import speed

MOST_VOLUNTEERS = 100_000
_UP_PART = 0.2  # of what comes down, where only that is said: what most homes have
T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Volunteers that are alike."""

    count: int
    memory_bytes: int
    """Of the card."""
    line: Line
    tokens_per_second: float = 0.0
    """Of each, measured; 0 where nobody has measured it."""


class _Volunteers(Section):
    """One `[[volunteers]]` of a fleet file."""

    count: int = Field(default=1, ge=1, le=MOST_VOLUNTEERS)
    card: str
    link: str = "100Mb"
    tokens_per_second: float | None = Field(default=None, ge=LEAST, le=MOST)


class _Fleet(Section):
    """A fleet file."""

    volunteers: tuple[_Volunteers, ...] = Field(min_length=1)


def link(text: str) -> Line:
    """ "100Mb" down and a fifth of it up, or "100Mb/20Mb"."""
    down, slash, up = text.partition("/")
    if slash and up.strip() in ("s", ""):  # of "100Mb/s"
        down, slash, up = text, "", ""
    there = speed(down)
    return Line(up=speed(up) if slash else _UP_PART * there, down=there)


def read_fleet(path: Path) -> tuple[Group, ...]:
    """The groups in a file; `BadConfiguration` for one that cannot be used."""
    fleet = validated(_Fleet, read_file(path), path.name)
    return tuple(
        Group(
            one.count, _parsed(size, one.card, path), _parsed(link, one.link, path), one.tokens_per_second or 0.0
        )
        for one in fleet.volunteers
    )  # fmt: skip


def _parsed(parse: Callable[[str], T], text: str, path: Path) -> T:
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        raise BadConfiguration(f"{path.name}: {error}") from None
