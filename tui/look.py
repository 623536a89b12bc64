"""Colours by meaning, and text from others made harmless."""

import unicodedata

from textual.theme import Theme

THEME = Theme(
    name="spes",
    primary="#6cb6ff",  # this peer, and what has the focus
    secondary="#b392f0",  # training loss
    accent="#5fc9c0",  # what the network does
    success="#8ddb8c",  # what was reached: held-out loss, online
    warning="#e3b341",  # waits, pauses, overdue
    error="#f47067",
    foreground="#c8d0e0",
    background="#11141b",
    surface="#11141b",
    panel="#1c222d",
    variables={
        "footer-background": "#171c25",
        "footer-key-foreground": "#6cb6ff",
        "footer-description-foreground": "#8893a7",
    },
)

BOLD = "bold"
DIM = "#8893a7"
FAINT = "#4a5468"
SELF = "#6cb6ff"
HELD_OUT = "#8ddb8c"
TRAINING = "#b392f0"
SPEED = "#5fc9c0"
SPEED_COLUMNS = "#35706d"
WARNING = "#e3b341"
ERROR = "#f47067"
CHIP_INK = "#11141b"
CHIP_UNOWNED = f"{DIM} on #1c222d"
OTHERS = ("#f0a35e", "#5fc9c0", "#b392f0", "#ec8fb8", "#c2c86a", "#8fa8c8", "#e58a7b", "#d8b98a", "#79c98d", "#9d8cff")
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
