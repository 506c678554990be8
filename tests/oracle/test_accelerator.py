"""What is told of ttnn, card and compiler, from files: packages and folders made here, ttnn never imported."""

from __future__ import annotations

import base64
import hashlib
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from oracle import accelerator
from oracle.accelerator import (
    MOCK_VARIABLE,
    ROOT_VARIABLE,
    SIMULATOR_VARIABLE,
    accelerator_record,
    level_in_use,
    levels,
)
from oracle.environment import environment_record

LIBRARY = b"\x7fELF\0" + b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0" + bytes(range(20)) + b"\0Oct 22 2026 00:00:02\0"
BANNER = "a compiler of this test 1.0"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with neither ttnn nor a card, whatever this one has; everything of it lies in the folder returned."""
    for variable in (MOCK_VARIABLE, SIMULATOR_VARIABLE, ROOT_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    for name in ("_DEVICES", "_DRIVER", "_CARDS", "_SYSTEM_COMPILER"):
        monkeypatch.setattr(accelerator, name, tmp_path / name)
    if accelerator._package() is not None:

        def absent(name: str) -> None:
            raise PackageNotFoundError(name)

        monkeypatch.setattr(accelerator, "distribution", absent)
    return tmp_path


@pytest.fixture
def package(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same machine with a package ttnn, as pip would have installed it, and no compiler."""
    site = machine / "site"
    library = site / "ttnn/build/lib/libtt_metal.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(LIBRARY)
    digest = base64.urlsafe_b64encode(hashlib.sha256(LIBRARY).digest()).rstrip(b"=").decode()
    info = site / "ttnn-0.81.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ttnn\nVersion: 0.81.1\n", encoding="utf-8")
    (info / "RECORD").write_text(f"ttnn/build/lib/libtt_metal.so,sha256={digest},{len(LIBRARY)}\n", encoding="utf-8")
    monkeypatch.undo()
    for variable in (MOCK_VARIABLE, SIMULATOR_VARIABLE, ROOT_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    for name in ("_DEVICES", "_DRIVER", "_CARDS", "_SYSTEM_COMPILER"):
        monkeypatch.setattr(accelerator, name, machine / name)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return machine


def put_compiler(package: Path) -> None:
    compiler = package / "site/ttnn/runtime/sfpi/compiler/bin/riscv-tt-elf-g++"
    compiler.parent.mkdir(parents=True)
    compiler.write_text(f"#!/bin/sh\necho '{BANNER}'\n", encoding="utf-8")
    compiler.chmod(0o755)


def put_card(machine: Path) -> None:
    (machine / "_DEVICES").mkdir()
    (machine / "_DEVICES" / "0").touch()
    facts = machine / "_CARDS" / "tenstorrent!0"
    facts.mkdir(parents=True)
    (facts / "tt_card_type").write_text("p150b\n", encoding="utf-8")
    (facts / "tt_fw_bundle_ver").write_text("19.1.0.0\n", encoding="utf-8")
    (machine / "_DRIVER").write_text("2.4.1\n", encoding="utf-8")


def available() -> dict[str, bool]:
    return {level.name: level.available for level in levels()}


def test_without_ttnn_no_level_is_there_and_each_says_why(machine: Path) -> None:
    assert not any(available().values())
    assert all("ttnn is not installed" in level.why for level in levels())
    assert "no card: " in level_in_use().why
    assert set(accelerator_record().values()) >= {"not installed", "none"}


def test_ttnn_alone_packs_tensors_and_opens_nothing(package: Path) -> None:
    assert available() == {"host tensors": True, "mock": False, "ttsim": False, "silicon": False}
    assert "no SFPI cross compiler" in level_in_use().why


def test_build_and_libraries_are_read_from_the_package(package: Path) -> None:
    record = accelerator_record()
    assert record["ttnn build"] == "Oct 22 2026, build id 0001020304050607"
    assert record["ttnn library"] == "as packaged in 0.81.1"


@pytest.mark.parametrize("change", ["one bit", "gone"])
def test_a_library_that_is_not_the_packages_is_named(package: Path, change: str) -> None:
    """As after a build of one's own was copied over it."""
    library = package / "site/ttnn/build/lib/libtt_metal.so"
    if change == "gone":
        library.unlink()
    else:
        library.write_bytes(LIBRARY[:-2] + bytes([LIBRARY[-2] ^ 1]) + LIBRARY[-1:])
    assert accelerator_record()["ttnn library"] == "not the package's own: libtt_metal.so"


def test_with_compiler_and_card_silicon_is_there_by_what_the_driver_says(package: Path) -> None:
    put_compiler(package)
    assert not available()["silicon"]
    put_card(package)
    assert available() == {"host tensors": True, "mock": False, "ttsim": False, "silicon": True}
    assert level_in_use().name == "silicon"
    record = accelerator_record()
    assert (record["card"], record["driver"], record["firmware"], record["compiler"]) == ("p150b", "2.4.1", "19.1.0.0", BANNER)


def test_the_mock_device_goes_before_a_card_and_a_simulator(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ttnn, so that a run on it is never taken for one on the card that is there too."""
    put_compiler(package)
    put_card(package)
    simulator = package / "libttsim.so"
    monkeypatch.setenv(SIMULATOR_VARIABLE, str(simulator))
    assert (level_in_use().name, level_in_use().available) == ("ttsim", False)
    assert level_in_use().why == f"the file that {SIMULATOR_VARIABLE} names is missing"
    simulator.touch()
    assert (level_in_use().name, level_in_use().available) == ("ttsim", True)
    monkeypatch.setenv(MOCK_VARIABLE, str(simulator))
    assert level_in_use().name == "mock"
    assert accelerator_record()["mock device"] == "asked for: no gate can be judged on it"


def test_another_runtime_folder_has_its_own_compiler(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_compiler(package)
    monkeypatch.setenv(ROOT_VARIABLE, str(package / "elsewhere"))
    assert accelerator_record()["compiler"].startswith("no SFPI cross compiler")


def test_the_environment_record_holds_it_and_names_no_path(package: Path) -> None:
    put_compiler(package)
    record = environment_record()
    assert record.items() >= accelerator_record().items()
    assert not any(str(package) in value for value in record.values())
