"""Names of volunteers on the run's web page: a stranger's text, harmless and told apart."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_runs import peer

from bootstrap.web import names
from bootstrap.web.names import MAX_SHOWN_CHARACTERS, UNNAMED, NameBook, shown_name, told_apart
from spes_peer.identity import PeerId


@pytest.mark.parametrize(
    "name", ["desk", "gran's old laptop", "räknare", "量子", "lab-3 (GPU)", "🚀", "1.2.3", "v2.0", "J. Smith", "B.B."]
)
def test_a_plain_name_is_shown_as_it_is(name: str) -> None:
    assert shown_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "192.0.2.17",
        "me@192.0.2.17:4510",
        "ip-172-31-4-5",
        "host_10_0_0_12",
        "2001:db8::1",
        "fe80::1%eth0",
        "::1",
        "52:54:00:12:34:56",
        "１９２.０.２.１７",
        str(peer(1)),
        str(peer(1))[-34:],
        "12D3KooWabc",
        "9f" * 20,
        "vps12.example.net",
        "Johns-MacBook-Pro.local",
        "gpu box (node7.cluster.example.edu.)",
        "ｖｐｓ１２．ｅｘａｍｐｌｅ",
        "bücher.example",
        "host.xn--p1ai",
        "192.0.\u200b2.17",
        "vps12.\u200bexample",
    ],
)
def test_a_name_that_gives_away_an_address_a_key_or_a_host_is_not_shown(name: str) -> None:
    assert shown_name(name) == UNNAMED


@pytest.mark.parametrize("name", ["", "   ", "\u202e\u2066", "\u3164\u3164", "\u2800", "\u0301\u0301"])
def test_a_name_of_nothing_is_a_volunteer(name: str) -> None:
    assert shown_name(name) == UNNAMED


def test_signs_that_turn_or_hide_text_or_climb_over_lines_are_taken_out() -> None:
    assert shown_name("moc \u202eelpmaxe\u2069\x1b[31m\r\nnow") == "moc elpmaxe[31mnow"
    assert shown_name("z" + "\u0335" * 30 + "o") == "z\u0335\u0335o"


@given(st.text(max_size=80))
def test_whatever_the_name_is_what_is_shown_is_short_printable_and_stays_what_it_is(name: str) -> None:
    shown = shown_name(name)
    assert 0 < len(shown) <= MAX_SHOWN_CHARACTERS
    assert shown.isprintable()
    assert not any(unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") for sign in shown)
    assert shown_name(shown) == shown


def test_of_two_with_one_name_who_came_later_has_a_number() -> None:
    labels = told_apart({peer(1): "gpu", peer(2): "gpu", peer(3): "GPU", peer(4): "ｇｐｕ", peer(5): "other"})
    assert list(labels.values()) == ["gpu", "gpu (2)", "GPU (3)", "gpu (4)".replace("gpu", "ｇｐｕ"), "other"]


def test_who_calls_itself_what_another_would_be_numbered_gets_a_number_of_its_own() -> None:
    labels = told_apart({peer(1): "gpu (2)", peer(2): "gpu", peer(3): "gpu"})
    assert list(labels.values()) == ["gpu (2)", "gpu", "gpu (3)"]


@given(st.lists(st.sampled_from(["a", "A", "a (2)", "a (3)", "", "b", "192.0.2.1"]), max_size=12))
def test_no_two_are_shown_alike(chosen: list[str]) -> None:
    labels = told_apart({PeerId(f"peer {number}"): name for number, name in enumerate(chosen)})
    assert len({label.casefold() for label in labels.values()}) == len(chosen)


def test_a_thousand_of_one_name_are_numbered_in_no_time() -> None:
    labels = told_apart({PeerId(str(number)): "x" for number in range(5000)})
    assert labels[PeerId("4999")] == "x (5000)"


def test_who_has_left_is_still_known_by_name_after_a_restart(tmp_path: Path) -> None:
    book = NameBook(tmp_path / "names.json")
    book.note([(peer(1), "desk"), (peer(2), "desk")])
    book.note([(peer(1), "Desk at home")])
    again = NameBook(tmp_path / "names.json")
    assert dict(again.labels()) == {peer(1): "Desk at home", peer(2): "desk"}
    assert (tmp_path / "names.json").stat().st_mode & 0o077 == 0


def test_the_file_is_written_only_when_something_has_changed(tmp_path: Path) -> None:
    book = NameBook(tmp_path / "names.json")
    book.note([(peer(1), "desk")])
    (tmp_path / "names.json").unlink()
    book.note([(peer(1), "desk")])
    assert not (tmp_path / "names.json").exists()


def test_the_book_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_KNOWN", 3)
    book = NameBook(tmp_path / "names.json")
    book.note((peer(number), f"n{number}") for number in range(1, 9))
    assert list(book.labels().values()) == ["n1", "n2", "n3"]
    book.note([(peer(2), "renamed"), (peer(9), "late")])
    assert list(book.labels().values()) == ["n1", "renamed", "n3"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version":1,"names":[[1]]}', b'{"version":1,"names":7}', b"\xff", b"[" * 100_000]
)
def test_a_damaged_file_costs_names_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "names.json").write_bytes(content)
    book = NameBook(tmp_path / "names.json")
    book.note([(peer(1), "desk")])
    assert dict(NameBook(tmp_path / "names.json").labels()) == {peer(1): "desk"}


def test_a_folder_that_takes_no_file_costs_the_file_alone(tmp_path: Path) -> None:
    book = NameBook(tmp_path / "gone" / "names.json")
    book.note([(peer(1), "desk")])
    assert dict(book.labels()) == {peer(1): "desk"}
