"""What a section of the manifest says about its keys: kind, bounds, default and meaning, for people to read.

All of it is read from the code when it is asked for: types and bounds from the fields, the meaning from the string
below each. (pydantic can keep these strings too, but then reads the source at every start, for a fifth of a second.)
"""

import ast
import functools
import inspect
import json
import sys
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, cast, get_args, get_origin

import annotated_types as bounds
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_UNITS = ("seconds", "bytes", "tokens", "steps", "rounds", "sequences", "elements")
_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}
_SIGNS = ((bounds.Ge, "ge", "≥"), (bounds.Gt, "gt", ">"), (bounds.Le, "le", "≤"), (bounds.Lt, "lt", "<"))


@dataclass(frozen=True)
class Key:
    """One key of a section."""

    name: str
    kind: str
    """Such as `whole number of steps` or `"mean" or "nesterov"`."""
    bounds: str
    """Such as `≥ 1, ≤ 8`; empty where there are none."""
    default: str
    """As TOML has it; empty where the key is required, or has a whole section or nothing as its default."""
    is_required: bool
    meaning: str
    """A sentence or two; empty where the code says nothing."""


def keys_of(section: type[BaseModel]) -> tuple[Key, ...]:
    """All keys of a section, in the order of the code."""
    meanings = meanings_of(section)
    return tuple(_key(name, field, meanings.get(name, "")) for name, field in section.model_fields.items())


def is_section(annotation: Any) -> bool:
    """Whether what stands at a key is a section itself."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that stands at a key: itself, in a list, or where it may be left out."""
    if is_section(annotation):
        return cast(type[BaseModel], annotation)
    return next((found for one in get_args(annotation) if (found := section_in(one)) is not None), None)


def meanings_of(section: type[BaseModel]) -> dict[str, str]:
    """The string below each field, its lines joined; nothing where no source is installed."""
    found: dict[str, str] = {}
    for one in reversed(section.__mro__):
        if is_section(one) and one is not BaseModel:
            found |= _strings_below_fields(one.__module__).get(one.__name__, {})
    return found


@functools.cache
def _strings_below_fields(module: str) -> dict[str, dict[str, str]]:
    """By class and field."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {node.name: _strings_in(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _strings_in(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            match below.value:
                case ast.Constant(value=str(text)):
                    found[field.target.id] = " ".join(text.split())
    return found


def _key(name: str, field: FieldInfo, meaning: str) -> Key:
    kind = _kind(field.annotation)
    unit = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), "")
    if unit and field.annotation in (int, float):
        kind = f"{kind} of {unit}"
    default = "" if field.is_required() else _as_toml(field.get_default(call_default_factory=True))
    return Key(name, kind, _bounds(field), default, field.is_required(), meaning)


def _kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(map(_as_toml, inner)) if len(inner) < 3 else f"one of {', '.join(map(_as_toml, inner))}"
    if origin in (tuple, list):
        return f"list of {_kind(inner[0])}"
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(one) for one in inner if one is not type(None))
    if is_section(annotation):
        return str(annotation.__name__)
    return _KINDS.get(annotation, "value")


def _bounds(field: FieldInfo) -> str:
    said = []
    for limit in field.metadata:
        said += [f"{sign} {_number(getattr(limit, name))}" for kind, name, sign in _SIGNS if isinstance(limit, kind)]
    least = next((limit.min_length for limit in field.metadata if isinstance(limit, bounds.MinLen)), 0)
    most = next((limit.max_length for limit in field.metadata if isinstance(limit, bounds.MaxLen)), None)
    if least or most is not None:
        of = "characters" if field.annotation is str else "of them"
        low, high = f"at least {least} " if least else "", "" if most is None else f"at most {most} "
        said.append(f"{low}{'and ' if low and high else ''}{high}{of}")
    return ", ".join(said)


def _number(value: float) -> str:
    """Powers of two that nobody would know as digits, and of ten whose digits nobody would count, as powers."""
    if isinstance(value, int) and value >= 1 << 20 and not value & (value - 1):
        return f"2^{value.bit_length() - 1}"
    if isinstance(value, int) and value > 10**6 and value == 10 ** (power := len(str(value)) - 1):
        return f"10^{power}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_toml(value: Any) -> str:
    if value is None or is_section(type(value)):
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False, default=str)
