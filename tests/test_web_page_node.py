"""The run's page of a real node: what gets out of it, what it remembers, and that the node does not notice."""

import asyncio
import base64
import dataclasses
import ipaddress
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from chain_parts import FIRST, PEERS, begun, branch, certify, following, grown, trained
from rounds_swarm import genesis
from run_nodes import RunNodes, run_nodes

from bootstrap.web.history import History
from bootstrap.web.seeing import view_of
from bootstrap.web.serving import served
from bootstrap.web.source import NAMES_FILE, Source
from spes_peer.following.follower import Follower
from spes_peer.identity import Identity, public_key_of
from spes_peer.node import Node
from spes_peer.rounds.messages import CoordinatorBeat
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import CertifiedRecord

PATHS = (
    *("/", "/api/run.json", "/api/rounds.json", "/api/experts.json", "/api/volunteers.json"),
    *("/metrics", "/config.json", "/nothing", "/model.safetensors"),
)
NAMES = {1: "ada", 2: "198.51.100.7", 3: "ada"}


@pytest.fixture
async def run(tmp_path: Path, manifest: Manifest, organizer: Identity) -> AsyncIterator[RunNodes]:
    # who is silent for longer is not heard any more, and the machine is shared
    patience = {"coordinator_timeout_seconds": 300.0, "stall_timeout_seconds": 400.0}
    async with run_nodes(tmp_path, manifest, organizer, 4, patience) as nodes:
        keeper = nodes.nodes[0]
        for number, name in NAMES.items():
            entry = nodes.entry(nodes.nodes[number])
            keeper.take_entry(
                dataclasses.replace(
                    entry,
                    name=name,
                    written_at=entry.written_at + 1,
                    libp2p_addresses=(f"/ip4/203.0.113.9/tcp/4511/p2p/{entry.peer_id}",),
                    dht_addresses=(f"/ip4/203.0.113.9/tcp/4512/p2p/{entry.peer_id}",),
                )
            )
        open_round(nodes, [1, 2, 3])
        yield nodes


def open_round(nodes: RunNodes, members: list[int]) -> None:
    keeper = nodes.nodes[0]
    assert keeper.chain.head is not None
    record = nodes.opened(keeper.chain.head, members, keeper.layout)
    keeper.take_record(nodes.signed(record, [0, 1, 2, 3]))


def source_of(node: Node) -> Source:
    return Source(node, lambda: [f"/ip4/127.0.0.1/tcp/4510/p2p/{node.peer_id}"], lambda: None)


def secrets_of(node: Node) -> set[str]:
    """All by which a volunteer can be known, called or impersonated, however it may be written."""
    key, certificate = public_key_of(node.peer_id), node.tls.certificate_der
    raw = [node.identity.seed, key, certificate]
    return {
        *(node.peer_id, node.peer_id[-8:], node.peer_id[:20]),
        *(f":{endpoint.port}" for endpoint in node.reach.endpoints("grpc")),
        *(one.hex() for one in raw),
        *(base64.b64encode(one).decode().rstrip("=") for one in raw),
    }


async def test_nothing_by_which_a_volunteer_could_be_found_or_impersonated_gets_out(
    run: RunNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper, volunteers = run.nodes[0], run.nodes[1:]
    follower = Follower(keeper, lambda work: work.close())
    said: dict[str, str] = {}
    addresses = [f"/ip4/127.0.0.1/tcp/4510/p2p/{keeper.peer_id}"]
    async with served(follower, "127.0.0.1", 0, lambda: addresses), aiohttp.ClientSession() as visit:
        beat = CoordinatorBeat(
            0, 1, "training", 0.0, tuple(one.peer_id for one in volunteers), 0.0, volunteers[0].peer_id
        )
        follower.on_message(keeper.peer_id, beat)
        match = re.search(r"the run's web page: (http://\S+?)/\n", capsys.readouterr().out)
        assert match is not None
        for path in PATHS:
            async with visit.get(match[1] + path) as answer:
                body = b""
                try:
                    async for chunk in answer.content.iter_any():
                        body += chunk
                except aiohttp.ClientError:
                    assert path == "/model.safetensors"  # made-up blobs are not here
                said[path] = str(answer.headers) + body.decode("utf-8", "replace")
    text = "\n".join(said.values())
    assert "ada" in said["/"]
    assert "ada (2)" in said["/api/volunteers.json"]
    for volunteer in volunteers:
        assert not [secret for secret in secrets_of(volunteer) if secret in text]
    assert set(re.findall(r"12D3Koo[1-9A-HJ-NP-Za-km-z]+", text)) == {keeper.peer_id}
    shown_ips = {one for one in re.findall(r"\d+\.\d+\.\d+\.\d+", text) if ipaddress.ip_address(one)}
    assert shown_ips <= {"127.0.0.1"}
    assert '"waiting_for":["a' in said["/api/run.json"]


async def test_who_has_left_is_still_thanked_by_name_after_a_restart(run: RunNodes) -> None:
    keeper = run.nodes[0]
    await source_of(keeper).facts()
    for volunteer in run.nodes[1:]:
        del keeper.entries[volunteer.peer_id]
    facts = await source_of(keeper).facts()
    assert sorted(facts.labels.values()) == ["a volunteer", "ada", "ada (2)"]
    assert (keeper.folder.path / NAMES_FILE).stat().st_mode & 0o777 == 0o600


async def test_a_name_counts_only_of_whom_a_record_names(run: RunNodes) -> None:
    keeper = run.nodes[0]
    stranger = Identity.from_seed(b"\x77" * 32).peer_id
    keeper.take_entry(dataclasses.replace(run.entry(run.nodes[1]), peer_id=stranger, name="a stranger"))
    facts = await source_of(keeper).facts()
    assert stranger not in facts.labels
    assert view_of(facts).num_waiting == 1


async def test_a_coordinator_counts_while_it_is_heard_and_for_the_open_round(run: RunNodes) -> None:
    keeper = run.nodes[0]
    source = source_of(keeper)
    assert view_of(await source.facts()).phase.name == "electing"
    source.on_message(CoordinatorBeat(0, 1, "training", 0.0, (), 0.0, ""))
    assert view_of(await source.facts()).phase.name == "training"
    assert view_of(await source.facts()).closed(1, 2)[0].coordinator == "this bootstrap node"
    open_round(run, [1, 2])
    assert view_of(await source.facts()).phase.name == "electing"
    source.on_message(CoordinatorBeat(0, 2, "reducing", 0.0, (), 0.0, ""))
    assert view_of(await source.facts()).phase.name == "averaging"
    later = keeper.now() + keeper.manifest.timing.coordinator_timeout_seconds
    keeper.now = lambda: later  # type: ignore[method-assign]
    assert view_of(await source.facts()).phase.name == "electing"


async def test_without_a_snapshot_the_first_weights_are_what_there_is(run: RunNodes) -> None:
    facts = await source_of(run.nodes[0]).facts()
    layout = run.nodes[0].layout
    assert facts.checkpoint_round == 0
    assert facts.checkpoint_bytes == sum(layout.state_bytes(block) for block in layout.state_blocks)


async def test_record_0_which_names_every_block_is_read_once_whoever_asks(
    run: RunNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = run.nodes[0]
    source, read = source_of(keeper), keeper.chain.record
    await source.facts()
    rounds: list[int] = []

    def counted(round: int) -> CertifiedRecord:
        rounds.append(round)
        return read(round)

    monkeypatch.setattr(keeper.chain, "record", counted)
    snapshot = source.checkpoint()
    assert snapshot is source.checkpoint()
    await source.facts()
    assert 0 not in rounds


async def test_while_many_records_are_read_others_have_their_turn(run: RunNodes) -> None:
    for _ in range(20):
        open_round(run, [1, 2, 3])
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    facts = await source_of(run.nodes[0]).facts()
    counting.cancel()
    assert len(facts.rows) == 22
    assert turns >= 20


# ---- the history ----


def rows_of(history: History, chain: object) -> list[int]:
    while history.follow(chain):  # type: ignore[arg-type]
        pass
    return [row.round for row in history.rows]


def test_the_history_follows_the_chain_and_adds_up_its_tokens(tmp_path: Path, manifest: Manifest) -> None:
    zero = genesis(Layout(manifest)).seal()
    chain, history = grown(tmp_path, zero, 3), History()
    assert rows_of(history, chain) == [0, 1, 2]
    assert chain.head is not None
    chain.append(certify(following(chain.head, tokens=70, updates=trained(40, 30)), *PEERS[:3]))
    assert rows_of(history, chain) == [0, 1, 2, 3]
    last = history.rows[-1]
    assert (last.total_tokens, last.num_contributors, last.num_members) == (70, 2, len(PEERS))


def test_the_history_goes_back_with_the_chain(tmp_path: Path, manifest: Manifest) -> None:
    zero = genesis(Layout(manifest)).seal()
    chain, history = begun(tmp_path, zero), History()
    chain.append(certify(following(zero), *PEERS[:3], FIRST))
    base = chain.head
    assert base is not None
    for tokens in (10, 20):
        assert chain.head is not None
        chain.append(
            certify(following(chain.head, tokens=tokens, updates=trained(tokens)), uncertified=[PEERS[0]]),
        )
    assert rows_of(history, chain) == [0, 1, 2, 3]
    switch = chain.adopt(branch(base, ({"tokens": 5, "updates": trained(5)}, PEERS[:3])))
    assert switch is not None
    history.drop_from(switch.first_round)
    assert rows_of(history, chain) == [0, 1, 2]
    assert [row.total_tokens for row in history.rows] == [0, 0, 5]


@pytest.mark.parametrize("loss", [-1.0, 1e300])
def test_a_loss_that_is_none_leaves_a_gap(tmp_path: Path, manifest: Manifest, loss: float) -> None:
    zero = genesis(Layout(manifest)).seal()
    chain, history = begun(tmp_path, zero), History()
    chain.append(certify(following(zero, train_loss=loss, held_out_loss=loss), *PEERS[:3], FIRST))
    rows_of(history, chain)
    assert (history.rows[1].train_loss, history.rows[1].held_out_loss) == (None, None)
