"""How the kernels are compiled: without the interpreter's lock, in order, and cached on disk by all of their sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Threads that wait by spinning take the core from the thread they wait for wherever cores are shared: a token then takes
# 5 to 10 times as long. OpenMP reads this when numba first starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from numba import njit
from numba.core.caching import FunctionCache

SOURCES = hashlib.sha256(
    b"".join(path.name.encode() + path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()
"""Digest of this package's files. numba itself looks only at the file that holds a kernel, not at what it is built from."""


class _SourcesCache(FunctionCache):
    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), SOURCES)


def kernel(*, parallel: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function: strict IEEE arithmetic (no reassociation, no contraction), lock released, cached on disk.

    Where no folder for the cache can be written, it is compiled anew in each process.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher: Any = njit(nogil=True, parallel=parallel, fastmath=False)(function)
        try:
            dispatcher._cache = _SourcesCache(function)
        except RuntimeError:  # numba's word for: no folder can be written
            return dispatcher
        return dispatcher

    return decorate
