"""How this project writes what others will compare: one canonical JSON, digests, and files that are whole or absent.

Canonical JSON: UTF-8, sorted keys, no spaces, one final newline, no NaN or infinity. A file or folder is written under a
temporary name beside its target and renamed, so that an interrupted run leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from oracle.errors import KolibriError, UsageError

D = TypeVar("D", bound="Sealed")

_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENAMETOOLONG)
"""What a file system answers where nothing is wrong with the program."""

_LFS_POINTER = b"version https://git-lfs"


def canonical_json(value: Any) -> bytes:
    """The canonical serialization of a JSON value.

    Raises:
        ValueError: it holds NaN or infinity.
        TypeError: it is not JSON.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def digest(data: bytes | memoryview) -> str:
    """`sha256:` and 64 hex digits."""
    return digest_of_parts([data])


def digest_of_parts(parts: Iterable[bytes | memoryview]) -> str:
    """The `digest` of the parts joined."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return f"sha256:{whole.hexdigest()}"


class Sealed(BaseModel):
    """A document that carries the digest of all its other fields, so that no edit of it goes unseen."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    digest: str = ""

    def content_digest(self) -> str:
        """The digest that the other fields have now."""
        content = self.model_dump(mode="json", by_alias=True)
        del content["digest"]
        return digest(canonical_json(content))

    def sealed(self: D) -> D:
        """The same document with its digest."""
        return self.model_copy(update={"digest": self.content_digest()})

    def to_json(self) -> bytes:
        """Its canonical JSON."""
        return canonical_json(self.model_dump(mode="json", by_alias=True))


def read_bytes(path: Path, error: type[KolibriError], advice: str) -> bytes:
    """The whole file; `error` with `advice` where it is missing, empty, unreadable or a Git LFS pointer."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise error(f"{path} cannot be read ({problem.strerror}); {advice}") from None
    check_content(path, data, error, advice)
    return data


def check_content(path: Path, start: bytes | memoryview, error: type[KolibriError], advice: str) -> None:
    """Raise `error` where the file's first bytes say that it is none: it is empty, or a Git LFS pointer."""
    if not start:
        raise error(f"{path} is empty; {advice}")
    if bytes(start[: len(_LFS_POINTER)]) == _LFS_POINTER:
        raise error(f"{path} is a Git LFS pointer; run `git lfs pull` in its folder")


def parse_json(data: bytes, path: Path, error: type[KolibriError], advice: str) -> dict[str, Any]:
    """The JSON object in `data`; `error` where it is no object or holds NaN or infinity."""

    def refuse(constant: str) -> float:
        raise ValueError(f"it holds {constant}")

    try:
        value = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as problem:
        raise error(f"{path} is damaged ({problem}); {advice}") from None
    if not isinstance(value, dict):
        raise error(f"{path} is damaged (not a JSON object); {advice}")
    return value


def check_writable(path: Path) -> None:
    """Raise `UsageError` unless `path` can be created or replaced: checked before anything costly runs."""
    parent = path.absolute().parent
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file")
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            raise UsageError(f"{path} is no regular file and would be replaced by one; name another file")
        if not parent.is_dir():
            raise UsageError(f"{path} cannot be written: folder {parent} does not exist; create it first")
        if not os.access(parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise UsageError(f"{path} cannot be written: permission denied; choose another path")
        descriptor, probe = tempfile.mkstemp(dir=parent, prefix=f".{path.name}.")
    except OSError as problem:
        raise UsageError(f"{path} cannot be written ({problem.strerror}); choose another path") from None
    os.close(descriptor)
    os.unlink(probe)


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to a temporary name beside `path`, then rename: `path` is the old file or the whole new one.

    Raises:
        UsageError: the disk is full, the name too long, or whatever else the file system refuses.
    """
    try:
        _write_file(path, data)
    except OSError as problem:
        raise UsageError(f"{path} cannot be written ({problem.strerror}); make room, or choose another path") from None


def _write_file(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def check_outside(path: Path, *folders: Path | None) -> None:
    """Raise `UsageError` if `path` lies in one of `folders`: a result must not overwrite what it was computed from."""
    for folder in folders:
        if folder is not None and path.absolute().resolve().is_relative_to(folder.absolute().resolve()):
            raise UsageError(f"{path} lies in {folder}, which is read; write results elsewhere")


def check_new_folder(path: Path) -> None:
    """Raise `UsageError` unless a new folder `path` can be made: checked before anything costly runs."""
    parent = path.absolute().parent
    try:
        if os.path.lexists(path):
            raise UsageError(f"{path} exists already and is never overwritten; choose another folder or move it away")
        if not parent.is_dir():
            raise UsageError(f"{path} cannot be written: folder {parent} does not exist; create it first")
        if not os.access(parent, os.W_OK):
            raise UsageError(f"{path} cannot be written: permission denied in {parent}; choose another folder")
    except OSError as problem:
        raise UsageError(f"{path} cannot be written ({problem.strerror}); choose another folder") from None


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well, and vanishes otherwise.

    Raises:
        UsageError: `path` exists already, its parent does not, or the file system takes no more.
    """
    check_new_folder(path)
    parent = path.absolute().parent
    try:
        temporary = Path(tempfile.mkdtemp(dir=parent, prefix=f".{path.name}."))
    except OSError as problem:
        raise UsageError(f"{path} cannot be written ({problem.strerror}); choose another path") from None
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        os.rename(temporary, path)
    except BaseException as problem:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(problem, OSError) and problem.errno in _REFUSED:
            raise UsageError(f"{path} cannot be written ({problem.strerror}); make room, or choose another path") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
