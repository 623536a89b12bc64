"""What the doctor says of one thing, and how a person reads it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`what` is well, or what to do about it."""

    what: str
    said: str
    advice: str = ""
    """What to do; empty where all is well."""
    stops: bool = False
    """Whether a volunteer cannot take part like this."""

    @property
    def verdict(self) -> str:
        if not self.advice:
            return "ok"
        return "bad" if self.stops else "hint"


def in_words(finding: Finding) -> str:
    """One line, and a second with the advice."""
    line = f"{finding.verdict:<5} {finding.what:<14} {finding.said}"
    return f"{line}\n{'':<20} → {finding.advice}" if finding.advice else line


def are_fit(findings: Iterable[Finding]) -> bool:
    return not any(finding.verdict == "bad" for finding in findings)
