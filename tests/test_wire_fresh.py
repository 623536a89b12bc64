"""The generated code is that of proto/; stale code fails here. `make proto` mends it."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).parent.parent
WIRE = ROOT / "spes_peer" / "wire"
SOURCES = {path.stem: path.read_text() for path in sorted((ROOT / "proto").glob("*.proto"))}
SERVICES = [name for name, text in SOURCES.items() if "\nservice " in text]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the generator makes of proto/ now."""
    folder = tmp_path_factory.mktemp("wire")
    files = [f"spes_peer/wire/{name}.proto" for name in SOURCES]
    services = [f"spes_peer/wire/{name}.proto" for name in SERVICES]
    generator = [sys.executable, "-m", "grpc_tools.protoc", "-Ispes_peer/wire=proto"]
    for options in (
        [f"--descriptor_set_out={folder}/descriptors", f"--python_out={folder}", f"--pyi_out={folder}", *files],
        [f"--grpc_python_out={folder}", *services],
    ):
        subprocess.run([*generator, *options], cwd=ROOT, check=True, timeout=60)
    return folder


def test_the_checked_in_descriptors_are_those_of_the_sources(made: Path) -> None:
    descriptors = FileDescriptorSet.FromString((made / "descriptors").read_bytes())
    assert len(descriptors.file) == len(SOURCES)
    for expected in descriptors.file:
        module = importlib.import_module(expected.name.replace("/", ".").removesuffix(".proto") + "_pb2")
        actual = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(actual)
        _drop_json_names(expected)
        _drop_json_names(actual)
        assert actual == expected, f"{expected.name} has changed: run `make proto`"


def _drop_json_names(file: FileDescriptorProto) -> None:
    """The compiler writes them into a descriptor set and not into Python code; they follow from the names."""
    for message in file.message_type:
        assert not message.nested_type, "nested messages: look into them here too"
        for field in message.field:
            field.ClearField("json_name")


def test_no_generated_file_is_missing_left_over_or_older_than_its_source(made: Path) -> None:
    fresh = {path.name: path.read_text() for path in (made / "spes_peer" / "wire").iterdir()}
    checked_in = {path.name: path.read_text() for path in WIRE.glob("*_pb2*")}
    assert checked_in.keys() == fresh.keys()
    stale = [name for name, text in fresh.items() if checked_in[name] != text]
    assert not stale, f"run `make proto`: {', '.join(stale)} differ"


@pytest.mark.parametrize("name", SOURCES)
def test_every_message_belongs_to_our_package(name: str) -> None:
    # hivemind registers names without a package, and two messages of one name cannot live in one process
    assert "\npackage spes_peer.wire;\n" in SOURCES[name]
