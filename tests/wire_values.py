"""Hypothesis strategies for every frozen dataclass that travels as a protobuf message."""

import dataclasses
import importlib
import pkgutil
import types
import typing
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

import spes_peer.run
from spes_peer.blobs import BlobName
from spes_peer.errors import BadMessage
from spes_peer.identity import Identity, PeerId
from spes_peer.run.invitations import Invitation
from spes_peer.run.peers import MAX_NAME_CHARACTERS, PeerEntry
from spes_peer.run.records import BlockId, Contributor, DataRange, Update
from spes_peer.wire.convert import message_class

MODULES = [
    *(f"spes_peer.run.{module.name}" for module in pkgutil.iter_modules(spes_peer.run.__path__)),
    "spes_peer.rounds.ballot",
    "spes_peer.rounds.messages",
    "spes_peer.exchange.tokens",
    "spes_peer.training.work",
]


def descriptor_of(cls: type) -> Descriptor:
    return typing.cast(Descriptor, message_class(cls.__name__).DESCRIPTOR)


def _is_message(name: str) -> bool:
    try:
        message_class(name)
    except BadMessage:
        return False
    return True


def wire_classes() -> list[type]:
    """Every dataclass of `MODULES` whose name is a message's."""
    found = {
        cls.__name__: cls
        for module in map(importlib.import_module, MODULES)
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == module.__name__ and dataclasses.is_dataclass(cls)
        if _is_message(cls.__name__)
    }
    return [found[name] for name in sorted(found)]


finite = st.floats(allow_nan=False, allow_infinity=False)
NEW_TYPES: dict[Any, st.SearchStrategy[Any]] = {
    PeerId: st.binary(min_size=32, max_size=32).map(lambda seed: Identity.from_seed(seed).peer_id),
    BlobName: st.binary(min_size=32, max_size=32).map(bytes.hex),
    BlockId: st.one_of(
        st.integers(0, 9999).map("shared/{:04d}".format),
        st.tuples(st.integers(0, 99), st.integers(0, 9999)).map(lambda at: f"expert/{at[0]:02d}/{at[1]:04d}"),
    ),
}
# What a dataclass refuses in its __post_init__ is not worth building.
SOUND: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (Contributor, "clip"): st.floats(0, 1, exclude_min=True),
    (Contributor, "tokens"): st.integers(1, 2**64 - 1),
    (Contributor, "norm"): st.floats(0, allow_infinity=False),
    (Invitation, "seed"): st.binary(min_size=32, max_size=32),
    (PeerEntry, "name"): st.text(max_size=MAX_NAME_CHARACTERS).filter(str.isprintable),
    (Update, "contributors"): st.lists(st.deferred(lambda: values_of(Contributor)), min_size=1, max_size=3).map(tuple),
}


def values_of(cls: type) -> st.SearchStrategy[Any]:
    """Values of a wire dataclass, numbers over the whole width of their proto types."""
    if cls is DataRange:
        ends = st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2, unique=True)
        return ends.map(lambda pair: DataRange(min(pair), max(pair)))
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in descriptor_of(cls).fields}
    return st.builds(
        cls,
        **{
            field.name: SOUND[cls, field.name]
            if (cls, field.name) in SOUND
            else _values_for(hints[field.name], fields[field.name])
            for field in dataclasses.fields(cls)
        },
    )


def _values_for(kind: Any, field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if typing.get_origin(kind) is tuple:
        return st.lists(_values_for(typing.get_args(kind)[0], field), max_size=3).map(tuple)
    if typing.get_origin(kind) is types.UnionType:
        return st.none() | _values_for(typing.get_args(kind)[0], field)
    if kind in NEW_TYPES:
        return NEW_TYPES[kind]
    if dataclasses.is_dataclass(kind):
        return st.deferred(lambda: values_of(typing.cast(type, kind)))
    if kind is int:
        return st.integers(0, 2**32 - 1 if field.type == FieldDescriptor.TYPE_UINT32 else 2**64 - 1)
    if kind is float:
        return finite
    return st.from_type(kind)  # str, bytes, bool, enums
