"""`spes-peer run new`, `check` and `plan`: what they print."""

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path

from spes_peer import conversion, organize
from spes_peer.data.prepared import data_in
from spes_peer.errors import BadConfiguration
from spes_peer.folder import RUN_FILE
from spes_peer.identity import Identity
from spes_peer.measures import amount, duration
from spes_peer.model.huggingface_folder import read_config
from spes_peer.planning.explaining import explained, num_active, num_parameters
from spes_peer.planning.fleet import MOST_VOLUNTEERS, Group, link, read_fleet
from spes_peer.planning.forecast import UTILISATION, Forecast, forecast
from spes_peer.planning.lines import count, folded, number
from spes_peer.planning.words import as_json, in_words, too_late
from spes_peer.run.checking import check_text, trains_bytes
from spes_peer.run.data import Data
from spes_peer.run.length import Length
from spes_peer.run.manifest import Run, RunFile, parse_run_file, validated
from spes_peer.run.writing import commented

_CARDS_GB = (8, 12, 16, 24, 32, 48, 80, 96, 141, 192)
_LINK = "100Mb/20Mb"
_LABEL_WIDTH = 20
_HEADING = """\
The run {name}: every value with its meaning, its kind and its bounds. What is commented out is as by default.
spes-peer run check explains what follows from them; once run sign has signed the run, nothing here has any effect."""


def new(options: argparse.Namespace) -> None:
    """Make the folder, and say what the run costs and what to type next."""
    folder: Path = options.folder
    run = _named(_begun_with(options), options.name or folder.absolute().name[:64], tuple(options.organizer))
    organizer = organize.new_run(folder, commented(run, _heading(options, run)))
    print(f"{folder} holds a run that is not signed yet: run.toml, organizer.key, identity.key\n")
    for label, text in (*_costs(run), *_keys(organizer)):
        print(folded(f"  {label}", text, _LABEL_WIDTH))
    print("\nnext:")
    commands = _next(folder, run, options)
    widest = max(len(command) for command, why in commands if why)
    for command, why in commands:
        print(f"  {command:<{widest}}  {why}".rstrip())


def check(path: Path, is_quiet: bool, is_json: bool) -> int:
    """Explain, and list all that is wrong; 2 if the run cannot be signed."""
    text, data = read(path)
    checked = check_text(text, data)
    if path.is_dir() and organize.is_signed(path):
        print(f"{path} is signed (spes-peer run show {path}); run.toml has no effect any more", file=sys.stderr)
    if is_json:
        print(json.dumps([dataclasses.asdict(one) for one in checked.findings], indent=2))
        return BadConfiguration.exit_code if checked.errors else 0
    if checked.run is not None and checked.is_consistent and not is_quiet:
        print("\n".join(explained(checked.run, data)))
        print()
    for label, texts in (("error", checked.errors), ("warning", checked.warnings)):
        for one in texts:
            print(folded(label, one, len("warning")))
    if checked.errors:
        print(f"\n{path} cannot be signed: {count(len(checked.errors), 'error')}", file=sys.stderr)
        return BadConfiguration.exit_code
    if not (path.is_dir() and organize.is_signed(path)):
        lacks_data = data is None and checked.run is not None and not trains_bytes(checked.run)
        print(f"{path} can be signed{' once its data is there' if lacks_data else ''}")
    return 0


def plan(options: argparse.Namespace) -> int:
    """Print the forecast; 1 if no card holds any of the run."""
    if options.part > 1:
        raise BadConfiguration(f"--part is a part of a card's operations, from 0 to 1, not {options.part:g}")
    text, data = read(options.path)
    run = parse_run_file(text, options.path.name)
    fleet = read_fleet(options.fleet) if options.fleet is not None else (_group(run, options),)
    if options.fleet is not None and (options.card or options.link or options.tokens_per_second):
        raise BadConfiguration("the fleet file says card, link and tokens_per_second: leave them out here")
    if sum(group.count for group in fleet) > MOST_VOLUNTEERS:
        raise BadConfiguration(f"plan for at most {MOST_VOLUNTEERS:,} volunteers")
    if (found := forecast(run, fleet, data, options.part)) is None:
        sizes = ", ".join(amount(group.memory_bytes) for group in fleet)
        raise BadConfiguration(f"no part of {run.run.name} fits into a card of {sizes}: name larger ones")
    print(json.dumps(as_json(found), indent=2) if options.json else in_words(found, options.part))
    return 0


def read(path: Path) -> tuple[str, Data | None]:
    """The run file's text, and the folder's data if it has any."""
    if path.is_dir():
        return organize.run_file_in(path), data_in(path)
    return organize.run_file_text(None, path), data_in(path.parent) if path.name == RUN_FILE else None


# ---- what `new` writes and says ----


def _begun_with(options: argparse.Namespace) -> RunFile:
    if (model := options.model or options.upcycle) is not None:
        config = read_config(model)
        text = conversion.run_file_for(config, model.absolute().name, upcycle=options.upcycle is not None)
        return parse_run_file(text)
    name = options.config.name if options.config is not None else options.preset
    return parse_run_file(organize.run_file_text(options.preset, options.config), name)


def _named(run: RunFile, name: str, organizers: tuple[str, ...]) -> RunFile:
    """With that name, and these keys beside those it has."""
    keys = dict.fromkeys((*run.run.organizers, *organizers))
    raw = {**run.run.model_dump(), "name": name, "organizers": tuple(keys)}
    return run.model_copy(update={"run": validated(Run, raw, "options")})


def _heading(options: argparse.Namespace, run: RunFile) -> str:
    about = ""
    if options.config is None and not (options.model or options.upcycle):
        text = organize.run_file_text(options.preset, None)
        lines = text.partition("\n\n")[0].splitlines()
        about = "\n\n" + " ".join(line.removeprefix("#").strip() for line in lines)
    return _HEADING.format(name=run.run.name) + about


def _costs(run: RunFile) -> list[tuple[str, str]]:
    length = Length.of(run)
    said = [
        ("model", f"{number(num_parameters(run))} parameters, {number(num_active(run))} at work on a token"),
        ("schedule", f"{number(length.num_tokens)} tokens in {count(length.num_rounds, 'round')}"),
    ]
    found, card = _smallest_card(run)
    if found is None:
        return [*said, ("volunteers", f"no card of {_CARDS_GB[-1]} GB or less holds a subset of it")]
    group = found.groups[0]
    cards, traffic = count(found.num_peers, "card"), found.traffic
    return [
        *said,
        ("volunteers", f"{cards} of {card} GB, {amount(group.plan.needed_bytes)} in use: {_choices(group.chosen)}"),
        ("traffic", f"{amount(traffic.sent_bytes)} a round each way; {amount(traffic.snapshot_bytes)} for a newcomer"),
        ("your server", f"{amount(found.node.disk_bytes)} of disk at the end; no GPU"),
        ("time", _time(found, group.tokens_per_second)),
    ]


def _time(found: Forecast, tokens_per_second: float) -> str:
    """To the end; or why there is nothing to say of it yet."""
    if found.is_unforeseeable:
        return "a model so small waits for the machine, not for arithmetic: nobody can foresee it (spes-peer run plan)"
    assumed = f"at {number(tokens_per_second)} tokens/s each, which is assumed (spes-peer run plan)"
    if late := too_late(found):
        return f"a round {late}: raise it, or wait for faster cards or more of them; {assumed}, with {_LINK} lines"
    return f"{duration(found.seconds)} {assumed}, with {_LINK} lines"


def _smallest_card(run: RunFile) -> tuple[Forecast | None, int]:
    """The forecast with the smallest cards that hold all subsets, or else any."""
    best: tuple[Forecast | None, int] = (None, 0)
    for size in _CARDS_GB:
        found = forecast(run, [Group(run.run.min_peers, size * 10**9, link(_LINK))], None, UTILISATION)
        if found is not None and found.part_trained == 1:
            return found, size
        best = best if best[0] is not None else (found, size)
    return best


def _choices(chosen: int) -> str:
    from spes_peer.planning.forecast import CHOICES

    return f"--resident {CHOICES[chosen].resident} --optimizer-bits {CHOICES[chosen].optimizer_bits}"


def _keys(organizer: Identity) -> list[tuple[str, str]]:
    text = (
        f"{organizer.peer_id}: whoever has organizer.key is it; keep a copy elsewhere, and name spare keys with"
        " --organizer, or in run.toml"
    )
    return [("organizer", text)]


def _next(folder: Path, run: RunFile, options: argparse.Namespace) -> list[tuple[str, str]]:
    here = shlex.quote(str(folder))
    weights = ""
    if options.model is not None:
        weights = f" --import {shlex.quote(str(options.model))}"
    if options.upcycle is not None:
        weights = f" --upcycle {shlex.quote(str(options.upcycle))}"
    data = f"spes-peer data prepare {here} TEXTS"
    tokenized = (data, "or leave it to train on Python's library")
    if not trains_bytes(run):
        tokenized = (f"{data} --tokenizer {_tokenizer_of(options.model or options.upcycle)}", "")
    return [
        (f"spes-peer run check {here}", "when you have changed run.toml"),
        tokenized,
        (f"spes-peer run sign {here}{weights}", "fixes it for ever"),
        (f"spes-bootstrap --run {here}", "the node that volunteers join"),
    ]


def _tokenizer_of(model: Path | None) -> str:
    """The model's own where it has one."""
    if model is not None and (model / "tokenizer.json").exists():
        return shlex.quote(str(model / "tokenizer.json"))
    return "tokenizer.json"


def _group(run: RunFile, options: argparse.Namespace) -> Group:
    line = options.link or link(_LINK)
    num_volunteers = options.volunteers or run.run.min_peers
    if options.card is not None:
        return Group(num_volunteers, options.card, line, options.tokens_per_second or 0.0)
    as_many = run.run.model_copy(update={"min_peers": num_volunteers})
    found, size = _smallest_card(run.model_copy(update={"run": as_many}))
    if found is None:
        raise BadConfiguration(f"no card of {_CARDS_GB[-1]} GB or less holds a subset; name what there is with --card")
    return Group(num_volunteers, size * 10**9, line, options.tokens_per_second or 0.0)
