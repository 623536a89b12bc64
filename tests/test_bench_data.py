"""The measurement of preparing text: that it measures what it says, not how fast that is."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from spes_peer.bench import data


def test_both_sides_make_tokens_of_the_same_text_and_the_report_says_how_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "_QUICK", data._Size(text_bytes=1_200_000, num_repeats=1))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("".join(f"paragraph {number} of it\n\n" for number in range(2_000)))
    path = tmp_path / "report.json"
    options = Namespace(text=str(tmp_path / "texts"), tokenizer="", workers=1, quick=True, report=str(path))
    report = data.run_bench(options)
    assert report["text_bytes"] >= 1_200_000
    assert report["documents"] > 10_000  # paragraphs
    assert report["ratio"] == report["ours_tokens_per_second"] / report["library_tokens_per_second"] > 0
    assert json.loads(path.read_text()) == report
    assert "data prepare" in capsys.readouterr().out
