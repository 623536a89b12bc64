"""Colours by meaning, and text from others made harmless."""

import unicodedata

from textual.theme import Theme

# Colours by meaning, of a dark and of a light theme. Others name them as variables of the theme.
_DARK = {
    "ink": "#c8d0e0",
    "dim": "#8893a7",
    "faint": "#4a5468",
    "line": "#2b3342",
    "own": "#6cb6ff",
    "held-out": "#8ddb8c",
    "loss": "#b392f0",
    "speed": "#5fc9c0",
    "warn": "#e3b341",
    "bad": "#f47067",
    "chip": "#11141b",
    "chip-unowned": "#1c222d",
}
_LIGHT = {
    "ink": "#24292f",
    "dim": "#5b6472",
    "faint": "#a3abb8",
    "line": "#d3d8e0",
    "own": "#0a5cc2",
    "held-out": "#1a7f37",
    "loss": "#7b43c9",
    "speed": "#0b7a74",
    "warn": "#8f5d00",
    "bad": "#c2262e",
    "chip": "#fbfcfe",
    "chip-unowned": "#e6eaf0",
}
_DARK_OTHERS = (
    "#f0a35e", "#5fc9c0", "#b392f0", "#ec8fb8", "#c2c86a", "#8fa8c8", "#e58a7b", "#d8b98a", "#79c98d", "#9d8cff",
)  # fmt: skip
_LIGHT_OTHERS = (
    "#a85400", "#0b7a74", "#7b43c9", "#b0387a", "#667000", "#47648c", "#b04532", "#86642a", "#2c7d46", "#5a46d0",
)  # fmt: skip


def _theme(name: str, is_dark: bool, background: str, raised: str) -> Theme:
    colours, others = (_DARK, _DARK_OTHERS) if is_dark else (_LIGHT, _LIGHT_OTHERS)
    return Theme(
        name=name,
        dark=is_dark,
        primary=colours["own"],
        secondary=colours["loss"],
        accent=colours["own"],
        success=colours["held-out"],
        warning=colours["warn"],
        error=colours["bad"],
        foreground=colours["ink"],
        background=background,
        surface=background,
        panel=raised,
        variables={
            **colours,
            **{f"other-{number}": colour for number, colour in enumerate(others)},
            "footer-background": raised,
            "footer-key-foreground": colours["own"],
            "footer-description-foreground": colours["dim"],
            "block-cursor-foreground": colours["chip"],
            "block-cursor-background": colours["own"],
        },
    )


DARK_THEME = _theme("spes-dark", True, "#11141b", "#1c222d")
LIGHT_THEME = _theme("spes-light", False, "#fbfcfe", "#e9edf3")

BOLD = "bold"
INK = "$ink"
DIM = "$dim"  # what explains
FAINT = "$faint"  # what may be overlooked
LINE = "$line"  # frames and empty parts of bars
SELF = "$own"  # this peer, and what has the focus
HELD_OUT = "$held-out"  # what was reached: held-out loss, online
TRAINING = "$loss"  # training loss
SPEED = "$speed"  # what the network does
WARNING = "$warn"  # waits, pauses, overdue
ERROR = "$bad"
CHIP_INK = "$chip"
CHIP_UNOWNED = "$dim on $chip-unowned"
OTHERS = tuple(f"$other-{number}" for number in range(len(_DARK_OTHERS)))
"""Colours of other peers, handed out in order; they repeat when there are more peers than colours."""

PHASES = {
    "training": HELD_OUT,
    "finished": HELD_OUT,
    "starting": WARNING,
    "joining": WARNING,
    "waiting": WARNING,
    "paused": WARNING,
    "leaving": WARNING,
    "failed": ERROR,
}
"""Colours of phases; the others move bytes and have `SPEED`."""

PARTS = {"apply": SELF, "train": HELD_OUT, "encode": TRAINING, "exchange": SPEED, "wait": WARNING}
"""Colours of the parts of a round, in the order in which it has them."""

STATES = {"ONLINE": HELD_OUT, "JOINING": SPEED, "PAUSED": WARNING, "LEAVING": WARNING, "OFFLINE": ERROR}

_SHOWN_CHARACTERS = 200
_MOST_MARKS = 2  # on one letter; no script needs more


def safe(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """One line without what a stranger may not send to a terminal: control or direction characters, piles of marks."""
    cut = " ".join((text if len(text) <= most else f"{text[: most - 1]}…").split())
    kept: list[str] = []
    marks = 0
    for character in cut:
        category = unicodedata.category(character)[0]
        marks = marks + 1 if category == "M" else 0
        if marks <= _MOST_MARKS:
            kept.append("�" if category == "C" else character)
    return "".join(kept)
