"""`tui_statuses` with all that a daemon tells of rounds, peers and transfers, for the tests of these screens."""

import math

import tui_statuses
from tui_statuses import BOOTSTRAP, NAMES, NOW, PEERS

from spes_peer.wire.control_pb2 import (
    ContributionStatus,
    ExchangeStatus,
    PeerStatus,
    RoundPart,
    RoundStatus,
    Status,
    Traffic,
    Transfer,
)

TRANSPORT_WHY = (
    "",
    "its address answers",
    "its address answers",
    "through bootstrap: it was dialled back and did not answer; it is behind a router that lets nobody in",
)
_TOKENS = 20 * 8 * 256  # of one peer in a round


def round_parts(seconds: float, is_late: bool = False) -> list[RoundPart]:
    """A round that was lived from its beginning to its end."""
    shares = {"apply": 0.05, "train": 0.58, "encode": 0.05, "exchange": 0.2, "wait": 0.9 if is_late else 0.12}
    return [RoundPart(name=name, seconds=share * seconds) for name, share in shares.items()]


def closed_round(number: int) -> RoundStatus:
    """In some of them dogwood was late."""
    shown = tui_statuses.closed_round(number)
    is_late = number % 9 == 4
    del shown.contributions[:]
    shown.contributions.extend(ContributionStatus(peer_id=PEERS[n], subsets=[n]) for n in range(4))
    for one in shown.contributions:
        one.is_missing = is_late and one.peer_id == PEERS[3]
        one.tokens, one.num_updates = (0, 0) if one.is_missing else (_TOKENS, 4)
    shown.num_contributors = 3 if is_late else 4
    shown.update_bytes, shown.num_updates = 24_100_000, 12
    shown.merge = "every expert moved 10.0% towards those most like it" if number % 6 == 0 else ""
    shown.parts.extend(round_parts(9.6 + math.sin(number), is_late))
    shown.opened_at = NOW - 741 + 30 * number
    shown.coordinator = BOOTSTRAP
    return shown


def peer(number: int, round_number: int) -> PeerStatus:
    shown = tui_statuses.peer(number, round_number)
    shown.transport_why = TRANSPORT_WHY[number]
    shown.tokens_per_second = (4310, 3980, 2204, 690)[number]
    shown.round_trip_seconds = (0, 0.012, 0.031, 0.184)[number]
    shown.version = "0.5.0"
    shown.standing = "1 mark for experts that did harm, the last in record 17" if NAMES[number] == "dogwood" else ""
    return shown


def transfer(number: int, what: str, share: float, peers: list[int], transport: str = "grpc") -> Transfer:
    return Transfer(
        id=number,
        what=what,
        direction="up" if number % 3 == 0 else "down",
        bytes_done=int(share * 8_400_000),
        num_bytes=8_400_000,
        bytes_per_second=share * 3_100_000,
        peers=[PEERS[one] for one in peers],
        transports=[transport],
        since_at=NOW - 2,
    )


def exchange() -> ExchangeStatus:
    """Four blobs on their way, twelve that ended, three that wait."""
    return ExchangeStatus(
        transfers=[
            transfer(40, "offer of expert 3", 0.62, [1, 2]),
            transfer(41, "offer of expert 6", 0.18, [3], "libp2p"),
            transfer(42, "offer of expert 0", 0.81, [1]),
            transfer(43, "update of expert 2", 0.05, [2]),
        ],
        num_queued=3,
        ended=[transfer(39 - n, f"update of expert {n}", 1.0 if n != 4 else 0.4, [1 + n % 3]) for n in range(12)],
        max_upload=2_500_000,
        this_round=[
            Traffic(transport="grpc", bytes_sent=4_400_000, bytes_received=7_100_000),
            Traffic(transport="libp2p", bytes_sent=1_100_000, bytes_received=1_700_000),
        ],
    )


def status(round_number: int = 24) -> Status:
    """alder in the training of a round, with all that there is to know."""
    shown = tui_statuses.status(round_number)
    del shown.rounds[:], shown.parts[:], shown.traffic[:]
    shown.rounds.extend(closed_round(number) for number in range(1, round_number))
    for number in range(4):
        shown.peers[number].CopyFrom(peer(number, round_number))
    shown.parts.extend([RoundPart(name="apply", seconds=0.5), RoundPart(name="train", seconds=5.2)])
    shown.exchange.CopyFrom(exchange())
    shown.traffic.add(transport="grpc", bytes_sent=220_600_000, bytes_received=331_400_000)
    shown.traffic.add(transport="libp2p", bytes_sent=72_400_000, bytes_received=109_800_000)
    return shown


def status_before_the_first_round() -> Status:
    shown = tui_statuses.status_before_the_first_round()
    for field in ("exchange", "parts", "traffic"):
        shown.ClearField(field)
    return shown
