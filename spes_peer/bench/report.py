"""What was measured, for programs."""

import json
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration


def write_report(path: str, report: dict[str, Any]) -> None:
    """Write `report` as JSON; raises `BadConfiguration` where that cannot be."""
    try:
        Path(path).write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise BadConfiguration(f"cannot write the report {path}: {error.strerror}") from None
