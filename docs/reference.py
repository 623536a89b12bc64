"""Writes docs/REFERENCE.md: every key of a run, every command and flag, exit codes, events, figures, the page's JSON.

All of it is read from the code: `make reference` writes the page anew, and a test fails while it is not fresh. Nothing
in it may depend on the machine, the terminal or the version of Python.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bootstrap.cli import _parser as bootstrap_parser
from bootstrap.web import api
from spes_peer.cli import COMMANDS, EXIT_CODES
from spes_peer.cli import _parser as peer_parser
from spes_peer.metrics import metrics_of
from spes_peer.run.explained import Key, keys_of, section_in
from spes_peer.run.manifest import Manifest, RunFile
from spes_peer.wire.control_pb2 import Status

ROOT = Path(__file__).parent.parent
_MANY = 20  # flags; who shares more with `join` takes what it takes

Row = tuple[str, str]

_MESSAGE = r"((?://.*\n)*)message (\w+) {\n((?:.*\n)*?)}"
_FIELD = r"((?: +//.*\n)*) +(?:repeated )?[\w.]+ (\w+) = \d+;"

_HEAD = """\
# Reference

Generated from the code by `make reference`; do not edit it. First the keys of a run, then every command with its flags,
then how commands end, what a daemon's event log holds, the figures for Prometheus, and the run's page as JSON. What all
this is for: [ORGANIZERS.md](ORGANIZERS.md), [VOLUNTEERS.md](VOLUNTEERS.md), [HOW_IT_WORKS.md](HOW_IT_WORKS.md).
"""


def reference() -> str:
    """The whole page."""
    parts = [_HEAD, *_manifest(), *_commands(), *_exit_codes(), *_events(), *_figures(), *_page_for_programs()]
    return "\n".join(parts)


# ---- the manifest ----


def _manifest() -> Iterator[str]:
    yield "## The run file and the manifest\n"
    yield (
        "An organizer writes `run.toml` with the sections below; `spes-peer run check` refuses what cannot be, and an"
        " unknown key with the nearest that there is. Signed, with data and keys added, it is the manifest: what all"
        " peers of the run share. *Required* keys have no default. In brackets are the sections, as TOML writes them.\n"
    )
    sections = {name: section_in(field.annotation) for name, field in RunFile.model_fields.items()}
    if loose := [key for key in keys_of(RunFile) if sections[key.name] is None]:
        yield "### Above all sections\n"
        yield _keys(loose, RunFile)
    for name, section in sections.items():
        if section is not None:
            yield from _section(f"`[{name}]`", section)
    yield "## What the tools add to the manifest\n"
    own = [key for key in keys_of(Manifest) if key.name not in RunFile.model_fields]
    yield _keys(own, Manifest)
    todo = [section_in(Manifest.model_fields[key.name].annotation) for key in own]
    done: set[Any] = set()
    while todo:
        section = todo.pop(0)
        if section is None or section in done:
            continue
        done.add(section)
        yield from _section(section.__name__, section)
        todo += [section_in(field.annotation) for field in section.model_fields.values()]


def _section(heading: str, section: Any) -> Iterator[str]:
    yield f"### {heading}\n"
    yield f"{_folded(section.__doc__ or '')}\n"
    yield _keys(keys_of(section), section)


def _keys(keys: Iterable[Key], owner: Any) -> str:
    rows = []
    for key in keys:
        default = "*required*" if key.is_required else f"`{key.default}`" if key.default else "–"
        kind = f"{key.kind}, {key.bounds}" if key.bounds else key.kind
        inner = section_in(owner.model_fields[key.name].annotation)
        rows.append((f"`{key.name}`", kind, default, key.meaning or _folded((inner and inner.__doc__) or "")))
    return _table(("key", "what it is", "default", "meaning"), rows)


# ---- the commands ----


def _commands() -> Iterator[str]:
    yield "## Commands\n"
    yield "Every command has `--help`. Flags of `join` may stand in a settings file too: `spes-peer config edit`.\n"
    spes_peer = peer_parser()
    children = _children(spes_peer)
    of_join = list(_flags(children["join"]))
    for group, names in COMMANDS.items():
        yield f"### {group[0].upper()}{group[1:]}\n"
        for name in names:
            yield from _command(children[name], _abouts(spes_peer)[name], of_join if name != "join" else [])
    yield "### The bootstrap node\n"
    yield from _command(bootstrap_parser(), "", [])


def _command(parser: argparse.ArgumentParser, about: str, of_join: list[Row]) -> Iterator[str]:
    children = _children(parser)
    if not children:
        yield f"#### `{_usage(parser)}`\n"
        yield f"{_sentence(parser.description or about)}\n"
        yield from _flag_table(list(_flags(parser)), of_join)
        yield from _remarks(parser)
    for name, child in children.items():
        yield from _command(child, _abouts(parser)[name], of_join)


def _flag_table(rows: list[Row], of_join: list[Row]) -> Iterator[str]:
    own = [row for row in rows if row not in of_join]
    if len(rows) - len(own) > _MANY:
        yield "It takes the flags of `spes-peer join` that make sense here" + (", and:\n" if own else ".\n")
        rows = own
    if rows:
        yield _table(("flag", "meaning"), rows)


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {name: one for action in _subparsers(parser) for name, one in action.choices.items()}


def _abouts(parser: argparse.ArgumentParser) -> dict[str, str]:
    return {one.dest: one.help or "" for action in _subparsers(parser) for one in action._choices_actions}


def _subparsers(parser: argparse.ArgumentParser) -> list[Any]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _usage(parser: argparse.ArgumentParser) -> str:
    """The command with what must be typed."""
    places = [_positional(action) for action in parser._actions if not action.option_strings]
    needed = [_flag(action) for action in parser._actions if action.option_strings and action.required]
    return " ".join((parser.prog, *places, *needed))


def _positional(action: argparse.Action) -> str:
    name = _value(action)
    return {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), name)


def _value(action: argparse.Action) -> str:
    """What stands for the value of a flag."""
    if action.metavar is None and action.choices is not None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


def _flags(parser: argparse.ArgumentParser) -> Iterator[Row]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        yield f"`{_flag(action)}`", _expanded(action, parser.prog)


def _flag(action: argparse.Action) -> str:
    if not action.option_strings:
        return _positional(action)
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    return f"{names} [{_value(action)}]" if action.nargs == "?" else f"{names} {_value(action)}"


def _expanded(action: argparse.Action, prog: str) -> str:
    """Some versions of Python add the default to flags that have a `--no-`."""
    return (action.help or "").removesuffix(" (default: %(default)s)") % {**vars(action), "prog": prog}


def _remarks(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What the help says below the flags: sentences, and examples as they are typed."""
    for part in re.split(r"(?m)^(examples?:\n(?:  .*\n?)+)", parser.epilog or ""):
        if re.match("examples?:", part):
            lines = part.splitlines()[1:]
            yield "\n".join(("```", *(line.removeprefix("  ").rstrip() for line in lines), "```\n"))
        elif text := " ".join(part.split()):
            yield f"{text}\n"


# ---- the rest ----


def _exit_codes() -> Iterator[str]:
    yield "## How commands end\n"
    found = sorted((int(code), about) for code, about in re.findall(r"(\d+)  (\S+(?: \S+)*)", EXIT_CODES))
    yield _table(("code", "meaning"), [(str(code), about) for code, about in found])


def _events() -> Iterator[str]:
    yield "## Events\n"
    yield (
        "What a daemon writes into `events/` of its folder: a line of JSON for each, with `sequence`, `at` and one of"
        " these ([event.proto](../proto/event.proto), [control.proto](../proto/control.proto) say what each holds).\n"
    )
    event, control = ((ROOT / "proto" / f"{name}.proto").read_text() for name in ("event", "control"))
    messages = {name: (_comment(lines), body) for lines, name, body in re.findall(_MESSAGE, event)}
    of_status = {name: _comment(lines) for lines, name in re.findall(_FIELD, _body_of("Status", control))}
    kinds = re.search(r"oneof kind {\n(.*?)\n  }", event, re.DOTALL)
    assert kinds is not None, "event.proto has no kinds any more"
    rows = []
    for lines, kind, name in re.findall(r"((?: +//.*\n)*) +(\w+) (\w+) = \d+;", kinds[1]):
        about, body = messages.get(kind, ("", ""))
        fields = [of_status.get(field, "") for _, field in re.findall(_FIELD, body)]
        rows.append((f"`{name}`", _comment(lines) or about or " ".join(filter(None, fields))))
    yield _table(("kind", "meaning"), rows)


def _body_of(message: str, text: str) -> str:
    found: list[tuple[str, str, str]] = re.findall(_MESSAGE, text)
    return next(body for _, name, body in found if name == message)


def _comment(lines: str) -> str:
    return _folded(re.sub(r"(?m)^\s*// ?", "", lines))


def _figures() -> Iterator[str]:
    yield "## Figures for Prometheus\n"
    yield "What `join --metrics ADDRESS` serves. What is not known is left out.\n"
    yield _table(("figure", "kind", "meaning"), [_figure(one) for one in metrics_of(_status_with_everything())])


def _figure(metric: Any) -> tuple[str, str, str]:
    name = {"counter": f"{metric.name}_total", "info": f"{metric.name}_info"}.get(metric.type, metric.name)
    labels = ", ".join(metric.samples[0].labels) if metric.samples else ""
    return f"`{name}{{{labels}}}`" if labels else f"`{name}`", metric.type, metric.documentation


def _page_for_programs() -> Iterator[str]:
    yield "## The run's page for programs\n"
    assert api.__doc__ is not None, "the page's API says nothing of itself"
    yield f"What `spes-bootstrap --web` serves beside the page. {api.__doc__}"
    yield (
        "`/metrics` beside them has the run's figures for Prometheus, and `spes-bootstrap --metrics ADDRESS` those of"
        " the node; each figure says its meaning in the line above it.\n"
    )


def _status_with_everything() -> Status:
    """A daemon of which all is known, so that no figure is left out."""
    status = Status()
    status.rounds.add(train_loss=1, held_out_loss=1).parts.add(name="train")
    status.peers.add(state="online")
    status.traffic.add(transport="grpc")
    status.device.MergeFrom(type(status.device)(name="a device", total_bytes=1, use=0.5, temperature=50))
    return status


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _folded(text: str) -> str:
    return " ".join(text.split())


def _sentence(text: str) -> str:
    text = _folded(text)
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


if __name__ == "__main__":
    sys.stdout.write(reference())
