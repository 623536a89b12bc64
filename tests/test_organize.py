"""A run folder is made in steps, each whole or not at all, and what is signed stays as it is."""

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from spes_peer import organize
from spes_peer.blobs import BlobStore
from spes_peer.cli import main
from spes_peer.data.index import ShardIndex
from spes_peer.data.prepared import data_in
from spes_peer.errors import BadConfiguration, ChildFailed
from spes_peer.files import write_whole
from spes_peer.identity import Identity
from spes_peer.lock import locked
from spes_peer.organize import Genesis, can_be_signed, is_signed, new_run, read_manifest, run_file_in, sign_run
from spes_peer.planning.showing import described
from spes_peer.run.certificates import Checks
from spes_peer.run.chain import Chain
from spes_peer.run.checking import refuse_another_model
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import SignedManifest, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import BlockName, Snapshot, state_root
from spes_peer.run.rules import Rules
from spes_peer.training.carry import carry
from spes_peer.training.genesis import make_genesis, write_genesis
from spes_peer.wire import convert

Module = Callable[..., None]


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def made_up_genesis(module: str, folder: str, *arguments: str, round: int = 0) -> None:
    """In place of a process with torch: names for all blocks."""
    manifest = SignedManifest.from_bytes((Path(folder) / "manifest.spes").read_bytes()).open()
    layout = Layout(manifest)
    blob = BlobStore(Path(folder) / "blobs").put(b"block").name
    blocks = tuple(BlockName(block.id, blob, layout.state_bytes(block)) for block in layout.state_blocks)
    write_whole(Path(folder) / "genesis.spes", convert.encode(Snapshot(round, blocks)))


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(organize, "run_module", made_up_genesis)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Not signed yet, with a little text as its data."""
    new_run(tmp_path / "my-run", small())
    make_data(tmp_path / "my-run")
    return tmp_path / "my-run"


def small() -> str:
    """A schedule for a little text."""
    text = PRESETS["demo"].replace("total_steps = 2000", "total_steps = 200")
    return text.replace("merge_warmup_steps = 200", "merge_warmup_steps = 50").replace("merge_alpha = 0.05", "")


def make_data(folder: Path) -> None:
    texts = folder.parent / "texts"
    texts.mkdir(exist_ok=True)
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"text {number}. " * 200)
    documents = organize.read_text_folder(texts, 1)
    organize._tokenized(folder, parse_run_file(run_file_in(folder)), documents)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- new ----


@pytest.mark.parametrize("preset", PRESETS)
def test_a_new_folder_holds_run_file_and_keys_and_says_what_to_type_next(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "our run"
    assert command("run", "new", str(folder), "--preset", preset) == 0
    said = capsys.readouterr().out
    assert names(folder) == ["identity.key", "organizer.key", "run.toml"]
    assert (folder / "organizer.key").stat().st_mode & 0o777 == 0o600
    run = parse_run_file(run_file_in(folder))
    assert run.run.name == "our run"
    assert run.model == parse_run_file(PRESETS[preset]).model
    for line in ("run check", "data prepare", "run sign", "spes-bootstrap --run"):
        assert f"{line} '{folder}'" in said
    assert can_be_signed(folder)
    assert not is_signed(folder)


def test_further_organizers_stand_in_the_run_file_and_sign_with_the_first(
    tmp_path: Path, no_torch: None, capsys: pytest.CaptureFixture[str]
) -> None:
    spare = Identity.from_seed(b"\7" * 32).peer_id
    (tmp_path / "run.toml").write_text(small())
    options = ["--config", str(tmp_path / "run.toml"), "--organizer", spare, "--organizer", spare, "--name", "ours"]
    assert command("run", "new", str(tmp_path / "run"), *options) == 0
    make_data(tmp_path / "run")
    manifest = sign_run(tmp_path / "run").open()
    assert manifest.run.name == "ours"
    assert manifest.organizers[1:] == (spare,)
    assert command("run", "new", str(tmp_path / "other"), "--organizer", "nobody") == 2
    assert "run.organizers" in (said := capsys.readouterr().err) or "'nobody' is not an Ed25519 peer id" in said
    assert not (tmp_path / "other").exists()


def test_a_folder_with_anything_in_it_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadConfiguration, match="is not empty"):
        new_run(tmp_path, small())
    assert names(tmp_path) == ["file"]


# ---- check ----


def test_check_lists_everything_that_is_wrong_and_sign_refuses_by_the_first(
    folder: Path, no_torch: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", "check", str(folder)) == 0
    assert "can be signed" in capsys.readouterr().out
    text = run_file_in(folder)
    for key, value in (("warmup_steps", 500), ("batch_sequences", 2), ("num_heads", 3)):
        text = re.sub(rf"^{key} = \d+", f"{key} = {value}", text, flags=re.MULTILINE)
    write_whole(folder / "run.toml", text.encode())
    assert command("run", "check", str(folder / "run.toml"), "--quiet") == 2
    said = capsys.readouterr()
    assert [line.split()[1] for line in said.out.splitlines() if line.startswith("error")] == [
        "d_model", "num_heads", "warmup_steps", "batch_sequences",
    ]  # fmt: skip
    assert said.err.count("\n") == 2  # an empty line, and one that counts
    assert command("run", "check", str(folder), "--json") == 2
    assert len(json.loads(capsys.readouterr().out)) >= 4
    with pytest.raises(BadConfiguration, match=r"d_model .*\(and 3 more\); all of it: spes-peer run check"):
        sign_run(folder)
    assert not is_signed(folder)


# ---- sign ----


def test_a_signed_folder_has_a_manifest_a_record_and_no_litter(folder: Path, no_torch: None) -> None:
    data = data_in(folder)
    signed = sign_run(folder, licence="CC-BY-SA-4.0")
    manifest = read_manifest(folder).open()
    assert read_manifest(folder) == signed
    assert manifest.data.licence == "CC-BY-SA-4.0"
    assert data is not None
    assert manifest.data.sources == data.sources
    assert manifest.origin is None
    chain = Chain(folder, Checks.of(manifest, signed.run_id))
    assert chain.num_records == 1
    record = chain.record(0).sealed.record
    assert record.state_root == state_root(record.genesis)
    bootstrap = Identity.load(folder / "identity.key")
    assert bootstrap is not None
    assert record.candidates == (bootstrap.peer_id,)
    assert names(folder) == [
        "blobs", "data.json", "identity.key", "lock", "manifest.spes", "organizer.key", "records", "run.toml",
    ]  # fmt: skip


def test_what_is_signed_is_not_signed_again(folder: Path, no_torch: None) -> None:
    before = sign_run(folder)
    with pytest.raises(BadConfiguration, match=r"is signed already.*--from"):
        sign_run(folder)
    assert read_manifest(folder) == before


def test_what_another_signs_while_one_waits_for_the_folder_is_not_signed_again(
    folder: Path, no_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, signed_first = organize.held, []

    def held_by_another_first(path: Path) -> AbstractContextManager[None]:
        monkeypatch.setattr(organize, "held", hold)
        signed_first.append(sign_run(path))
        return hold(path)

    monkeypatch.setattr(organize, "held", held_by_another_first)
    with pytest.raises(BadConfiguration, match="is signed already"):
        sign_run(folder)
    assert [read_manifest(folder)] == signed_first


@pytest.mark.parametrize("at", ["genesis", "record", "manifest"])
def test_signing_that_is_cut_off_leaves_a_folder_that_can_be_signed(
    at: str, folder: Path, no_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_arguments: object, **_named: object) -> None:
        raise KeyboardInterrupt

    before = names(folder)
    with monkeypatch.context() as patched:
        if at == "genesis":
            patched.setattr(organize, "run_module", cut_off)
        elif at == "record":
            patched.setattr(organize, "first_record", cut_off)
        else:
            whole = organize.write_whole
            patched.setattr(
                organize,
                "write_whole",
                lambda path, content: cut_off() if path.parent == folder else whole(path, content),
            )
        with pytest.raises(KeyboardInterrupt):
            sign_run(folder)
    assert not is_signed(folder)
    assert set(names(folder)) - set(before) <= {"lock", "records"}
    (folder / ".signing.killed.writing" / "records").mkdir(parents=True)  # as kill -9 leaves it
    signed = sign_run(folder)
    assert Chain(folder, Checks.of(signed.open(), signed.run_id)).num_records == 1
    assert not list(folder.glob(".signing*"))


def test_a_genesis_that_fails_says_why_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise ChildFailed("no memory for it")

    monkeypatch.setattr(organize, "run_module", fail)
    with pytest.raises(ChildFailed, match="no memory"):
        sign_run(folder)
    assert not is_signed(folder)
    assert not list(folder.glob(".signing*"))


def test_the_organizers_key_may_lie_elsewhere_and_is_not_made_anew(folder: Path, no_torch: None) -> None:
    organizer = Identity.load(folder / "organizer.key")
    assert organizer is not None
    elsewhere = folder.parent / "safe.key"
    (folder / "organizer.key").rename(elsewhere)
    with pytest.raises(BadConfiguration, match=r"the organizer's key is not in .*--key"):
        sign_run(folder)
    assert not (folder / "organizer.key").exists()
    assert sign_run(folder, key=elsewhere).organizer == organizer.peer_id


def test_a_folder_at_which_another_program_works_is_left_alone(folder: Path, no_torch: None) -> None:
    with locked(folder):
        with pytest.raises(BadConfiguration, match=rf"another program is at work on .* \(pid {os.getpid()}\)"):
            sign_run(folder)
        assert sign_run(folder, is_held=True).open().run.name == "demo"


def test_a_run_that_wants_a_tokenizer_is_not_signed_without_its_data(tmp_path: Path, no_torch: None) -> None:
    new_run(tmp_path / "run", PRESETS["spes-1b"])
    with pytest.raises(BadConfiguration, match=r"has no data yet, .*spes-peer data prepare .* --tokenizer"):
        sign_run(tmp_path / "run")


def test_data_that_is_not_whole_or_damaged_is_refused_with_what_to_do(folder: Path, no_torch: None) -> None:
    data = data_in(folder)
    assert data is not None
    blobs = BlobStore(folder / "blobs")
    lost = next(ShardIndex.read(data, blobs).shards()).blob
    kept = blobs.path(lost).read_bytes()
    blobs.remove(lost)
    with pytest.raises(BadConfiguration, match=r"not whole: 1 of \d+ blobs are missing; make it again: .* --anew"):
        sign_run(folder)
    assert blobs.put(kept).name == lost
    blobs.remove(data.sources[0].shards.index)
    with pytest.raises(BadConfiguration, match="not whole"):
        sign_run(folder)
    write_whole(folder / "data.json", b'{"sources": []}')
    with pytest.raises(BadConfiguration, match=r"data\.json is damaged .*spes-peer data prepare .* --anew"):
        sign_run(folder)


def test_a_folder_without_a_run_or_not_signed_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(BadConfiguration, match="not signed yet; do it with: spes-peer run sign"):
        read_manifest(folder)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(BadConfiguration, match="spes-peer run new"):
            sign_run(missing)


# ---- show ----


def test_show_tells_who_may_join_in_words(
    folder: Path, no_torch: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    peer = Identity.from_seed(b"\5" * 32).peer_id
    write_whole(
        folder / "run.toml", f'{run_file_in(folder)}\n[admission]\nmode = "list"\nlisted = ["{peer}"]\n'.encode()
    )
    run_id = sign_run(folder).run_id.hex()
    assert command("run", "show", str(folder)) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    words = " ".join(said.split())
    assert f"who may join only 1 peer on the organizer's list: {peer}" in words
    assert run_id in words
    assert "now not begun; 10 rounds to go" in words
    assert "begun from first weights of its own" in words
    assert command("run", "show", str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out)["run_id"] == run_id
    assert command("run", "show", "nowhere") == 2
    assert "there is no folder nowhere, and it is no address" in capsys.readouterr().err


def test_show_tells_what_an_amendment_has_changed(folder: Path, no_torch: None) -> None:
    signed = sign_run(folder)
    manifest = signed.open()
    before = Rules.of(manifest)
    peer = Identity.from_seed(b"\5" * 32).peer_id
    said = described(signed, manifest, None, replace(before, banned=(peer,), finish_after_round=7))
    assert f"banned: {peer}" in said
    assert "the run ends with round 7" in said
    assert "changed" not in described(signed, manifest, None, before)


# ---- with real weights ----


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that make first weights, without a process for each."""

    def run_module(module: str, folder: str, *arguments: str) -> None:
        if module.endswith(".carry"):
            carry(Path(folder), Path(arguments[0]))
        else:
            write_genesis(Path(folder), make_genesis)

    monkeypatch.setattr(organize, "run_module", run_module)


def test_a_run_goes_on_from_the_newest_state_of_another(tmp_path: Path, folder: Path, in_process: None) -> None:
    old = sign_run(folder)
    new_run(
        tmp_path / "next", small().replace("lr = 3e-3", "lr = 1e-3").replace("expert_encoding", "# expert_encoding")
    )
    make_data(tmp_path / "next")
    signed = sign_run(tmp_path / "next", Genesis.of_run(folder))
    manifest = signed.open()
    assert manifest.origin is not None
    assert (manifest.origin.run_id, manifest.origin.round) == (old.run_id.hex(), 0)
    assert "the state of run" in described(signed, manifest)
    first, second = (
        Chain(one, Checks.of(read_manifest(one).open(), read_manifest(one).run_id)).record(0).sealed.record
        for one in (folder, tmp_path / "next")
    )
    assert first.genesis == second.genesis  # bit for bit


def test_a_run_of_another_model_is_not_begun_from_the_old_one(tmp_path: Path, folder: Path, in_process: None) -> None:
    sign_run(folder)
    new_run(tmp_path / "next", small().replace("expert_hidden = 256", "expert_hidden = 128"))
    make_data(tmp_path / "next")
    with pytest.raises(BadConfiguration, match=r"model\.expert_hidden is 128, and 256 in the run that it begins with"):
        sign_run(tmp_path / "next", Genesis.of_run(folder))
    assert not is_signed(tmp_path / "next")
    shutil.rmtree(folder / "blobs")
    with pytest.raises(BadConfiguration, match="holds no whole state"):
        sign_run(tmp_path / "next", Genesis.of_run(folder))


def test_a_longer_context_may_differ_and_nothing_that_changes_the_parameters() -> None:
    model = parse_run_file(PRESETS["demo"]).model
    refuse_another_model(model, model.model_copy(update={"sequence_length": 512, "rope_theta": 1e6}))
    for key, value in (("top_k", 1), ("qk_norm", "head"), ("renormalize_top_k", True), ("num_experts", 16)):
        with pytest.raises(BadConfiguration, match=rf"^model\.{key} is"):
            refuse_another_model(model, model.model_copy(update={key: value}))


@pytest.mark.slow
def test_signing_in_a_process_of_its_own_says_what_it_stores(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command("run", "sign", str(folder)) == 0
    said = capfd.readouterr()
    assert "storing expert 8 of 8" in said.err
    assert f"spes-bootstrap --run {folder}" in said.out
