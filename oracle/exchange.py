"""Replace a folder by a new one, whole: whatever ends the process, the old or the new folder is in place.

Linux exchanges two folders in one step (`renameat2` with RENAME_EXCHANGE). Where the file system cannot, two renames do it,
with the old folder under `.NAME.former` in between; killed right there, the next replacement puts it back first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from oracle.errors import UsageError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Hold `path` against other replacements, and finish what a killed one left undone.

    Raises:
        UsageError: another process is replacing it, or its parent cannot be written.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path} is not there: its folder does not exist; name the golden to replace")
    lock = FileLock(path.with_name(f".{path.name}.replace.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"{path} is being replaced by another process; wait for it") from None
    except OSError as problem:
        raise UsageError(f"{path} cannot be replaced ({problem.strerror}); choose a folder that can be written") from None
    try:
        _recover(path)
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is held, so that nobody waits on a removed file for long
        lock.release()


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends well, and vanishes otherwise.

    To be used within `locked_folder`.

    Raises:
        UsageError: a file or folder cannot be written or renamed.
    """
    try:
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path)))
    except OSError as problem:
        raise UsageError(f"{path} cannot be replaced ({problem.strerror}); choose a folder that can be written") from None
    try:
        yield temporary
        os.chmod(temporary, path.stat().st_mode & 0o777)
        _sync(temporary)
        replace_folder(path, temporary)
        _sync(path.parent)
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be replaced ({problem.strerror}) and is as it was; make room, or choose another place"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # the old folder, or the new one that is not wanted


def replace_folder(path: Path, other: Path) -> None:
    """`other` takes the place of `path`, and what was there goes to `other`.

    Raises:
        OSError: neither way of renaming works here; nothing was changed.
    """
    if _exchange(path, other):
        return
    former = _former(path)
    os.rename(path, former)
    try:
        os.rename(other, path)
    except OSError:
        os.rename(former, path)
        raise
    os.rename(former, other)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange both names in one step; False where this system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNABLE:
        return False
    raise OSError(number, os.strerror(number), str(one))


def _former(path: Path) -> Path:
    return path.with_name(f".{path.name}.former")


def _prefix(path: Path) -> str:
    return f".{path.name}.replacement."


def _recover(path: Path) -> None:
    """After a kill: the old folder back where the two renames left a gap, and what the killed process left out of the way.

    Only who holds the lock has such folders, so that those found belong to nobody.
    """
    former = _former(path)
    if former.is_dir() and not os.path.lexists(path):
        os.rename(former, path)
    for left in (former, *(path.with_name(n) for n in os.listdir(path.parent) if n.startswith(_prefix(path)))):
        shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
