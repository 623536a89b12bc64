"""Files of text as people have them, whole and damaged, to records."""

import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.data.preparing.documents import DOCUMENTS, EMPTY, REPAIRED, Counts, key_of, texts
from spes_peer.data.reading import records as reading
from spes_peer.data.reading.inputs import Found, find, records
from spes_peer.data.reading.memmaps import chunks, open_memmap
from spes_peer.data.reading.records import PART_BYTES, Meter, Record, cut
from spes_peer.data.reading.streams import lines
from spes_peer.data.reading.texts import SECTION_BYTES, Documents, text_records
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import Tokenizer

SAVED_DATASETS = Path(__file__).parents[2] / "shared" / "data" / "eval"


def read(path: Path, field: str = "text", documents: Documents = "file") -> tuple[list[str], Counts]:
    """All documents of all files below `path`, and what was met."""
    found, counts = [], Counts()
    for file in find([path]).files:
        some = list(records(file, field, documents, Meter()))
        counts.update(record.kind for record in some if record.kind not in ("text", "json"))
        good = [record for record in some if record.kind in ("text", "json")]
        found += ["".join(one.parts) for one in texts(good, field, counts) if one.parts]
    return found, +counts


def json_lines(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


# ---- JSON lines ----


def test_json_lines_are_read_though_the_file_is_not_packed_and_begins_with_a_brace(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines({"text": "one"}, {"text": "two\nlines", "id": 7}))
    assert read(tmp_path / "a.jsonl") == (["one", "two\nlines"], {DOCUMENTS: 2})


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson"])
def test_plain_lines_in_a_file_called_json_lines_are_documents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"{ a brace opens this line\nhello\n\n\xc3\xa9t\xc3\xa9\n")
    assert read(tmp_path / name)[0] == ["{ a brace opens this line", "hello", "été"]


def test_another_field_may_hold_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines({"content": "here", "text": "not here"}))
    assert read(tmp_path / "a.jsonl", field="content")[0] == ["here"]


def test_lines_without_the_field_and_lines_that_are_no_json_are_counted_and_left_out(tmp_path: Path) -> None:
    broken = b'{"text": "cut\n[1, 2]\n' + b"[" * 100_000 + b"\n"
    (tmp_path / "a.jsonl").write_bytes(json_lines({"text": "good"}, {"other": 1}, {"text": None}, {"text": 5}) + broken)
    found, counts = read(tmp_path / "a.jsonl")
    assert found == ["good"]
    assert counts == {DOCUMENTS: 1, "no field": 3, "no json": 3}


def test_empty_lines_crlf_and_a_byte_order_mark_are_no_part_of_a_text(tmp_path: Path) -> None:
    content = json_lines({"text": "one"}, {"text": "two"}, {"text": " "}).replace(b"\n", b"\r\n\r\n  \r\n")
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + content)
    assert read(tmp_path / "a.jsonl") == (["one", "two"], {DOCUMENTS: 2, EMPTY: 1})
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read(tmp_path / "b.txt")[0] == ["one\ntwo\n"]


def test_broken_utf8_is_mended_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines({"text": "fine"}) + b'{"text": "caf\xe9"}\n{"text": "\\ud83d!"}\n')
    assert read(tmp_path / "a.jsonl") == (["fine", "caf�", "�!"], {DOCUMENTS: 3, REPAIRED: 2})
    (tmp_path / "b.txt").write_bytes(b"ab\xffcd")
    assert read(tmp_path / "b.txt") == (["ab�cd"], {DOCUMENTS: 1, REPAIRED: 1})


@pytest.mark.parametrize(
    "content", ['[\n {"text": "a"}\n]\n', '[{"text": "a"}, {"text": "b"}]', '{\n "text": "a"\n}\n']
)
def test_one_json_value_is_not_taken_for_lines_of_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert read(tmp_path / "a.json") == ([], {"unreadable": 1})


def test_utf16_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("hello".encode("utf-16"))
    [record] = records(find([tmp_path]).files[0], "text", "file", Meter())
    assert record.kind == "unreadable"
    assert b"UTF-16" in record.raw


def test_a_line_beyond_all_measure_is_left_out_and_the_next_one_read() -> None:
    parts = [b"ab\n", b"x" * 6, b"y" * 6, b"z\ncd", b"\n"]
    assert list(lines(parts, max_bytes=10)) == [b"ab", None, b"cd"]


@given(st.binary(max_size=200), st.lists(st.integers(1, 20), max_size=20))
def test_lines_do_not_hang_on_where_blocks_end(content: bytes, sizes: list[int]) -> None:
    parts, at = [], 0
    for size in [*sizes, len(content)]:
        parts.append(content[at : at + size])
        at += size
    whole = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    assert list(lines(parts)) == (whole[:-1] if not content or content.endswith(b"\n") else whole)


@given(st.lists(st.binary(max_size=60)))
def test_whatever_lines_a_file_has_no_reader_raises(content: list[bytes]) -> None:
    counts = Counts()
    some = [Record(line, kind) for line in content for kind in ("json", "text")]  # type: ignore[arg-type]
    for one in texts(some, "text", counts):
        "".join(one.parts).encode()  # what a tokenizer wants of it


# ---- packed ----


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_packed_files_are_read_as_their_names_say(tmp_path: Path, pack: type, name: str) -> None:
    path = tmp_path / f"{name}{'.gz' if pack is gzip.compress else '.zst'}"
    path.write_bytes(pack(json_lines({"text": "one"})) + pack(json_lines({"text": "two"})))
    whole = ["one", "two"] if name == "a.jsonl" else ['{"text": "one"}\n{"text": "two"}\n']
    assert read(path) == (whole, {DOCUMENTS: len(whole)})


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_a_packed_file_cut_off_in_the_middle_keeps_what_came_before(tmp_path: Path, pack: type) -> None:
    numbers = np.random.default_rng(0).integers(0, 10**9, 20_000)
    content = json_lines(*({"text": f"document {number}"} for number in numbers))
    path = tmp_path / ("a.jsonl.gz" if pack is gzip.compress else "a.jsonl.zst")
    packed = pack(content)
    path.write_bytes(packed[: len(packed) // 2])
    found, counts = read(path)
    assert 5_000 < len(found) < 15_000
    assert found == [f"document {number}" for number in numbers[: len(found)]]
    assert counts == {DOCUMENTS: len(found), "cut off": 1}


def test_a_damaged_byte_in_a_packed_file_ends_it_there(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"".join(f"line {i * 7919 % 10007}\n".encode() for i in range(20_000))))
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "a.txt.gz").write_bytes(packed)
    found, counts = read(tmp_path / "a.txt.gz", documents="line")
    assert counts["cut off"] == 1
    assert len(found) > 4_000


# ---- plain text ----


def test_a_text_file_is_a_document_or_its_lines_or_paragraphs_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\n \nthree\n")
    assert read(tmp_path / "a.txt", documents="file")[0] == ["one\ntwo\n\n \nthree\n"]
    assert read(tmp_path / "a.txt", documents="section")[0] == ["one\ntwo\n\n \nthree\n"]
    assert read(tmp_path / "a.txt", documents="line")[0] == ["one", "two", "three"]
    assert read(tmp_path / "a.txt", documents="paragraph")[0] == ["one\ntwo", "three"]


def test_a_large_text_file_is_cut_at_empty_lines_into_sections_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    text = "".join(f"{number} and so on\n" * 40 + "\n" for number in range(800))
    (tmp_path / "book.txt").write_text(text)
    found, counts = read(tmp_path / "book.txt", documents="section")
    assert len(found) > 4
    assert all(SECTION_BYTES <= len(one) <= 2 * SECTION_BYTES for one in found[:-1])
    assert all(one.endswith("\n\n") for one in found)
    assert "".join(found) == text
    assert counts["empty"] == 0


@given(
    st.lists(st.sampled_from(["word ", "\n", "\n\n", "\r\n", "x" * 40_000, "é" * 90_000, "y" * 700_000]), max_size=12)
)
def test_sections_together_are_the_file_whatever_it_holds(pieces: list[str]) -> None:
    raw = "".join(pieces).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_bytes(raw)
        some = list(text_records(path, "section", Meter()))
    assert b"".join(one.raw for one in some) == raw
    assert max(len(one.raw) for one in some) <= 2 * PART_BYTES
    assert [one.starts for one in some] == [True, *(one.ends for one in some[:-1])]
    assert some[-1].ends
    assert all(one.raw for one in some) or not raw


def test_a_large_document_comes_in_parts_and_stays_one(tmp_path: Path) -> None:
    text = "".join(f"line {index}\n" for index in range(300_000))
    (tmp_path / "a.txt").write_text(text)
    some = list(records(find([tmp_path]).files[0], "text", "file", Meter()))
    assert len(some) > 5
    assert max(len(record.raw) for record in some) <= PART_BYTES
    assert [record.starts for record in some] == [True] + [False] * (len(some) - 1)
    assert [record.ends for record in some] == [False] * (len(some) - 1) + [True]
    assert b"".join(record.raw for record in some).decode() == text
    [whole] = texts([Record(json.dumps({"text": text}).encode(), "json")], "text", Counts())
    assert "".join(whole.parts) == text
    assert max(map(len, whole.parts)) <= PART_BYTES
    assert whole.key == 0  # never held out


@given(st.text(st.sampled_from("ab é\n\t😀"), min_size=1, max_size=400), st.integers(8, 60))
def test_a_cut_splits_no_character_and_always_goes_on(text: str, limit: int) -> None:
    raw = text.encode()
    at = cut(raw, limit)
    assert 0 < at <= limit
    raw[:at].decode()
    if at < len(raw):
        assert at >= limit // 2 - 3


def test_documents_that_differ_only_in_white_space_at_their_ends_are_copies() -> None:
    assert key_of(b" a b\n") == key_of(b"a b") != key_of(b"a  b")


# ---- tables ----


def test_parquet_is_read_row_by_row_and_a_lack_of_text_counted(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3, 4], "text": ["one", None, "", "été"]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert read(tmp_path / "a.parquet") == (["one", "été"], {DOCUMENTS: 2, EMPTY: 2})


def test_a_column_that_is_not_there_or_not_text_is_refused_with_those_that_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(BadConfiguration, match=r"no column 'text'; name one with --text-field: id, body"):
        read(tmp_path)
    with pytest.raises(BadConfiguration, match=r"'id' of .* is int64, not text"):
        read(tmp_path, field="id")


def test_half_a_table_is_unreadable_and_no_crash(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 100] * 1000}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    assert read(tmp_path) == ([], {"unreadable": 1})


def save_dataset(folder: Path, *texts_: str) -> None:
    folder.mkdir(parents=True)
    table = pa.table({"text": list(texts_)})
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as to,
    ):
        to.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_saved_dataset_is_read_and_of_several_splits_the_one_that_was_named(tmp_path: Path) -> None:
    save_dataset(tmp_path / "one", "a", "b", "c")
    assert read(tmp_path / "one")[0] == ["a", "b", "c"]
    for split in ("train", "test"):
        save_dataset(tmp_path / "both" / split, split)
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert read(tmp_path / "both")[0] == ["train"]
    assert [file.name for file in find([tmp_path / "both"], split="test").files] == ["both/data-00000-of-00001.arrow"]
    with pytest.raises(BadConfiguration, match="no split 'dev'; name one with --split: test, train"):
        find([tmp_path / "both"], split="dev")


def test_an_arrow_file_may_also_be_of_the_other_kind_or_cut_off(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as to:
        to.write_table(table)
    assert read(tmp_path / "a.arrow")[0] == ["a", "b"]
    (tmp_path / "a.arrow").write_bytes(b"\xff\xff\xff\xff\x10")
    assert read(tmp_path / "a.arrow") == ([], {"unreadable": 1})


@pytest.mark.skipif(not SAVED_DATASETS.is_dir(), reason="needs the saved datasets beside the checkout")
def test_datasets_that_the_library_itself_saved_are_read() -> None:
    found, counts = read(SAVED_DATASETS / "boolq-none", field="passage")
    assert len(found) == counts[DOCUMENTS] > 1000
    assert all(len(text) > 20 for text in found)


# ---- which files ----


def test_folders_are_walked_in_one_order_and_what_is_not_text_is_counted(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a/1.md", "c.py", ".hidden/x.txt", "a/.y.txt", "a/page.html", "t.npy", "z.csv.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = find([tmp_path])
    root = tmp_path.name
    assert [file.name for file in found.files] == [f"{root}/c.py", f"{root}/a/1.md", f"{root}/b/2.txt"]
    assert found.skipped == {".html": 1, ".npy": 1, ".gz": 1}


def test_what_is_named_and_cannot_be_read_is_refused_with_what_can(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="there is no"):
        find([tmp_path / "nothing"])
    for name, said in (
        ("a.pdf", "readable are .jsonl"),
        ("a.npy", "--memmap uint32"),
        ("a.parquet.gz", "readable are"),
    ):
        (tmp_path / name).write_text("x")
        with pytest.raises(BadConfiguration, match=said):
            find([tmp_path / name])
    assert find([]) == Found()


# ---- memory maps ----

MADE_BY = Tokenizer.model_construct(kind="json", name="t", num_ids=1000, end_of_text=0)


@given(
    st.lists(st.lists(st.integers(1, 999), max_size=12), min_size=1, max_size=12),
    st.booleans(),
    st.integers(3, 40),
    st.integers(0, 3),
)
def test_a_memory_map_is_cut_between_documents_from_wherever_it_goes_on(
    documents: list[list[int]], is_closed: bool, chunk_tokens: int, num_skipped: int
) -> None:
    row = np.array([token for one in documents for token in (*one, 0)], dtype="<u4")
    row = row if is_closed or row.size < 2 else row[:-1]
    made = list(chunks(row, Path("x"), MADE_BY, 0, chunk_tokens))
    whole = np.concatenate([chunk for _, chunk, _ in made])
    assert whole.tolist() == (row.tolist() if row[-1] == 0 else [*row.tolist(), 0])
    for _, chunk, _ in made:
        assert chunk[-1] == 0 or not (chunk == 0).any()  # whole documents, or a part of a large one
    for start, _, _ in made[num_skipped : num_skipped + 1]:
        again = list(chunks(row, Path("x"), MADE_BY, start, chunk_tokens))
        assert [(end, chunk.tolist(), begins) for end, chunk, begins in again] == [
            (end, chunk.tolist(), begins) for end, chunk, begins in made[num_skipped + 1 :]
        ]


def test_memory_maps_that_cannot_be_what_is_said_of_them_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for content, said in (
        (b"\1\0\0\0\2", "not a multiple of 4"),
        (np.array([5, 6], "<u4").tobytes(), "has no end of text"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadConfiguration, match=said):
            open_memmap(path, "uint32", MADE_BY)
    path.write_bytes(np.array([5, 1000, 0], "<u4").tobytes())
    with pytest.raises(BadConfiguration, match="holds token id 1000, and t has 1000 ids"):
        list(chunks(open_memmap(path, "uint32", MADE_BY), path, MADE_BY, 0))


def test_a_memory_map_with_numpys_header_is_read_behind_it(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([5, 6, 0], "<u2"))
    assert open_memmap(tmp_path / "a.npy", "uint16", MADE_BY).tolist() == [5, 6, 0]
    with pytest.raises(BadConfiguration, match="not a row of uint32"):
        open_memmap(tmp_path / "a.npy", "uint32", MADE_BY)
    np.save(tmp_path / "b.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadConfiguration, match="cannot read"):
        open_memmap(tmp_path / "b.npy", "uint32", MADE_BY)


def test_parts_and_lines_are_bounded() -> None:
    assert reading.PART_BYTES <= 1 << 20
    assert reading.MAX_LINE_BYTES <= 1 << 28
