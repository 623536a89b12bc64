"""What a person names to have a model of: a folder of a run, or addresses at which its nodes answer."""

from pathlib import Path

from spes_peer.errors import BadConfiguration
from spes_peer.exchange.addresses import NodeAddress, parse_address
from spes_peer.logs import plain

MODEL_CONFIG = "config.json"


def addresses_in(text: str) -> tuple[NodeAddress, ...]:
    """Those in `text`, with commas between; none where it is a folder. `BadConfiguration` where it is neither."""
    if _is_folder(text):
        return ()
    if "/p2p/" in text or text.startswith(("/ip4/", "/ip6/", "/dns")):
        return tuple(parse_address(one) for one in text.split(","))
    raise BadConfiguration(
        f"{plain(text)!r} is neither a folder nor an address of a run;"
        " an address looks like /dns4/HOST/tcp/4510/p2p/12D3KooW…"
    )


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except OSError:  # longer than any name may be
        return False
