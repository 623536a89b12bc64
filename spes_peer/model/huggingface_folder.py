"""What a stranger's Hugging Face folder says of its model, read with a bound."""

import json
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration

_MAX_CONFIG_BYTES = 1 << 20


def read_config(folder: Path) -> dict[str, Any]:
    """Its config.json; `BadConfiguration` where there is none, or another thing than a table of at most a MiB."""
    path = folder / "config.json"
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_MAX_CONFIG_BYTES))
    except FileNotFoundError:
        raise BadConfiguration(f"{folder} is no Hugging Face folder: it has no config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadConfiguration(f"cannot read {path}: {error}") from None
    if not isinstance(config, dict):
        raise BadConfiguration(f"{path} is not a table of settings")
    return config
