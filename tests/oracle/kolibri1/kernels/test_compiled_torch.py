"""Compiled kernels are kept between processes, and made anew when any source they were built from changes."""

from __future__ import annotations

from pathlib import Path

from edited_package import EditedPackage

NORM = """
import numpy as np
from oracle.kolibri1.kernels import pointwise
x = np.random.default_rng(0).normal(0, 1, (1, 64)).astype(np.float32)
out = np.empty_like(x)
pointwise.rms_norm(x, np.ones(64, np.float32), np.float32(1e-6), out)
hits = sum(pointwise.rms_norm.stats.cache_hits.values())
print(pointwise.__file__, out.tobytes().hex(), hits)
"""

TILES = """
import numpy as np
from oracle.kolibri1.kernels.products import multiply_panel
rng = np.random.default_rng(0)
w, x = (rng.normal(0, 1, (n, 256)).astype(np.float32) for n in (4, 3))
def product(tokens, rows):
    out = np.empty((tokens, rows), np.float32)
    multiply_panel(w.ctypes.data, 1024, rows, 8, x.ctypes.data, 1024, tokens, out.ctypes.data, 4 * rows)
    return out
print(np.array_equal(product(3, 4)[:1, :1], product(1, 1)), np.abs(product(3, 4) - x @ w.T).max() < 1e-4)
"""


def test_a_kernel_is_kept_until_a_source_of_its_package_changes(tmp_path: Path) -> None:
    """`vector.py` is not the file that holds the kernel, which is all that numba itself would look at."""
    package = EditedPackage(tmp_path)
    file, first, hits = package.run(NORM).split()
    assert Path(file).is_relative_to(tmp_path)
    assert hits == "0"
    _, second, hits = package.run(NORM).split()
    assert (second, hits) == (first, "1")
    package.edit("kolibri1/kernels/vector.py", "ir.Constant(_VECTOR, [0.0] * LANES)", "ir.Constant(_VECTOR, [0.5] * LANES)")
    _, third, hits = package.run(NORM).split()
    assert third != first
    assert hits == "0"


def test_a_tile_that_adds_in_another_order_is_told_from_the_documented_one(tmp_path: Path) -> None:
    """The plant: tiles of several products add the lanes of both vectors before the vectors."""
    package = EditedPackage(tmp_path)
    assert package.run(TILES) == "True True"
    package.edit(
        "kolibri1/kernels/vector.py",
        "total = _lane_sum(builder, builder.fadd(sums[k], sums[rows * tokens + k]))",
        "total = (builder.fadd(_lane_sum(builder, sums[k]), _lane_sum(builder, sums[rows * tokens + k])) if rows > 1 else "
        "_lane_sum(builder, builder.fadd(sums[k], sums[rows * tokens + k])))",
    )
    assert package.run(TILES) == "False True"
