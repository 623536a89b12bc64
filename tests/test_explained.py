"""What is said of the manifest's keys is what the code says, and every key of a run file is explained."""

from typing import Literal

from pydantic import BaseModel, Field

from spes_peer.run.explained import keys_of, meanings_of, section_in
from spes_peer.run.manifest import RunFile


class _Part(BaseModel):
    width: int = Field(ge=1, lt=1 << 63)
    """Of
    both."""
    wait_seconds: float = Field(default=0.5, gt=0)
    kind: Literal["a", "b", "c"] = "a"
    """Which."""


class _Longer(_Part):
    names: tuple[str, ...] = ()
    """For people."""
    inner: _Part


def test_a_key_tells_its_kind_unit_bounds_default_and_meaning() -> None:
    width, wait, kind = keys_of(_Part)
    assert (width.kind, width.bounds, width.default, width.is_required) == ("whole number", "≥ 1, < 2^63", "", True)
    assert width.meaning == "Of both."
    assert (wait.kind, wait.bounds, wait.default, wait.meaning) == ("number of seconds", "> 0", "0.5", "")
    assert (kind.kind, kind.default, kind.is_required) == ('one of "a", "b", "c"', '"a"', False)


def test_what_a_section_inherits_is_explained_too() -> None:
    assert meanings_of(_Longer) == {"width": "Of both.", "kind": "Which.", "names": "For people."}
    assert [key.kind for key in keys_of(_Longer)][-2:] == ["list of text", "_Part"]


def test_every_key_that_an_organizer_writes_has_a_meaning() -> None:
    silent = []
    for name, field in RunFile.model_fields.items():
        if (section := section_in(field.annotation)) is not None:
            silent += [f"[{name}] {key.name}" for key in keys_of(section) if not key.meaning]
        elif not meanings_of(RunFile).get(name):
            silent.append(name)
    assert silent == []
