"""data.json in an organizer's folder: what was prepared for the run, as the manifest will say it."""

from pathlib import Path

from pydantic import ValidationError

from spes_peer.errors import BadConfiguration
from spes_peer.run.data import Data
from spes_peer.run.manifest import in_words

DATA_FILE = "data.json"


def data_in(folder: Path) -> Data | None:
    """What `data prepare` has made in `folder`; None where it has not been there, `BadConfiguration` where that cannot
    be read."""
    path = folder / DATA_FILE
    try:
        return Data.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadConfiguration(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        why = in_words(Data, error)[0]
        raise BadConfiguration(
            f"{path} is damaged ({why}); make it again: spes-peer data prepare {folder} TEXTS --anew"
        ) from None


def read_data(folder: Path) -> Data:
    """The same, where there must be some."""
    if (data := data_in(folder)) is None:
        raise BadConfiguration(f"{folder} has no data yet; make it: spes-peer data prepare {folder} TEXTS")
    return data
