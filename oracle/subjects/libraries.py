"""For subjects with native code: what a library was built from, and when."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from oracle.errors import SubjectError
from oracle.subjects.protocol import LibraryRecord


def record_library(library: Path, sources: Iterable[Path]) -> LibraryRecord:
    """The record of a built library, from modification times: it is stale where any source changed after it was built.

    Raises:
        SubjectError: the library or a source is missing, or there are no sources to compare with.
    """
    try:
        newest = [path.stat().st_mtime_ns for path in sources]
        built = library.stat().st_mtime_ns
    except OSError as problem:
        raise SubjectError(f"{problem.filename} cannot be read ({problem.strerror}); build {library.name} again") from None
    if not newest:
        raise SubjectError(f"library {library.name} comes without sources; name the files that it is built from")
    return LibraryRecord(library.name, built, max(newest))
