"""Words of other peers, in logs, in the status and on the way there: one line each, short, and nothing but text."""

import logging
import sys

import pytest
from test_fuzz_decoders import ENTRY

from spes_peer.daemon.status import LogRing
from spes_peer.daemon.status_words import in_words
from spes_peer.errors import BadMessage
from spes_peer.logs import MOST_CHARACTERS, PlainFormatter, plain
from spes_peer.run.peers import PeerEntry
from spes_peer.wire import convert
from spes_peer.wire.control_pb2 import PeerStatus, Phase, Service, Status
from spes_peer.wire.signed_pb2 import PeerEntry as EntryMessage

HOSTILE = {
    "markup": "[/red][x",
    "terminal": "\x1b]0;title\x07\x1b[2J\x9b31m",
    "another line": "hi\n2026-01-01 00:00:00 ERROR your key is lost\r\x85\u2028",
    "direction": "\u202egnp.exe\u2066",
    "nothing": "\0\ud83d",
    "ten kilobytes": "x" * 10_000,
}
words = pytest.mark.parametrize("said", HOSTILE.values(), ids=HOSTILE.keys())


def is_harmless(text: str) -> bool:
    return text.isprintable() and len(text) <= MOST_CHARACTERS + 200  # with what we say ourselves


@words
def test_words_of_others_become_one_line_of_text(said: str) -> None:
    assert plain(said).isprintable()
    assert len(plain(said, 30)) <= 30
    assert plain("[/red] où, 見る · –") == "[/red] où, 見る · –"


@words
def test_a_name_is_short_and_printable_or_its_entry_is_refused(said: str) -> None:
    message = EntryMessage.FromString(convert.encode(ENTRY))
    message.name = said.replace("\ud83d", "")  # protobuf carries none
    if said == HOSTILE["markup"]:
        assert convert.from_message(PeerEntry, message).name == said
    else:
        with pytest.raises(BadMessage, match="too long or not printable"):
            convert.from_message(PeerEntry, message)


@words
def test_a_line_of_a_log_is_one_line_whatever_is_logged(said: str) -> None:
    ring = LogRing()
    record = logging.LogRecord("spes_peer", logging.WARNING, "", 0, "dropped a message reason=%s", (said,), None)
    line = PlainFormatter("%(levelname)s %(message)s").format(record)
    ring.emit(record)
    for text in (line, ring.lines[0].text):
        assert is_harmless(text)
        assert "dropped a message reason=" in text


def test_a_traceback_of_our_own_keeps_its_lines() -> None:
    try:
        raise ValueError("a fault\x1b[2J")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert "Traceback" in PlainFormatter("%(message)s").format(record).splitlines()[1]


@words
def test_the_status_in_words_has_as_many_lines_as_facts(said: str) -> None:
    said = said.replace("\ud83d", "")  # protobuf carries none

    def status(text: str) -> Status:
        phase = Phase(name=text, why=text, waiting_for=[text])
        shown = Status(name=text, phase=phase, round_phase=phase, troubles=[text], reachability_why=text)
        shown.run.name = shown.run.model = text
        shown.peers.append(PeerStatus(peer_id="p", name=text, state=text, transport=text, transport_why=text))
        shown.services.append(Service(name=text, state=text, why=text))
        return shown

    lines = in_words(status(said)).split("\n")
    assert len(lines) == len(in_words(status("fine")).split("\n"))
    assert all(map(is_harmless, lines))
