"""What there is of Tenstorrent's world on this machine, read from files and package metadata alone: ttnn is not imported.

Four levels, never confused. `host tensors`: ttnn packs tensors, no device. `mock`: ttnn checks ops and allocates, and every
value reads back as zero, so nothing can be judged on it. `ttsim`: a simulated chip that holds bytes. `silicon`: a card.
"""

from __future__ import annotations

import base64
import hashlib
import mmap
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path, PurePosixPath

MOCK_VARIABLE = "TT_METAL_MOCK_CLUSTER_DESC_PATH"
SIMULATOR_VARIABLE = "TT_METAL_SIMULATOR"
ROOT_VARIABLE = "TT_METAL_RUNTIME_ROOT"
"""Environment variables of ttnn 0.81.1."""

_PYTHONS = ((3, 10), (3, 12))
"""CPython versions that ttnn 0.81.1 has wheels for, all of them for x86-64 Linux."""

_DEVICES = Path("/dev/tenstorrent")
_DRIVER = Path("/sys/module/tenstorrent/version")
_CARDS = Path("/sys/class/tenstorrent")
_SYSTEM_COMPILER = Path("/opt/tenstorrent/sfpi/compiler/bin/riscv-tt-elf-g++")


@dataclass(frozen=True)
class Level:
    """One level of running ttnn. `why` says what it is there by, or what is missing."""

    name: str
    available: bool
    why: str


def level_in_use() -> Level:
    """The level at which ttnn would open a device in this environment; not available where it would open none.

    The mock variable goes first, as in ttnn: with it set, a card that is present is not used.
    """
    by_name = {level.name: level for level in levels()}
    if MOCK_VARIABLE in os.environ:
        return by_name["mock"]
    return by_name["ttsim"] if SIMULATOR_VARIABLE in os.environ else by_name["silicon"]


def levels() -> tuple[Level, ...]:
    """All four levels, and why each is there or is not."""
    package = _package()
    python = _no_wheel() if package is None else None
    missing = None if package is not None else f"ttnn is not installed{f' ({python})' if python else ''}"
    compiler = missing or _no_compiler()
    return (
        Level("host tensors", missing is None, missing or "ttnn is installed"),
        _level(
            "mock", compiler, _no_file(MOCK_VARIABLE), f"by {MOCK_VARIABLE}; it reads back zeros: nothing can be judged on it"
        ),
        _level("ttsim", compiler, _no_file(SIMULATOR_VARIABLE), f"by {SIMULATOR_VARIABLE}"),
        _level(
            "silicon", compiler, None if _cards() else f"no card: {_DEVICES} is empty or missing", f"{len(_cards())} card(s)"
        ),
    )


def accelerator_record() -> dict[str, str]:
    """Facts of this machine that decide what a device run can show and how it comes out, by name; no paths.

    `ttnn build` is when the native library was linked, and `ttnn library` whether that fits the package's own files.
    """
    package = _package()
    return {
        "ttnn build": "not installed" if package is None else _build(package),
        "ttnn library": "not installed" if package is None else _library(package),
        "driver": _text(_DRIVER) or "none",
        "firmware": _firmware() or "none readable",
        "card": ", ".join(_cards()) or "none",
        "simulator": _no_file(SIMULATOR_VARIABLE) or Path(os.environ[SIMULATOR_VARIABLE]).name,
        "mock device": _no_file(MOCK_VARIABLE) or "asked for: no gate can be judged on it",
        "compiler": "ttnn is not installed" if package is None else _no_compiler() or _compiler_banner(),
    }


def _package() -> Distribution | None:
    try:
        return distribution("ttnn")
    except PackageNotFoundError:
        return None


def _no_wheel() -> str | None:
    if sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info[:2] in _PYTHONS:
        return None
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return f"there are wheels for Python 3.10 and 3.12 on x86-64 Linux, this is {here}"


def _level(name: str, compiler: str | None, missing: str | None, there: str) -> Level:
    why = "; ".join(filter(None, (missing, compiler)))
    return Level(name, not why, why or there)


def _no_file(variable: str) -> str | None:
    """What is wrong with the file that an environment variable names; None when it is there."""
    named = os.environ.get(variable)
    if not named:
        return f"{variable} is not set"
    return None if Path(named).exists() else f"the file that {variable} names is missing"


def _root(package: Distribution) -> Path:
    return Path(os.environ.get(ROOT_VARIABLE) or str(package.locate_file("ttnn")))


def _compiler(package: Distribution) -> Path | None:
    candidates = (_root(package) / "runtime/sfpi/compiler/bin/riscv-tt-elf-g++", _SYSTEM_COMPILER)
    return next((path for path in candidates if path.is_file()), None)


def _no_compiler() -> str | None:
    """Without its cross compiler ttnn opens no device of any kind."""
    package = _package()
    if package is None or _compiler(package) is not None:
        return None
    return "no SFPI cross compiler (riscv-tt-elf-g++) in ttnn's runtime/sfpi or in /opt/tenstorrent/sfpi"


def _compiler_banner() -> str:
    """The first line of its `--version`, whatever it says."""
    package = _package()
    compiler = None if package is None else _compiler(package)
    if compiler is None:
        return "none"
    try:
        said = subprocess.run([compiler, "--version"], capture_output=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run ({type(error).__name__})"
    return (said.decode("utf-8", "replace").splitlines() or ["says nothing"])[0]


def _build(package: Distribution) -> str:
    """The compile time that the native library holds (`__DATE__ __TIME__`), and its linker's build id."""
    library = Path(str(package.locate_file("ttnn/build/lib/libtt_metal.so")))
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            date = re.search(rb"\x00([A-Z][a-z]{2} [ \d]\d 20\d\d) \d\d:\d\d:\d\d\x00", data)
            note = re.search(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0(.{20})", data, re.DOTALL)
            day = bytes(date[1]).decode() if date else "no date"
            build = bytes(note[1]).hex()[:16] if note else "none"
    except (OSError, ValueError):
        return "its native library cannot be read"
    return f"{day}, build id {build}"


def _library(package: Distribution) -> str:
    """Whether the native libraries are those that the package came with, by their digests in its RECORD."""
    differ = [PurePosixPath(str(file)).name for file in package.files or () if _is_native(file) and not _as_recorded(file)]
    if differ:
        return f"not the package's own: {', '.join(sorted(differ))}"
    return f"as packaged in {package.version}"


def _is_native(file: PackagePath) -> bool:
    return file.suffix == ".so" and file.parts[0] == "ttnn"


def _as_recorded(file: PackagePath) -> bool:
    if file.hash is None:
        return True
    path = Path(str(file.locate()))
    try:
        stamp = path.stat()
        return _digest(path, file.hash.mode, stamp.st_mtime_ns, stamp.st_size) == file.hash.value
    except OSError:
        return False


@lru_cache(maxsize=32)
def _digest(path: Path, mode: str, *stamp: int) -> str:
    """As RECORD spells it. 150 MB of libraries take a second: not again while their stamp (time, size) is the same."""
    return base64.urlsafe_b64encode(hashlib.new(mode, path.read_bytes()).digest()).rstrip(b"=").decode()


def _cards() -> list[str]:
    """Each card by its type as the driver tells it, or `card N`."""
    names = sorted(path.name for path in _entries(_DEVICES) if path.name.isdecimal())
    return [_text(_CARDS / f"tenstorrent!{name}" / "tt_card_type") or f"card {name}" for name in names]


def _firmware() -> str:
    """Firmware bundle versions of all cards, as the driver tells them."""
    versions = (_text(entry / "tt_fw_bundle_ver") for entry in sorted(_entries(_CARDS)))
    return ", ".join(filter(None, versions))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
