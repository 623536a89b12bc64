"""A model continues a text: with what it was trained on, safely with whatever a stranger's folder holds."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from huggingface_runs import KINDS, run_file_of, tokens_of, write_run
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from spes_peer.data.huggingface_tokenizer import byte_tokenizer_files
from spes_peer.data.spelling import Bytes, Words, spelling_of
from spes_peer.errors import BadConfiguration
from spes_peer.generating.command import add_generate_command
from spes_peer.model.attention import Past
from spes_peer.model.norm import rms_norm
from spes_peer.model.writing import Taste, continued, drawn
from spes_peer.training.export import export
from spes_peer.training.generate import load, write


def exported(folder: Path, kind: str = "olmoe") -> Path:
    write_run(folder / "run", run_file_of(kind))
    export(folder / "run", folder / "out")
    return folder / "out"


@pytest.mark.parametrize("kind", KINDS)
def test_token_by_token_gives_what_the_whole_text_gives(kind: str, tmp_path: Path) -> None:
    decoder = load(exported(tmp_path, kind), "cpu")
    tokens_BT = tokens_of(272)[:, :20]
    pasts = [Past() for _ in decoder.layers]
    stepwise = [decoder.next_logits(tokens_BT[:, :12], pasts)]
    stepwise += [decoder.next_logits(tokens_BT[:, [place]], pasts) for place in range(12, 20)]
    with torch.no_grad():
        x_BTD = functional.embedding(tokens_BT, decoder.embedding)
        for layer in decoder.layers:
            x_BTD, *_ = layer(x_BTD, decoder.rotary)
        whole = functional.linear(rms_norm(x_BTD, decoder.final_norm), decoder.head)
    torch.testing.assert_close(torch.stack(stepwise, dim=1), whole[:, 11:], atol=1e-4, rtol=0)


def test_the_likeliest_text_is_their_librarys(tmp_path: Path) -> None:
    out = exported(tmp_path)
    prompt = [ord(letter) for letter in "import "]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    wanted = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, min_new_tokens=12, do_sample=False)
    texts = continued(load(out, "cpu"), prompt, 272, Taste(temperature=0), torch.Generator())
    ours = [next(texts) for _ in range(12)]
    assert ours == wanted[0, 7:].tolist() or 256 in ours  # theirs may not end so early


def test_a_text_goes_on_when_the_context_is_full(tmp_path: Path) -> None:
    decoder = load(exported(tmp_path), "cpu")
    texts = continued(decoder, list(range(100)), 257, Taste(), torch.Generator().manual_seed(1))
    assert len([next(texts) for _ in range(3 * decoder.model.sequence_length)]) == 192


def test_only_the_nucleus_is_drawn() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    generator = torch.Generator().manual_seed(1)
    assert {drawn(logits, Taste(1.0, 0.6), generator) for _ in range(100)} == {0, 1}
    assert {drawn(logits, Taste(1.0, 1e-9), generator) for _ in range(20)} == {0}
    assert {drawn(logits, Taste(0.0, 1.0), generator) for _ in range(20)} == {0}
    for taste in (Taste(5e-324, 1.0), Taste(1e-30, 1.0), Taste(1.0, 5e-324), Taste(1e-5, 1.0)):
        assert {drawn(1e6 * logits, taste, generator) for _ in range(20)} == {0}
    assert {drawn(logits, Taste(1e308, 1.0), generator) for _ in range(100)} > {0, 1}


@given(st.text())
def test_bytes_are_spelled_as_they_come(text: str) -> None:
    spelling = Bytes()
    content = text.encode("utf-8", "replace")
    assert "".join(map(spelling.add, content)) + spelling.rest() == content.decode()


def test_half_a_character_is_held_back_and_shown_at_the_end() -> None:
    spelling = Bytes()
    assert [spelling.add(token) for token in "ψ".encode()] == ["", "ψ"]
    assert spelling.add(0xCF) == ""
    assert spelling.rest() == "\ufffd"


def test_a_tokenizer_of_words_spells_what_it_reads(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer_files(1)["tokenizer.json"])
    assert isinstance(spelling_of(tmp_path), Bytes)
    spelling = Words(tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    ids = spelling.ids_of("naïve ψ 模型 " * 20)
    assert "".join(map(spelling.add, ids)) + spelling.rest() == "naïve ψ 模型 " * 20


def test_what_is_written_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(max_tokens=3, temperature=0.8, top_p=0.9, seed=7)
    decoder = load(exported(tmp_path), "cpu")
    capsys.readouterr()
    assert write(decoder, Bytes(), "a\x1b[2Jb\n", options, end_of_text=300) == 3
    assert capsys.readouterr().out.startswith("a\ufffd[2Jb\n")


def test_a_seed_gives_the_same_text_again_and_no_prompt_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = load(exported(tmp_path), "cpu")
    capsys.readouterr()
    options = argparse.Namespace(max_tokens=20, temperature=1.0, top_p=1.0, seed=7)
    texts = []
    for _ in range(2):
        write(decoder, Bytes(), "", options, end_of_text=256)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def _spoil_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def test_a_strangers_folder_is_refused_in_a_line(tmp_path: Path) -> None:
    out = exported(tmp_path)
    weights, config = (out / "model.safetensors").read_bytes(), (out / "config.json").read_text()
    cases = {
        "other shapes": lambda: _spoil_config(out, hidden_size=96),
        "a size that no machine has": lambda: _spoil_config(out, vocab_size=10**15, hidden_size=4 * 10**9),
        "layers without end": lambda: _spoil_config(out, num_hidden_layers=10**7),
        "another kind": lambda: _spoil_config(out, architectures=["Evil"], auto_map={"AutoConfig": "evil.py"}),
        "nested without end": lambda: (out / "config.json").write_text("[" * 10**5),
        "a list": lambda: (out / "config.json").write_text("[]"),
        "no JSON": lambda: (out / "config.json").write_bytes(b"\xff\x00"),
        "cut weights": lambda: (out / "model.safetensors").write_bytes(weights[:1000]),
        "a header that lies": lambda: (out / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}"),
    }
    for name, spoil in cases.items():
        (out / "model.safetensors").write_bytes(weights)
        (out / "config.json").write_text(config)
        spoil()
        with pytest.raises(BadConfiguration) as refused:
            load(out, "cpu")
        assert "\n" not in str(refused.value), name


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    out = exported(tmp_path)
    tensors = safetensors.torch.load_file(out / "model.safetensors")
    tensors["lm_head.weight"][0, 0] = float("nan")
    safetensors.torch.save_file(tensors, out / "model.safetensors")
    with pytest.raises(BadConfiguration, match="not finite"):
        load(out, "cpu")


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    with pytest.raises(BadConfiguration, match=r"has no tokenizer.json"):
        spelling_of(tmp_path)
    bpe = '{"version": "1.0", "model": {"type": "BPE", "vocab": %s, "merges": []}}'
    for content, said in (
        (b"{}", r"is no tokenizer\.json"),
        (b"[" * 10**5, "cannot read"),
        (b"\xff", "cannot read"),
        ((bpe % '{"a": -1}').encode(), r"is no tokenizer\.json"),
        ((bpe % "{}").encode(), "no token at all"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadConfiguration, match=said):
            spelling_of(tmp_path)
    with path.open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(BadConfiguration, match="at most"):
        spelling_of(tmp_path)


def test_a_tokenizer_that_reads_no_text_or_writes_none_is_refused_in_a_line(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}))
    path.write_text(words.to_str())
    with pytest.raises(BadConfiguration, match=r"cannot encode this text \(.*Missing \[UNK\]"):
        spelling_of(tmp_path).ids_of("c")
    words.decoder = tokenizers.decoders.Strip("a", 5, 5)  # the library panics at a text shorter than that
    path.write_text(words.to_str())
    spelling = spelling_of(tmp_path)
    assert spelling.ids_of("a") == [0]
    with pytest.raises(BadConfiguration, match="cannot write what the model says"):
        spelling.add(0)


@pytest.mark.parametrize(
    "flags",
    [["--temperature", "-1"], ["--top-p", "0"], ["--max-tokens", "-1"], ["--seed", "-1"], ["--temperature", "nan"]],
)
def test_flags_that_cannot_be_are_refused_by_name(flags: list[str], tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_generate_command(parser.add_subparsers())
    options = parser.parse_args(["generate", str(tmp_path), *flags])
    with pytest.raises(BadConfiguration, match=flags[0]):
        options.run(options)


@pytest.mark.parametrize("model", ["nowhere", "/ip4/127.0.0.1/tcp/1", "/dns4/x"])
def test_a_model_that_is_nothing_is_refused(model: str) -> None:
    parser = argparse.ArgumentParser()
    add_generate_command(parser.add_subparsers())
    options = parser.parse_args(["generate", model])
    with pytest.raises(BadConfiguration, match="address"):
        options.run(options)
