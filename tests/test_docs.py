"""What README and docs name is there: files that they link to, commands and flags that they show."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.cli import _parser as bootstrap_parser
from spes_peer.cli import _parser as peer_parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OF_TODAY = [page for page in PAGES if page.name not in ("LOG.md", "REFERENCE.md")]  # a log tells what was
PARSERS = {"spes-peer": peer_parser(), "spes-bootstrap": bootstrap_parser()}
OF_OTHERS = {"--editable", "--user", "--rm", "--restart"}  # programs that a page shows beside ours


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    broken = [link for link in links if not re.match(r"https?:|mailto:", link) and not leads_somewhere(page, link)]
    assert broken == []


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path) if path else page
    return target.exists() and (not anchor or anchor in anchors(target.read_text()))


def anchors(text: str) -> set[str]:
    """Of the headings, as the usual hosts make them."""
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", OF_TODAY, ids=named)
def test_every_command_and_flag_is_one_of_the_programs(page: Path) -> None:
    unknown = [fault for line in code_in(page.read_text()) for fault in faults_in(line)]
    assert unknown == []


def code_in(text: str) -> Iterator[str]:
    """Lines of code blocks, fenced or indented, those that go on in the next joined; then pieces of code in text."""
    fenced = re.compile(r"(?ms)^```[a-z]*\n(.*?)^```")
    for block in fenced.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    text = fenced.sub("", text)
    yield from re.findall(r"(?m)^    (.*)$", text)
    for piece in re.findall(r"`([^`]+)`", re.sub(r"(?m)^    .*$", "", text)):
        yield " ".join(piece.split())


def faults_in(line: str) -> Iterator[str]:
    commands = re.findall(r"(?<![\w./-])(spes-peer|spes-bootstrap)((?: [^#;&>]*)?)", line)
    for program, rest in commands:
        yield from faults_in_command(program, rest.split())
    if not commands and re.match(r"--[a-z]", line):
        flag = re.split(r"[ =,]", line)[0]
        if flag not in OF_OTHERS and not any(flag in flags_of(parser) for parser in PARSERS.values()):
            yield f"no command has {flag}"


def faults_in_command(program: str, words: list[str]) -> Iterator[str]:
    parser, path = PARSERS[program], program
    for word in words:
        word = word.strip("[](),.:'\"…")
        children = children_of(parser)
        if word.startswith("-"):
            flag = word.partition("=")[0]
            if flag not in parser._option_string_actions:
                yield f"{path} has no {flag}"
        elif children and word and not word.isupper():
            wanted = [one for one in word.split("|") if one not in children]
            yield from (f"{path} has no command {one}" for one in wanted)
            if wanted:
                return
            parser, path = children[word.split("|")[0]], f"{path} {word}"


def children_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: child for action in found for name, child in action.choices.items()}


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Of a program and all its commands."""
    return set(parser._option_string_actions).union(*(flags_of(child) for child in children_of(parser).values()))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("spes-peer join --bootstrap ADDRESS --no-tui   # --nonsense", None),
        ("spes-peer jion --bootstrap ADDRESS", "spes-peer has no command jion"),
        ("spes-peer join --boot ADDRESS", "spes-peer join has no --boot"),
        ("spes-peer identity export|import FILE", None),
        ("spes-peer identity exprot FILE", "spes-peer identity has no command exprot"),
        ("spes-bootstrap --run FOLDER --hots X", "spes-bootstrap has no --hots"),
        ("--max-disk 20GB", None),
        ("--max-dusk 20GB", "no command has --max-dusk"),
    ],
)
def test_a_command_or_flag_that_is_none_is_found(line: str, fault: str | None) -> None:
    assert list(faults_in(line)) == ([] if fault is None else [fault])
