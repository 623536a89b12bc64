"""Which files are read: what a person names, folders walked, in an order that hangs on nothing but names."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spes_peer.data.reading.columns import arrow_records, parquet_records
from spes_peer.data.reading.lines import line_records
from spes_peer.data.reading.records import CutOff, Meter, Record, Unreadable
from spes_peer.data.reading.streams import PACKED
from spes_peer.data.reading.texts import Documents, text_records
from spes_peer.errors import BadConfiguration

Format = Literal["lines", "text", "parquet", "arrow", "memmap"]
FORMATS: dict[str, Format] = {
    ".jsonl": "lines",
    ".json": "lines",
    ".ndjson": "lines",
    ".txt": "text",
    ".md": "text",
    ".py": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_MEMMAPS = (".npy", ".bin", ".u16", ".u32")
_READABLE = f"{', '.join(FORMATS)}; text and lines also packed, {' or '.join(PACKED)}"


@dataclass(frozen=True)
class InputFile:
    name: str
    """Path below what was named, with its last part: the same wherever the texts lie."""
    path: Path
    size_bytes: int
    format: Format
    written_at_ns: int = 0
    """When it was changed last, as the disk has it; 0 for one that is fetched, whose revision is fixed."""
    url: str = ""
    """Where it is fetched from when its turn comes; "" for a file that is here."""


@dataclass
class Found:
    files: list[InputFile] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """How many files of folders were left alone, by the end of their names."""


def find(paths: Iterable[Path], is_memmap: bool = False, split: str = "train") -> Found:
    """The files that `paths` name or hold. `BadConfiguration` for what is not there, or named and not readable."""
    found = Found()
    for path in paths:
        if path.is_dir():
            for name, file in _walked(path, split):
                if (format_ := format_of(file.name, is_memmap)) is None:
                    found.skipped[file.suffix or file.name] += 1
                else:
                    found.files.append(_input(f"{path.resolve().name}/{name}", file, format_))
        elif not path.exists():
            raise BadConfiguration(f"there is no {path}; name files or folders of text")
        elif not path.is_file():
            raise BadConfiguration(f"{path} is neither a file nor a folder, and only those can be read again")
        elif (format_ := format_of(path.name, is_memmap)) is None:
            raise BadConfiguration(_cannot_read(path, is_memmap))
        else:
            found.files.append(_input(path.name, path, format_))
    return found


def format_of(name: str, is_memmap: bool = False) -> Format | None:
    """By the end of a file's name; None for what is not read."""
    path = Path(name)
    if is_memmap:
        return "memmap" if path.suffix in _MEMMAPS else None
    if path.suffix in PACKED:
        inner = FORMATS.get(Path(path.stem).suffix)
        return inner if inner in ("lines", "text") else None
    return FORMATS.get(path.suffix)


def records(file: InputFile, text_field: str, documents: Documents, meter: Meter) -> Iterator[Record]:
    """Of one file; the last one says what is wrong with it, where something is."""
    try:
        if file.format == "parquet":
            yield from parquet_records(file.path, text_field, meter)
        elif file.format == "arrow":
            yield from arrow_records(file.path, text_field, meter)
        elif file.format == "lines":
            yield from line_records(file.path, meter)
        else:
            yield from text_records(file.path, documents, meter)
    except CutOff as error:
        yield Record(str(error).encode(), "cut off")
    except (Unreadable, OSError) as error:
        yield Record(str(error).encode(), "unreadable")


def _input(name: str, path: Path, format_: Format) -> InputFile:
    stat = path.stat()
    return InputFile(name, path, stat.st_size, format_, stat.st_mtime_ns)


def _walked(folder: Path, split: str) -> Iterator[tuple[str, Path]]:
    """Files below `folder`; of a dataset that Hugging Face's library has saved, those that its state names."""
    if (folder / "dataset_dict.json").is_file():
        if not (folder / split).is_dir():
            splits = ", ".join(sorted(one.name for one in folder.iterdir() if one.is_dir()))
            raise BadConfiguration(f"the dataset {folder} has no split {split!r}; name one with --split: {splits}")
        folder = folder / split
    root = folder
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        at = Path(parent)
        if "state.json" in names:
            names = _data_files(at)
        for name in sorted(name for name in names if not name.startswith(".")):
            if (path := at / name).is_file():
                yield path.relative_to(root).as_posix(), path


def _data_files(folder: Path) -> list[str]:
    """`state.json` beside the data of a saved dataset lists it. Names only: a list cannot lead elsewhere."""
    try:
        listed = json.loads((folder / "state.json").read_bytes())["_data_files"]
        names = [str(one["filename"]) for one in listed]
    except (OSError, ValueError, KeyError, TypeError):
        return [path.name for path in folder.iterdir() if path.is_file()]
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        raise BadConfiguration(f"the dataset {folder} is not whole: {missing[0]!r} is missing")
    return names


def _cannot_read(path: Path, is_memmap: bool) -> str:
    if is_memmap:
        return f"{path} is no memory map of token ids by its name: {', '.join(_MEMMAPS)}"
    if path.suffix in _MEMMAPS:
        return f"{path} holds token ids? then say how wide they are: --memmap uint32"
    return f"cannot tell what {path} is; readable are {_READABLE}"
