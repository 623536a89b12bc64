"""Tables with a column of text: parquet, and the Arrow files in which Hugging Face's library keeps a dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spes_peer.data.reading.records import Meter, Record, Unreadable
from spes_peer.errors import BadConfiguration

_ROWS_AT_ONCE = 512
_FILE_MAGIC = b"ARROW1"


def parquet_records(path: Path, field: str, meter: Meter) -> Iterator[Record]:
    """Rows of column `field`; b"" where there is none in a row. `Unreadable` for a file that is not whole."""
    arrow = _pyarrow()
    import pyarrow.parquet as parquet

    size_bytes, num_rows = path.stat().st_size, 0
    try:
        # pages as they are needed, not row groups, which may be gigabytes
        with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            _check(file.schema_arrow, field, path)
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[field]):
                yield from _texts(arrow, batch.column(0))
                num_rows += batch.num_rows
                meter.num_bytes = size_bytes * num_rows // max(1, file.metadata.num_rows)
    except (arrow.ArrowException, OSError) as error:
        raise Unreadable(_first_line(error)) from None


def arrow_records(path: Path, field: str, meter: Meter) -> Iterator[Record]:
    """The same of an Arrow file, of either kind: the datasets library writes streams."""
    arrow = _pyarrow()
    try:
        with path.open("rb") as file:
            is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        with arrow.memory_map(str(path)) as mapped:
            for batch in _file_batches(arrow, mapped) if is_file else arrow.ipc.open_stream(mapped):
                _check(batch.schema, field, path)
                for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                    yield from _texts(arrow, batch.column(field).slice(start, _ROWS_AT_ONCE))
                meter.num_bytes = path.stat().st_size if is_file else mapped.tell()
    except (arrow.ArrowException, OSError) as error:
        raise Unreadable(_first_line(error)) from None


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise BadConfiguration(
            "to read parquet and Arrow files, install pyarrow: pip install 'spes-peer[data]'"
        ) from None
    return pyarrow


def _file_batches(arrow: Any, mapped: Any) -> Iterator[Any]:
    file = arrow.ipc.open_file(mapped)
    for index in range(file.num_record_batches):
        yield file.get_batch(index)


def _check(schema: Any, field: str, path: Path) -> None:
    if field not in schema.names:
        raise BadConfiguration(
            f"{path} has no column {field!r}; name one with --text-field: {', '.join(schema.names) or 'it has none'}"
        )
    if schema.names.count(field) > 1:
        raise BadConfiguration(f"{path} has several columns {field!r}; name another with --text-field")
    type_ = str(schema.field(field).type)
    if type_ not in ("string", "large_string", "string_view", "binary", "large_binary"):
        raise BadConfiguration(f"column {field!r} of {path} is {type_}, not text; name another with --text-field")


def _texts(arrow: Any, column: Any) -> Iterator[Record]:
    is_large = str(column.type).startswith("large")
    for raw in column.cast(arrow.large_binary() if is_large else arrow.binary()).to_pylist():
        yield Record(raw or b"")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
