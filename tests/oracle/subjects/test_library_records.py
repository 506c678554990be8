"""Records of native libraries, from the modification times of real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oracle.errors import SubjectError
from oracle.subjects.libraries import record_library
from oracle.subjects.protocol import LibraryRecord


def touched(path: Path, at: int) -> Path:
    path.write_text(path.name)
    os.utime(path, ns=(at, at))
    return path


def test_a_library_is_stale_from_the_first_nanosecond_after_it_was_built(tmp_path: Path) -> None:
    built = 1_700_000_000_000_000_000
    library = touched(tmp_path / "libnorm.so", built)
    old, new = touched(tmp_path / "old.cpp", built - 10), touched(tmp_path / "new.cpp", built)
    record = record_library(library, [new, old])
    assert record == LibraryRecord("libnorm.so", built, built)
    assert not record.stale
    touched(new, built + 1000)
    assert record_library(library, [old, new]).stale
    assert record_library(library, [new, old]).newest_source == built + 1000


def test_what_cannot_be_told_is_an_error_of_one_line(tmp_path: Path) -> None:
    library = touched(tmp_path / "libnorm.so", 1)
    for sources in ([], [tmp_path / "gone.cpp"]):
        with pytest.raises(SubjectError, match=r"libnorm\.so|gone\.cpp") as caught:
            record_library(library, sources)
        assert "\n" not in str(caught.value)
    with pytest.raises(SubjectError, match="gone"):
        record_library(tmp_path / "gone.so", [library])
