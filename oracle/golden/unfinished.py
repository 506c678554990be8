"""The folder in which an unfinished golden grows: what each prompt gave, so that a killed `golden make` can go on.

It holds no `golden.json`, so nothing can take it for a golden. It belongs to one job: the same recipe, checkpoint, tokenized
prompts and environment; another job is refused. Every file is whole or absent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from oracle.errors import GoldenError, UsageError
from oracle.serialization import canonical_json, new_folder, write_file
from oracle.stored_arrays import open_arrays, pack_arrays

SUFFIX = ".unfinished"
_JOB = "job.json"
_ADVICE = "remove it and run `golden make` again"


class Unfinished:
    """Arrays by name, kept in a folder or, where there is none, in memory.

    Attributes:
        found: how many results a killed run left.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._memory: dict[str, dict[str, np.ndarray]] = {}
        self.found = 0 if folder is None else len(list(folder.glob("*.safetensors")))

    def get(self, name: str) -> dict[str, np.ndarray] | None:
        """What was put under that name, in this run or in one that was killed; None where nothing was.

        Raises:
            GoldenError: the file is damaged.
        """
        if self._folder is None:
            return self._memory.get(name)
        path = self._folder / f"{name}.safetensors"
        if not path.exists():
            return None
        return open_arrays(path, GoldenError, _ADVICE)

    def put(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep `arrays`, whole, before the next step begins.

        Raises:
            ValueError: an array holds NaN or infinity.
        """
        if self._folder is None:
            self._memory[name] = dict(arrays)
        else:
            write_file(self._folder / f"{name}.safetensors", pack_arrays(arrays))


@contextlib.contextmanager
def unfinished(golden: Path, job: Mapping[str, str]) -> Iterator[Unfinished]:
    """The unfinished folder of `golden`, locked for this process; it goes away when the block ends well.

    Args:
        golden: the folder to make; the unfinished one lies beside it.
        job: what decides every byte; a folder of another job is refused.

    Raises:
        UsageError: another process works there, or it belongs to another job.
    """
    folder = golden.with_name(golden.name + SUFFIX)
    content = canonical_json(job)
    with _locked(folder):
        if folder.exists():
            found = (folder / _JOB).read_bytes() if (folder / _JOB).is_file() else b""
            if found != content:
                raise UsageError(
                    f"{folder} holds the unfinished work of another recipe, checkpoint, tokenizer or environment; "
                    "remove it, or choose another --golden"
                )
        else:
            with new_folder(folder) as temporary:  # never there without its job, whenever it is killed
                (temporary / _JOB).write_bytes(content)
        try:
            yield Unfinished(folder)
        except BaseException:
            if set(os.listdir(folder)) == {_JOB}:  # nothing to go on from
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"{folder} is in the hands of another `golden make`; wait for it, or choose another --golden"
        ) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while the lock is held, so that nobody waits on a removed file for long
        lock.release()
