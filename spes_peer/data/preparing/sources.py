"""What is mixed: a recipe in TOML, or the same from flags.

licence = "see the sources"

[[source]]
name = "wiki"
paths = ["texts/wiki", "hf://owner/dataset"]
ratio = 0.3
licence = "CC-BY-SA-4.0"
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from spes_peer.data.reading.hub import HUB
from spes_peer.data.reading.texts import Documents
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import MAX_SOURCES, STRATUM
from spes_peer.run.manifest import validated
from spes_peer.run.section import Section
from spes_peer.toml import read_file

_LEAST_SHARE = 1.001 / STRATUM  # of a ratio that nobody has given


class SourceRecipe(Section):
    """One `[[source]]`."""

    name: str = Field(min_length=1, max_length=100)
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

    @field_validator("name")
    @classmethod
    def _name_is_printable(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("a sign in it cannot be printed")
        return name


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
    return text if text.startswith(HUB) else str(recipe.parent / Path(text).expanduser())


def recipe_of(
    texts: Sequence[str], ratios: Mapping[str, float], licences: Mapping[str, str], licence: str, like: SourceRecipe
) -> Recipe:
    """From what was typed: `NAME=PATH` or `PATH`, and by name what is said of a source. `like` has what is said of all.

    Paths without a name are one source, called as the first of them."""
    paths: dict[str, list[str]] = {}
    unnamed = ""
    for text in texts:
        name, is_named, path = text.partition("=")
        if not is_named or "/" in name or Path(text).exists():
            unnamed = unnamed or _name_of(text)
            name, path = unnamed, text
        paths.setdefault(name, []).append(path)
    for name in (*ratios, *licences):
        if name not in paths:
            raise BadConfiguration(f"no source is called {name!r}; there are: {', '.join(paths)}")
    raw = [
        {**like.model_dump(), "name": name, "paths": tuple(some), "ratio": ratios.get(name)}
        | ({"licence": licences[name]} if name in licences else {})
        for name, some in paths.items()
    ]
    return checked(validated(Recipe, {"source": raw, "licence": licence}, "sources"))


def _name_of(text: str) -> str:
    if text.startswith(HUB):
        return text.removeprefix(HUB).partition("@")[0]
    name = Path(text).resolve().name
    return name if Path(text).is_dir() else name.partition(".")[0] or name


def checked(recipe: Recipe) -> Recipe:
    """The recipe, or what is wrong with its names and ratios."""
    names = [one.name for one in recipe.source]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadConfiguration(f"two sources are called {twice!r}; give each a name of its own")
    given = [one.ratio for one in recipe.source if one.ratio is not None]
    if given and len(given) < len(names) and sum(given) >= 1:
        raise BadConfiguration(
            f"the ratios come to {sum(given):g}, and nothing is left for sources without one: give all a ratio, or less"
        )
    return recipe


def shares(recipe: Recipe, sizes: Sequence[float]) -> list[float]:
    """Of each source, as its recipe says; `sizes` are the sources' lengths, in any unit."""
    given = [one.ratio for one in recipe.source]
    total = sum(ratio for ratio in given if ratio is not None)
    if all(ratio is not None for ratio in given):
        return [(ratio or 0.0) / total for ratio in given]
    by_size = sum(size for size, ratio in zip(sizes, given, strict=True) if ratio is None) or 1
    return [
        ratio if ratio is not None else max(_LEAST_SHARE, (1 - total) * size / by_size)
        for size, ratio in zip(sizes, given, strict=True)
    ]
