"""One canonical JSON, and files that are whole or absent, even when the process is killed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.errors import GoldenError, UsageError
from oracle.serialization import (
    canonical_json,
    check_writable,
    digest,
    new_folder,
    parse_json,
    read_bytes,
    write_file,
)

ADVICE = "make it again"

text = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_canonical_json_reads_back_and_has_one_final_newline(value: Any) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1


@given(st.dictionaries(text, st.integers(), min_size=2, max_size=6), st.randoms())
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, int], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    assert canonical_json({key: value[key] for key in keys}) == canonical_json(value)
    assert list(json.loads(canonical_json(value))) == sorted(value)


def test_canonical_json_is_pinned_to_the_byte() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "Käse"}) == '{"a":"Käse","b":[1,2.5,null]}\n'.encode()
    assert digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_at_write(bad: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": [bad]})


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_are_refused_at_load(bad: str) -> None:
    with pytest.raises(GoldenError, match=rf"f is damaged \(it holds {bad}\); {ADVICE}"):
        parse_json(f'{{"a": {bad}}}'.encode(), Path("f"), GoldenError, ADVICE)


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 200_000], ids=lambda data: repr(data[:4]))
def test_bytes_that_are_no_json_object_are_refused(data: bytes) -> None:
    with pytest.raises(GoldenError, match=f"f is damaged.*{ADVICE}"):
        parse_json(data, Path("f"), GoldenError, ADVICE)


def test_a_file_that_is_missing_empty_or_a_pointer_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match=f"cannot be read.*{ADVICE}"):
        read_bytes(tmp_path / "none", GoldenError, ADVICE)
    with pytest.raises(GoldenError, match=f"cannot be read.*{ADVICE}"):
        read_bytes(tmp_path, GoldenError, ADVICE)
    (tmp_path / "empty").touch()
    with pytest.raises(GoldenError, match=f"is empty; {ADVICE}"):
        read_bytes(tmp_path / "empty", GoldenError, ADVICE)
    (tmp_path / "pointer").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(GoldenError, match="is a Git LFS pointer; run `git lfs pull`"):
        read_bytes(tmp_path / "pointer", GoldenError, ADVICE)
    (tmp_path / "whole").write_bytes(b"x")
    assert read_bytes(tmp_path / "whole", GoldenError, ADVICE) == b"x"


def test_a_path_is_checked_for_writing_and_left_as_it_was(tmp_path: Path) -> None:
    check_writable(tmp_path / "new")
    (tmp_path / "old").write_text("old")
    check_writable(tmp_path / "old")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"old": "old"}
    with pytest.raises(UsageError, match="is a folder; name a file"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match=r"nowhere does not exist; create it first"):
        check_writable(tmp_path / "nowhere" / "f")
    with pytest.raises(UsageError, match="old does not exist"):
        check_writable(tmp_path / "old" / "f")


def test_a_file_is_replaced_whole_with_ordinary_permissions(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"f": b"old"}


def test_a_folder_appears_when_its_block_ends_and_not_before(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with new_folder(target) as temporary:
        (temporary / "f").write_text("x")
        assert not target.exists()
    assert [p.name for p in target.iterdir()] == ["f"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_folder_whose_block_fails_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "folder") as temporary:
            (temporary / "f").write_text("x")
            raise failure

    with pytest.raises(failure):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(UsageError, match=r"exists already.*choose another folder"), new_folder(tmp_path):
        pass
    with pytest.raises(UsageError, match="nowhere does not exist; create it first"), new_folder(tmp_path / "nowhere" / "a"):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


HALF_WAY = {
    "folder": """
with new_folder(Path("target")) as temporary:
    (temporary / "half").write_bytes(b"half")
    pause()
    (temporary / "rest").write_bytes(b"rest")
""",
    "file": """
os.fsync = lambda descriptor: pause()
write_file(Path("target"), b"whole")
""",
}
"""Programs that stop in the middle of writing `target`, say so, and finish if nothing ends them."""

PREAMBLE = """
import os, sys, time
from pathlib import Path
from oracle.serialization import new_folder, write_file
def pause():
    print("half way", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", HALF_WAY)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, None], ids=["SIGKILL", "SIGINT", "left alone"])
def test_a_process_that_is_killed_while_writing_leaves_no_target(
    tmp_path: Path, kind: str, number: signal.Signals | None
) -> None:
    command = [sys.executable, "-c", PREAMBLE + HALF_WAY[kind]]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "half way\n"
        assert not (tmp_path / "target").exists()
        assert len(list(tmp_path.iterdir())) == 1  # the hidden half
        if number is not None:
            process.send_signal(number)
            process.wait(20)
    names = [p.name for p in tmp_path.iterdir()]
    if number is None:
        assert names == ["target"]
    else:
        assert process.returncode != 0
        assert "target" not in names
    if number == signal.SIGINT:
        assert names == []


def limited(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program whose files may hold 1,000 bytes: the kernel then refuses to write, as a full disk does."""
    limits = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limits += "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    command = [sys.executable, "-B", "-c", PREAMBLE + limits + program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "program",
    [
        'write_file(Path("target"), bytes(2000))',
        'with new_folder(Path("target")) as temporary:\n    (temporary / "f").write_bytes(bytes(2000))',
    ],
    ids=["file", "folder"],
)
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_nothing(tmp_path: Path, program: str) -> None:
    done = limited(program, tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "oracle.errors.UsageError: target cannot be written (File too large); make room, or choose another path"
    )
    assert list(tmp_path.iterdir()) == []
    assert limited(program.replace("2000", "900"), tmp_path).returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["target"]


def test_a_name_too_long_for_a_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written \(File name too long\); make room, or choose another path"):
        write_file(tmp_path / ("x" * 250), b"data")
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_is_not_the_file_systems_stays_what_it_is(tmp_path: Path) -> None:
    def work() -> None:
        with new_folder(tmp_path / "folder"):
            (tmp_path / "nowhere" / "f").read_bytes()

    with pytest.raises(FileNotFoundError):
        work()
    assert list(tmp_path.iterdir()) == []
