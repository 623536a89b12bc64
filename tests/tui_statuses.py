"""Statuses as a daemon in a small run sends them, for the tests of the dashboard and the control API."""

import math

from spes_peer.wire.control_pb2 import (
    ContributionStatus,
    DeviceStatus,
    Given,
    LogLine,
    PeerStatus,
    Phase,
    RoundPart,
    RoundStatus,
    RunInfo,
    Service,
    Status,
    SubsetStatus,
    Traffic,
)

NOW = 1_760_000_000.0
NAMES = ("alder", "birch", "cedar", "dogwood")
PEERS = tuple(f"12D3KooWJ4mK8xQpYvT6bR2sN9cE{name}" for name in NAMES)
BOOTSTRAP = "12D3KooWLf2pB0otsTrApNodeOfTheOrganizer"


def run_info() -> RunInfo:
    return RunInfo(
        run_id="3f9a12c07be4" * 5,
        name="bytes-of-python",
        organizer=BOOTSTRAP,
        model="5.2M parameters, 8 experts, top-2, sequence 256",
        num_experts=8,
        num_subsets=4,
        steps_per_round=20,
        total_steps=2000,
    )


def closed_round(number: int) -> RoundStatus:
    loss = 2.3 + 3.2 * math.exp(-number / 9)
    return RoundStatus(
        round=number,
        state_root=f"{number * 7919 % 65536:04x}c0ffee" + "0" * 54,
        held_out_loss=loss,
        train_loss=loss - 0.05 + 0.12 * math.sin(number * 1.7),
        tokens=20 * 4 * 8 * 256,
        seconds=9.6 + math.sin(number),
        traffic=[
            Traffic(transport="grpc", bytes_sent=9_400_000, bytes_received=14_100_000),
            Traffic(transport="libp2p", bytes_sent=3_100_000, bytes_received=4_700_000),
        ],
        num_contributors=4,
        contributions=[
            ContributionStatus(peer_id=PEERS[n], tokens=20 * 8 * 256, subsets=[n], num_updates=3) for n in range(4)
        ],
        opened_at=NOW - 10 * (24 - number),
    )


def peer(number: int, round_number: int) -> PeerStatus:
    transport = "libp2p" if NAMES[number] == "dogwood" else "grpc"
    traffic = [
        Traffic(transport=transport, bytes_sent=3_100_000 * round_number, bytes_received=4_700_000 * round_number)
    ]
    return PeerStatus(
        peer_id=PEERS[number],
        name=NAMES[number],
        role="volunteer",
        state="ONLINE",
        subsets=[number],
        transport="" if number == 0 else transport,
        route="" if number == 0 else "relay" if transport == "libp2p" else "direct",
        sequences_per_step=8,
        is_self=number == 0,
        traffic=[] if number == 0 else traffic,
        seen_at=NOW - number,
    )


def status(round_number: int = 24) -> Status:
    """alder, in the training of a round, with `round_number` - 1 rounds behind it."""
    done = list(range(1, round_number))
    bootstrap = PeerStatus(
        peer_id=BOOTSTRAP, name="bootstrap", role="bootstrap", state="ONLINE", transport="grpc", is_coordinator=True
    )
    bootstrap.seen_at = NOW - 2
    shown = Status(
        pid=4711,
        peer_id=PEERS[0],
        name=NAMES[0],
        run=run_info(),
        round=round_number,
        step=20 * (round_number - 1),
        phase=Phase(
            name="training", since_at=NOW - 6, until_at=NOW + 47, why="step 13 of 20 on its own part of the text"
        ),
        round_phase=Phase(
            name="training",
            since_at=NOW - 6,
            waiting_for=[PEERS[1], PEERS[3]],
            until_at=NOW + 53,
            why="2 of 4 contributions are in",
        ),
        subsets=[
            SubsetStatus(
                subset=n,
                experts=[2 * n, 2 * n + 1],
                owners=[PEERS[n]],
                rounds_trained=len(done),
                router_share=(0.31, 0.27, 0.24, 0.18)[n],
            )
            for n in range(4)
        ],
        peers=[*(peer(n, round_number) for n in range(4)), bootstrap],
        rounds=[closed_round(n) for n in done],
        log=[log_line(n) for n in range(3 * len(done))],
        state_root="9b1c" * 16,
        held_out_loss_start=5.545,
        reachability="direct",
        started_at=NOW - 753,
        traffic=[Traffic(transport="grpc", bytes_sent=217_000_000, bytes_received=325_000_000)],
        parts=[RoundPart(name=name, seconds=seconds) for name, seconds in (("apply", 0.8), ("train", 6.1))],
        device=DeviceStatus(
            name="cuda:0 NVIDIA RTX 4090",
            used_bytes=15_200_000_000,
            own_bytes=9_400_000_000,
            total_bytes=24_000_000_000,
            use=0.93,
            temperature=67,
        ),
        given=Given(tokens=41_200_000, rounds=312, seconds=11_520, bytes_sent=2_900_000_000),
        state_folder="/home/alder/.local/share/spes-peer",
        services=[
            Service(name=name, state="running", since_at=NOW - 750) for name in ("trainer", "DHT node", "libp2p node")
        ],
    )
    training = shown.training
    training.steps_done, training.num_steps, training.loss = 13, 20, 2.532
    training.tokens_per_second, training.device, training.memory_bytes = 4310.0, "cpu", 433_000_000
    return shown


def log_line(sequence: int) -> LogLine:
    texts = (
        "round opened round={} peers=4 deadline_seconds=60",
        "round contributed round={} blobs=12 bytes_sent=3100000",
        "round closed round={} held_out_loss=2.87 state_root=9b1c44d0",
    )
    warning = "a fetch goes on with another source blob=5f02ac peer=birch"
    is_warning = sequence % 17 == 16
    return LogLine(
        sequence=sequence,
        at=NOW - 700 + 10 * sequence,
        level="WARNING" if is_warning else "INFO",
        text=warning if is_warning else texts[sequence % 3].format(1 + sequence // 3),
    )


def status_before_the_first_round() -> Status:
    """Two of four volunteers are admitted, nothing is trained."""
    shown = status(1)
    shown.round, shown.step = 0, 0
    shown.ClearField("training")
    del shown.rounds[:], shown.log[:]
    for number in (2, 3):
        del shown.peers[number].subsets[:], shown.subsets[number].owners[:]
        shown.peers[number].state = "JOINING"
    shown.subsets[2].claimants.append(PEERS[2])
    shown.phase.CopyFrom(Phase(name="waiting", since_at=NOW - 20, why="2 more volunteers are needed to open round 1"))
    texts = ("joined the run name=bytes-of-python", "claimed subset=0 experts=0,1", "admitted round=1 subsets=0")
    shown.log.extend(LogLine(sequence=n, at=NOW - 30 + 4 * n, level="INFO", text=text) for n, text in enumerate(texts))
    shown.ClearField("round_phase")
    return shown
