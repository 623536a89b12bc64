"""An organizer's command against real nodes: it finds them, checks what they show, and sees the change in a record."""

import asyncio
import dataclasses
from pathlib import Path

import pytest
from run_nodes import RunNodes
from test_following_follower import PATIENCE_SECONDS, UNHURRIED, Open, Run, opened, soon

from spes_peer import cli
from spes_peer.amending.command import Asked, amend
from spes_peer.amending.organizer import Organizer
from spes_peer.errors import BadConfiguration, NotAdmitted, SpesError
from spes_peer.exchange.introduction import Description
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.run.manifest import Manifest
from spes_peer.run.rules import Change, amendment_in, sign_amendment

__all__ = ["opened"]

STRANGER = Identity.from_seed(b"\x63" * 32)


def shown_by(nodes: RunNodes, node: Node) -> str:
    """The address at which strangers get to know this node."""
    entry = nodes.entry(node)
    node.description = lambda: Description(  # type: ignore[method-assign]
        node.signed_manifest, node.signer.sign(nodes.entry(node)), node.head_round, node.now()
    )
    return f"/ip4/127.0.0.1/tcp/{entry.grpc_addresses[0].rpartition(':')[2]}/p2p/{node.peer_id}"


def organizer_of(run: Run, folder: Path, key: Identity) -> Organizer:
    """With nothing in its folder but the run."""
    folder.mkdir()
    node = run.bootstrap.node
    return Organizer(folder, node.signed_manifest.open(), node.run_id, key)


async def told(organizer: Organizer, asked: Asked) -> list[str]:
    said: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        await amend(organizer, asked, say=lambda _text: None, tell=said.append)
    return said


async def test_a_change_brought_to_one_member_is_in_the_next_record_also_without_the_bootstrap_nodes_help(
    opened: Open, tmp_path: Path, organizer: Identity
) -> None:
    async with opened(4, timing=UNHURRIED) as run:
        run.start()
        member = shown_by(run.nodes, run.members[1].node)
        said = await told(organizer_of(run, tmp_path / "o", organizer), Asked(Change(is_paused=True), (member,)))
        assert "carries amendment 1" in said[0]
        assert "the run is paused since" in said[1]
        await soon(lambda: all(one.node.rules.is_paused for one in run.all))
        assert not run.bootstrap.head.record.trains
        await soon(lambda: not any((one.node.folder.path / "amendment").exists() for one in run.all))


async def test_two_changes_one_after_the_other_are_both_in_the_chain_also_if_nobody_waited(
    opened: Open, tmp_path: Path, organizer: Identity
) -> None:
    async with opened(3, timing=UNHURRIED) as run:  # nobody follows: no record comes
        here = organizer_of(run, tmp_path / "o", organizer)
        address = shown_by(run.nodes, run.members[0].node)
        first = await told(here, Asked(Change(is_paused=True), (address,), waits=False))
        assert first == ["amendment 1 waits for the next record"]
        await told(here, Asked(Change(round_seconds=20.0), (address,), waits=False))
        run.start()
        await soon(lambda: run.bootstrap.node.rules.round_seconds == 20.0)
        assert run.bootstrap.node.rules.is_paused
        carried = amendment_in(run.bootstrap.head.record)
        assert carried is not None
        assert carried.number == 1
        assert await told(here, Asked(Change(is_paused=True), (address,))) == [
            "nothing changes: the run goes by these rules already"
        ]


async def test_an_end_in_the_past_is_refused_and_a_planned_one_can_be_taken_back(
    opened: Open, tmp_path: Path, organizer: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Asked] = []

    async def noted(_organizer: Organizer, asked: Asked, **_told: object) -> None:
        sent.append(dataclasses.replace(asked, named=(address,), waits=False))

    async with opened(3, timing=UNHURRIED) as run:
        run.start()
        await soon(lambda: run.bootstrap.node.head_round >= 2)
        here, node = organizer_of(run, tmp_path / "o", organizer), run.members[0].node
        address = shown_by(run.nodes, node)
        monkeypatch.setattr("spes_peer.amending.command.amend", noted)
        monkeypatch.setattr(Organizer, "of", lambda *_named: here)
        parser = cli._parser()
        for words in (["--after", "1"], ["--after", "4000"], ["--never"], []):
            options = parser.parse_args(["run", "finish", str(here.folder), *words])
            await asyncio.to_thread(options.run, options)
        past, later, never, now = sent
        with pytest.raises(BadConfiguration, match=r"round 1 is over, round \d+ is open"):
            await told(here, past)
        await told(here, dataclasses.replace(later, waits=True))
        assert node.rules.finish_after_round == 4000
        assert "does not end early any more" in "\n".join(await told(here, dataclasses.replace(never, waits=True)))
        assert not node.chain.head.record.is_final  # type: ignore[union-attr]
        assert (now.finishes, never.finishes, later.finishes) == (True, False, False)


async def test_a_key_that_is_no_organizers_and_rules_that_cannot_be_are_refused_before_anything_is_sent(
    opened: Open, tmp_path: Path, organizer: Identity
) -> None:
    async with opened(3) as run:
        address = shown_by(run.nodes, run.members[0].node)
        with pytest.raises(NotAdmitted, match="is no organizer's of this run"):
            await told(organizer_of(run, tmp_path / "s", STRANGER), Asked(Change(is_paused=True), (address,)))
        here = organizer_of(run, tmp_path / "o", organizer)
        with pytest.raises(BadConfiguration, match="nobody would be an organizer"):
            await told(here, Asked(Change(remove_organizers=(organizer.peer_id,)), (address,)))
        with pytest.raises(BadConfiguration, match="no node of the run is known"):
            await told(here, Asked(Change(is_paused=True)))


async def test_a_node_takes_no_strangers_amendment_and_an_old_one_is_refused_with_the_reason(
    opened: Open, organizer: Identity
) -> None:
    async with opened(3, timing=UNHURRIED) as run:
        node = run.members[0].node
        forged = sign_amendment(Change(is_paused=True).of(node.rules, 1.0), None, STRANGER, node.run_id, 1.0)
        assert "is no organizer of this run" in node.amend(forged).why_not
        first = sign_amendment(Change(quorum=1).of(node.rules, 1.0), None, organizer, node.run_id, 1.0)
        assert not node.amend(first).why_not
        assert node.amend(first).pending == first
        run.start()
        await soon(lambda: node.head_round > 1 and node.head_hash != b"" and node.amend(None).carried == first)
        late = sign_amendment(Change(quorum=2).of(node.rules, 2.0), None, organizer, node.run_id, 2.0)
        assert "amendment 1 is over: the run has amendment 1" in node.amend(late).why_not


async def test_a_node_that_shows_rules_of_its_own_gets_them_from_nobody_signed(
    opened: Open, tmp_path: Path, organizer: Identity
) -> None:
    async with opened(3) as run:
        node = run.members[0].node
        forged = sign_amendment(
            Change(add_organizers=(STRANGER.peer_id,)).of(node.rules, 1.0), None, STRANGER, node.run_id, 1.0
        )
        honest, head = node.records_from, node.chain.head
        assert head is not None
        record = dataclasses.replace(head.record, amendment=forged)
        liar = run.nodes.signed(record, (0, 1, 2))
        node.records_from = lambda first: [*list(honest(first))[:-1], liar]  # type: ignore[method-assign]
        node.amend = lambda _brought: dataclasses.replace(Node.amend(node, None), pending=forged)  # type: ignore[method-assign]
        address = shown_by(run.nodes, node)
        here = organizer_of(run, tmp_path / "o", organizer)
        said = await told(here, Asked(Change(quorum=1), (address,), waits=False))
        assert said == ["amendment 1 waits for the next record"]
        taken = run.members[1].node.rules
        assert STRANGER.peer_id not in taken.organizers


@pytest.mark.parametrize(
    "content",
    [
        *("{}x", "7", '{"a": 1}', "[7]", '["x"]', "[null]", '[{"id": "x"}]', "[" * 100_000, "\x80"),
        *(f'[{{"id": "x", "for": "", "expires_at": {at}}}]' for at in ("null", '"soon"', "NaN", "1e300", "-1")),
        '[{"id": "\\u001b[2J", "for": "", "expires_at": 1}]',
    ],
)
def test_a_list_of_invitations_that_is_none_is_named_whatever_it_is(
    content: str, tmp_path: Path, manifest: Manifest, organizer: Identity
) -> None:
    here = Organizer(tmp_path, manifest, bytes(32), organizer)
    here.invite(1.0)
    assert len(here.invitations()) == 1
    (tmp_path / "invitations.json").write_bytes(content.encode("latin-1"))
    for use in (here.invitations, lambda: here.invitation_called("x"), lambda: here.invite(1.0)):
        with pytest.raises(BadConfiguration, match=r"invitations\.json is damaged"):
            use()


async def test_a_lost_answer_is_no_silence(opened: Open, tmp_path: Path, organizer: Identity) -> None:
    async with opened(3) as run:
        node = run.members[0].node
        node.amend = lambda _brought: dataclasses.replace(Node.amend(node, None), why_not="not today")  # type: ignore[method-assign]
        here = organizer_of(run, tmp_path / "o", organizer)
        with pytest.raises(SpesError, match="no node takes the amendment: not today"):
            await told(here, Asked(Change(quorum=1), (shown_by(run.nodes, node),), waits=False))
