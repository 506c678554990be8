"""A mock P150 for ttnn on a machine without one: a runtime folder over the installed wheel, and the environment to use it.

The wheel is not touched: `TT_METAL_RUNTIME_ROOT` names a folder of links into it, with a placeholder where ttnn looks for its
cross compiler (`not_a_compiler.sh`, which says in its name and in its `--version` what it is). As a command it makes one:
`python tests/ttnn/mock_p150.py FOLDER` prints the variables to export.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

BINUTILS = "riscv64-unknown-elf"
"""Prefix of the assembler and linker of Debian's package `binutils-riscv64-unknown-elf`."""

_HERE = Path(__file__).parent
DESCRIPTOR = {"TT_METAL_MOCK_CLUSTER_DESC_PATH": str(_HERE / "mock_p150.yaml")}
"""The variable that describes the mock device: one P150."""

_PLACEHOLDER_BUILDS = ("6670566828608415915", "15521091533608441112")
"""The firmware folders that ttnn 0.81.1 asks for with one and with two command queues where its compiler answers `placeholder:
not a compiler`: a hash over that and the flags of the build."""
_FIRMWARE_BUILD = "9306116277277556189"
"""The wheel's own firmware for a Blackhole with this descriptor's harvesting and fast dispatch."""
_CORES = ("brisc", "ncrisc", "trisc0", "trisc1", "trisc2")
_KERNEL = """\
.section .text
.globl _start
_start:
  call 1f
1:
  ret
"""


def missing_tools() -> str | None:
    """What keeps this machine from having a mock P150, in words; None when nothing does."""
    if shutil.which(f"{BINUTILS}-as") is None:
        return f"{BINUTILS}-as is not here; install binutils-riscv64-unknown-elf"
    return None


def make_mock_p150(folder: Path) -> dict[str, str]:
    """Make the runtime folder, and return the environment variables that make ttnn open a mock P150 from it."""
    package = Path(str(distribution("ttnn").locate_file("ttnn")))
    root = folder / "runtime-root"
    _link_all(package, root, but={"tt_metal", "runtime"})
    _link_all(package / "tt_metal", root / "tt_metal", but={"pre-compiled"})
    _link_all(package / "tt_metal" / "pre-compiled", root / "tt_metal" / "pre-compiled", but=set())
    for build in _PLACEHOLDER_BUILDS:
        (root / "tt_metal" / "pre-compiled" / build).symlink_to(package / "tt_metal/pre-compiled" / _FIRMWARE_BUILD)
    _link_all(package / "runtime", root / "runtime", but={"sfpi"})
    tools = root / "runtime/sfpi/compiler/bin"
    (tools / "placeholder-elf").mkdir(parents=True)
    shutil.copy(_HERE / "not_a_compiler.sh", tools / "riscv-tt-elf-g++")
    (tools / "riscv-tt-elf-g++").chmod(0o755)
    for core in _CORES:
        _assemble(package, core, tools / "placeholder-elf")
    return {
        "TT_METAL_RUNTIME_ROOT": str(root),
        **DESCRIPTOR,
        "TT_METAL_CACHE": str(folder / "cache"),
    }


def _link_all(source: Path, target: Path, but: set[str]) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name not in but and entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)


def _assemble(package: Path, core: str, folder: Path) -> None:
    """An ELF for `core` of two instructions, linked as ttnn links kernels: by the wheel's script, over the wheel's firmware."""
    firmware = package / "tt_metal/pre-compiled" / _FIRMWARE_BUILD / core / f"{core}_weakened.elf"
    script = package / "runtime/hw/toolchain/blackhole" / f"kernel_{core}.ld"
    source, item = folder / f"{core}.s", folder / f"{core}.o"
    source.write_text(_KERNEL, encoding="utf-8")
    subprocess.run([f"{BINUTILS}-as", "-march=rv32im", "-mabi=ilp32", "-mno-relax", "-o", item, source], check=True)
    pages = ("-z", "max-page-size=16", "-z", "common-page-size=16")
    flags = ("-m", "elf32lriscv", "--emit-relocs", "--no-relax", *pages, f"--just-symbols={firmware}", "-T", script)
    subprocess.run([f"{BINUTILS}-ld", *flags, "-o", folder / f"{core}.elf", item], check=True)


if __name__ == "__main__":
    for name, value in make_mock_p150(Path(sys.argv[1]).resolve()).items():
        print(f"export {name}={value}")
