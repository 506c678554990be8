"""Arrays on disk as safetensors: written whole, read as views of the mapped file, so that memory does not grow with them.

The same arrays give the same bytes: no metadata, no randomness. A golden of 65,536 positions and 50 layers takes 0.7 GB; a
judgement reads it prompt by prompt and keeps none of it (`mapped_pages`).
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as save_safetensors

from oracle.errors import KolibriError
from oracle.mapped_pages import give_back, parts
from oracle.serialization import check_content, digest_of_parts

_DTYPES = {"I32": "<i4", "I64": "<i8", "F32": "<f4", "F64": "<f8", "U8": "|u1", "BOOL": "|b1"}
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
_CHECKED_AT_ONCE = 1 << 22
"""Values checked at once: what is checked needs no copy of a whole array."""


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The arrays as one safetensors file, without metadata: the same arrays give the same bytes.

    Raises:
        ValueError: an array holds NaN or infinity.
    """
    for name, array in arrays.items():
        if not _finite(array):
            raise ValueError(f"array {name!r} holds NaN or infinity")
    return save_safetensors({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def open_arrays(
    path: Path, error: type[KolibriError], advice: str, expected_digest: tuple[str, str] | None = None
) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, read-only views of its bytes.

    Args:
        error, advice: what is raised for a file that cannot be used, and what it tells the user to do.
        expected_digest: the digest that the whole file must have, and the name of the document that says so.

    Raises:
        error: the file is missing, empty, a Git LFS pointer, damaged or another one, or it holds NaN or infinity.
    """
    content = _mapped(path, error, advice)
    check_content(path, content[:64], error, advice)
    if expected_digest is not None:
        wanted, document = expected_digest
        if digest_of_parts(parts(content)) != wanted:
            raise error(f"{path} does not have the digest that {document} gives: its bytes changed; {advice}")
    try:
        arrays = _views(content)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise error(f"{path} is damaged ({problem}); {advice}") from None
    for name, array in arrays.items():
        if not _finite(array):
            raise error(f"{path}: array {name!r} holds NaN or infinity; {advice}")
    return arrays


def _mapped(path: Path, error: type[KolibriError], advice: str) -> memoryview:
    """The whole file, mapped: only what is looked at comes into memory, and the kernel may take it back."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise error(f"{path} cannot be read ({why}); {advice}") from None


def _views(content: memoryview) -> dict[str, np.ndarray]:
    """The arrays by name, each a view; entries must follow one another without gap or overlap, to the file's end."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(_MAX_HEADER_BYTES, len(content) - 8):
        raise ValueError(f"its header would end behind its {len(content)} bytes")
    header: dict[str, Any] = json.loads(bytes(content[8 : 8 + length]))
    header.pop("__metadata__", None)
    data = content[8 + length :]
    cursor, views = 0, dict[str, np.ndarray]()
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        if not all(type(size) is int and size >= 0 for size in (start, end, *shape)):
            raise ValueError(f"array {name!r} has sizes that are no whole numbers")
        if start != cursor or end - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"array {name!r} lies at bytes {start} to {end}, expected {cursor} on for {list(shape)}")
        if end > len(data):
            raise ValueError(f"it ends before array {name!r} does")
        views[name] = np.frombuffer(data[start:end], dtype=dtype).reshape(shape)
        cursor = end
    if cursor != len(data):
        raise ValueError(f"{len(data) - cursor} bytes follow its last array")
    return {name: views[name] for name in sorted(views)}


def _finite(array: np.ndarray) -> bool:
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHECKED_AT_ONCE):
        part = flat[start : start + _CHECKED_AT_ONCE]
        if not np.isfinite(part).all():
            return False
        give_back([part])
    return True
