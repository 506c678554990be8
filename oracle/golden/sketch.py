"""A 32-number sketch of a hidden vector: its projection on 32 fixed rows of +1 and -1.

Small enough to store for every position and layer, and good enough to say how far a residual stream is off and in which
direction: a projection on random signs keeps relative distances to about 1 / sqrt(32) per vector, and much better in the
median over positions (Johnson-Lindenstrauss; Achlioptas 2003 for signs).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

SKETCH_ROWS = 32
SKETCH_SEED = 0x4B4F4C49425249  # "KOLIBRI"
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


@lru_cache(maxsize=8)
def sketch_signs(hidden_size: int) -> npt.NDArray[np.float64]:
    """The +-1 matrix, float64 [32, hidden_size]: bit 63 of splitmix64 at counter `row * hidden_size + column + 1`.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014 (splitmix64's finalizer).
    """
    counter = np.arange(1, SKETCH_ROWS * hidden_size + 1, dtype=np.uint64)
    z = np.uint64(SKETCH_SEED) + counter * np.uint64(_GOLDEN_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    signs = np.where(z >> np.uint64(63), -1.0, 1.0).reshape(SKETCH_ROWS, hidden_size)
    signs.setflags(write=False)
    return signs


def sketch(hidden: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Project `hidden` [..., H] to float32 [..., 32], summed in float64."""
    values = np.asarray(hidden, dtype=np.float64)
    return (values @ sketch_signs(values.shape[-1]).T).astype(np.float32)
