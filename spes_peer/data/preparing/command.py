"""`spes-peer data prepare` behind its options: what is in the folder, what was typed, and the report."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spes_peer.data.preparing import show
from spes_peer.data.preparing.documents import EMPTY, TROUBLES
from spes_peer.data.preparing.journal import DOWNLOADS, WORK_FOLDER
from spes_peer.data.preparing.order import DEFAULT_HELD_OUT_TOKENS, Order
from spes_peer.data.preparing.prepare import Prepared, prepare
from spes_peer.data.preparing.progress import Shown, count_words, rate_words
from spes_peer.data.preparing.sources import Recipe, SourceRecipe, licensed, read_recipe, recipe_of
from spes_peer.data.reading.hub import HUB, listed
from spes_peer.data.reading.inputs import Found, find
from spes_peer.errors import BadConfiguration
from spes_peer.measures import duration
from spes_peer.run.manifest import RunFile, parse_run_file, validated

logger = logging.getLogger(__name__)


def recipe_from(
    texts: Sequence[str],
    mixture: Path | None,
    ratios: Mapping[str, float],
    licences: Sequence[str],
    like: Mapping[str, str],
) -> Recipe:
    """The sources, from a file or from what was typed; `like` has what was typed of all."""
    if mixture is not None:
        if texts or ratios:
            raise BadConfiguration("name the texts and their ratios in the --mixture, or on the command line, not both")
        if like:
            flag, key = f"--{next(iter(like)).replace('_', '-')}", next(iter(like))
            raise BadConfiguration(
                f"{flag} goes with texts on the command line; in {mixture}, say {key} at each source"
            )
        return licensed(read_recipe(mixture), licences)
    if not texts:
        raise BadConfiguration("name texts: files, folders, hf://OWNER/NAME, or --mixture RECIPE.toml")
    blank = validated(SourceRecipe, {"name": "blank", "paths": ["."], **like}, "options")
    return licensed(recipe_of(texts, ratios, blank), licences)


def run(
    folder: Path,
    recipe: Recipe,
    tokenizer: Path | None,
    end_of_text: str,
    held_out_tokens: int | None,
    shard_tokens: int,
    seed: int | None,
    num_workers: int,
    is_strict: bool,
    starts_over: bool,
) -> Prepared:
    """Prepare, with a bar; the seed and the model are those of the folder's run.toml, if it has one."""
    _check_folder(folder)
    run_file = run_file_of(folder)
    order = Order(
        recipe,
        tuple(found_of(one, folder) for one in recipe.source),
        tokenizer,
        end_of_text,
        held_out_tokens or DEFAULT_HELD_OUT_TOKENS,
        shard_tokens,
        seed if seed is not None else run_file.run.seed if run_file else 0,
        is_strict,
    )
    try:
        with Shown(order.num_bytes) as shown:
            prepared = prepare(folder, order, run_file.model if run_file else None, num_workers, shown, starts_over)
    except KeyboardInterrupt:
        logger.warning("stopped; the same command goes on where it was")
        raise
    if held_out_tokens and prepared.data.held_out.num_tokens < held_out_tokens:
        logger.warning(
            "%s tokens are held out, not %s: at most a tenth of a source, and whole documents",
            f"{prepared.data.held_out.num_tokens:,}",
            f"{held_out_tokens:,}",
        )
    return prepared


def _check_folder(folder: Path) -> None:
    """One that is there, or can be made."""
    if folder.is_dir():
        return
    if folder.exists():
        raise BadConfiguration(f"{folder} is a file: name the run's folder first, and then the texts")
    if not folder.parent.is_dir():
        raise BadConfiguration(f"there is no folder {folder.parent}; make the run first: spes-peer run new {folder}")


def found_of(recipe: SourceRecipe, folder: Path) -> Found:
    """The files of one source; `BadConfiguration` where it has none."""
    urls = [path for path in recipe.paths if path.startswith(HUB)]
    if urls and recipe.memmap:
        raise BadConfiguration("memory maps of token ids are read from files that are here, not from the hub")
    found = find([Path(path) for path in recipe.paths if path not in urls], bool(recipe.memmap), recipe.split)
    for url in urls:
        found.files += listed(url, recipe.split, folder / WORK_FOLDER / DOWNLOADS)
    if found.skipped:
        kinds = ", ".join(f"{number} {kind}" for kind, number in found.skipped.most_common(5))
        logger.warning("of %s some files are of no kind that is read, and left alone: %s", recipe.name, kinds)
    if not found.files:
        raise BadConfiguration(f"the source {recipe.name} has no file to read in {', '.join(recipe.paths)}")
    return found


def run_file_of(folder: Path) -> RunFile | None:
    """The folder's run.toml, where there is one."""
    try:
        return parse_run_file((folder / "run.toml").read_text(), str(folder / "run.toml"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"cannot read {folder / 'run.toml'}: {getattr(error, 'strerror', error)}") from None


def report(folder: Path, prepared: Prepared) -> list[str]:
    """For a person."""
    data = prepared.data
    run_file = run_file_of(folder)
    said = [*show.lines(data, run_file), ""]
    for source, counts in zip(data.sources, prepared.counts, strict=True):
        met = {words: counts[kind] for kind, words in TROUBLES.items() if counts[kind]}
        met |= {"empty documents, left out": counts[EMPTY]} if counts[EMPTY] else {}
        said += [f"{source.name}: {number:,} {words}" for words, number in met.items()]
    spare = run_file.model.vocab_rows - data.tokenizer.num_ids if run_file else 0
    if spare:
        said.append(f"{spare:,} of the model's rows for token ids stay unused: the tokenizer has fewer")
    tokens = data.num_tokens + data.held_out.num_tokens
    rate = rate_words(tokens / max(prepared.seconds, 1e-3))
    said.append(f"{sum(prepared.num_documents):,} documents, {count_words(tokens)} tokens in {folder}; this time in"
                f" {duration(prepared.seconds)}, {rate}")  # fmt: skip
    return said


def as_json(prepared: Prepared) -> dict[str, Any]:
    shown = show.as_json(prepared.data)
    for source, counts, documents, held_out in zip(
        shown["sources"], prepared.counts, prepared.num_documents, prepared.num_held_out, strict=True
    ):
        source |= {"documents": documents, "held_out_tokens": held_out, "met": dict(counts)}
    return shown | {"seconds": round(prepared.seconds, 3)}
