"""What is mixed: a recipe in TOML, or the same from flags.

licence = "see the sources"

[[source]]
name = "wiki"
paths = ["texts/wiki", "hf://owner/dataset"]
ratio = 0.3
licence = "CC-BY-SA-4.0"
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import Field

from spes_peer.data.reading.hub import HUB
from spes_peer.data.reading.texts import Documents
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import MAX_SOURCES, STRATUM
from spes_peer.run.manifest import validated
from spes_peer.run.section import Printable, Section
from spes_peer.toml import read_file

_LEAST_SHARE = 1.001 / STRATUM  # where lengths decide: what they come to is rounded
_LONGEST_NAME = 100
_SOURCE_NAME = re.compile(r"[\w.-]+")  # as people give them; one that is missing is no licence


class SourceRecipe(Section):
    """One `[[source]]`."""

    name: Printable = Field(min_length=1, max_length=_LONGEST_NAME)
    paths: tuple[str, ...] = Field(min_length=1)
    """Files, folders, or datasets of the Hugging Face hub: `hf://owner/name`, `hf://owner/name@revision/folder`. Paths
    are relative to the recipe."""
    ratio: float | None = Field(default=None, gt=0)
    """Its part of what is trained, beside the others'. Where none has one, all are trained as often as they are long;
    where only some do, theirs are shares of 1, and the rest is divided among the others by their length."""
    licence: str = Field(default="", max_length=500)
    """Under which its text may be used; volunteers read it before they join."""
    text_field: str = Field(default="text", min_length=1)
    """Of JSON objects, or the column of tables, that holds the text."""
    documents: Documents = "section"
    """Of plain text files: what one document is."""
    split: str = Field(default="train", pattern="^[A-Za-z0-9_.-]+$")
    """Of a dataset that has several."""
    memmap: Literal["", "uint16", "uint32"] = ""
    """The files are token ids of this width, little-endian, documents closed by the tokenizer's end of text."""


class Recipe(Section):
    """A mixture."""

    source: tuple[SourceRecipe, ...] = Field(min_length=1, max_length=MAX_SOURCES)
    licence: str = Field(default="", max_length=500)
    """Of all of it."""


def read_recipe(path: Path) -> Recipe:
    """A recipe's file; `BadConfiguration` names the first thing that is wrong with it."""
    recipe = validated(Recipe, read_file(path, "the mixture "), path.name)
    sources = [
        one.model_copy(update={"paths": tuple(_beside(path, text) for text in one.paths)}) for one in recipe.source
    ]
    return checked(recipe.model_copy(update={"source": tuple(sources)}))


def _beside(recipe: Path, text: str) -> str:
    return text if text.startswith(HUB) else str(recipe.parent / _from_home(text))


def _from_home(text: str) -> Path:
    """What a shell makes of `~`: it does not behind `NAME=`, nor in a file."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise BadConfiguration(f"{text}: nobody here is called so, or has a home") from None


def recipe_of(texts: Sequence[str], ratios: Mapping[str, float], like: SourceRecipe) -> Recipe:
    """From what was typed: `NAME=PATH` or `PATH`, and ratios by name. `like` has what is said of all.

    Paths without a name are one source, called as the first of them."""
    paths: dict[str, list[str]] = {}
    unnamed = ""
    for text in texts:
        name, is_named, path = text.partition("=")
        if not is_named or "/" in name or Path(text).exists():
            unnamed = unnamed or _name_of(text)
            name, path = unnamed, text
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise BadConfiguration(
                f"a source cannot be called {name[: 2 * _LONGEST_NAME]!r}: give it a name of at most {_LONGEST_NAME}"
                " printable signs, as NAME=PATH"
            )
        paths.setdefault(name, []).append(str(_from_home(path)) if path.startswith("~") else path)
    for name in ratios:
        _check_name(name, paths)
    raw = [
        {**like.model_dump(), "name": name, "paths": tuple(some), "ratio": ratios.get(name)}
        for name, some in paths.items()
    ]
    return checked(validated(Recipe, {"source": raw}, "sources"))


def licensed(recipe: Recipe, said: Sequence[str]) -> Recipe:
    """The recipe under licences that were typed: `NAME=TEXT` is one source's, `TEXT` that of all."""
    names = [one.name for one in recipe.source]
    licences, of_all = {one.name: one.licence for one in recipe.source}, recipe.licence
    for text in said:
        if (name := next((name for name in names if text.startswith(f"{name}=")), None)) is not None:
            licences[name] = text.removeprefix(f"{name}=")
        else:
            before, is_named, _ = text.partition("=")
            if is_named and _SOURCE_NAME.fullmatch(before):
                _check_name(before, names)
            of_all = text
    raw = [{**one.model_dump(), "licence": licences[one.name]} for one in recipe.source]
    return validated(Recipe, {"source": raw, "licence": of_all}, "sources")


def _check_name(name: str, names: Collection[str]) -> None:
    if name not in names:
        raise BadConfiguration(f"no source is called {name!r}; there are: {', '.join(names)}")


def _name_of(text: str) -> str:
    if text.startswith(HUB):
        return text.removeprefix(HUB).partition("@")[0]
    name = os.path.basename(os.path.realpath(text))
    return name if Path(text).is_dir() else name.partition(".")[0] or name


def checked(recipe: Recipe) -> Recipe:
    """The recipe, or what is wrong with its names and ratios."""
    names = [one.name for one in recipe.source]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadConfiguration(f"two sources are called {twice!r}; give each a name of its own")
    given = [one.ratio for one in recipe.source if one.ratio is not None]
    num_left = len(names) - len(given)
    if given and num_left and sum(given) + num_left * _LEAST_SHARE > 1:
        raise BadConfiguration(
            f"the ratios come to {sum(given):g}, and nothing is left for sources without one: give all a ratio, or less"
        )
    least = Fraction(_LEAST_SHARE) if num_left else Fraction(1, STRATUM)  # what lengths will decide, moves it a little
    written = [as_written(share) for share in shares(recipe, [1.0] * len(names))]
    for one, share in zip(recipe.source, written, strict=True):
        if one.ratio is not None and Fraction(share) / sum(map(Fraction, written)) < least:
            raise BadConfiguration(f"the ratio of {one.name!r} is {share:.2g} of all, and the least is 1/{STRATUM}")
    return recipe


def shares(recipe: Recipe, sizes: Sequence[float]) -> list[float]:
    """Of each source, as its recipe says, together 1; `sizes` are the sources' lengths, in any unit."""
    given = [one.ratio for one in recipe.source]
    total = sum((Fraction(ratio) for ratio in given if ratio is not None), Fraction())  # of floats, perhaps no float
    if None not in given:
        return [float(Fraction(ratio or 0) / total) for ratio in given]
    others = iter(_by_length([size for size, ratio in zip(sizes, given, strict=True) if ratio is None], 1 - total))
    return [next(others) if ratio is None else ratio for ratio in given]


def as_written(share: float) -> float:
    """In the manifest: six digits."""
    return float(f"{share:.6g}")


def _by_length(sizes: Sequence[float], whole: Fraction) -> list[float]:
    """Parts of `whole`, as long as each is; what short ones lack to the least, the others give up."""
    short: set[int] = set()
    while long := [place for place in range(len(sizes)) if place not in short]:
        left, length = float(whole) - len(short) * _LEAST_SHARE, sum(sizes[place] for place in long)
        parts = {place: left * sizes[place] / length if length else left / len(long) for place in long}
        if not (more := {place for place, part in parts.items() if part < _LEAST_SHARE}):
            return [parts.get(place, _LEAST_SHARE) for place in range(len(sizes))]
        short |= more
    return [float(whole) / len(sizes)] * len(sizes)
