"""The sketch's signs are pinned for ever, and its distances are those of the vectors."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.golden.sketch import sketch, sketch_signs

MASK = (1 << 64) - 1


def splitmix64(counter: int) -> int:
    """The generator's finalizer in whole numbers, as its authors give it; seeded with the letters KOLIBRI."""
    z = (int.from_bytes(b"KOLIBRI", "big") + counter * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_signs_are_pinned() -> None:
    signs = sketch_signs(256)
    assert signs.shape == (32, 256)
    assert "".join("+" if s > 0 else "-" for s in signs[0, :32]) == "+----+--+----+---+-++--+-++++--+"
    assert "".join("+" if s > 0 else "-" for s in signs[31, -32:]) == "++---++---+--++---+-++-++++-+---"
    assert (
        hashlib.sha256((signs > 0).astype(np.uint8).tobytes()).hexdigest()
        == "724e436f4f2b0105503d9dec57ec36358e0c36ccb7188ddb527268fee25785b7"
    )


@pytest.mark.parametrize("hidden_size", [1, 7, 64])
def test_the_signs_are_the_top_bits_of_splitmix64(hidden_size: int) -> None:
    expected = [-1.0 if splitmix64(i + 1) >> 63 else 1.0 for i in range(32 * hidden_size)]
    assert sketch_signs(hidden_size).ravel().tolist() == expected


def test_the_shared_signs_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        sketch_signs(64)[0, 0] = 1.0


def test_a_sketch_is_float32_and_keeps_the_leading_axes() -> None:
    hidden = np.random.default_rng(0).normal(size=(2, 3, 64))
    sketched = sketch(hidden)
    assert sketched.shape == (2, 3, 32)
    assert sketched.dtype == np.float32
    assert np.allclose(sketched[1, 2], sketch_signs(64) @ hidden[1, 2], rtol=1e-6)


def test_sums_are_kept_in_float64() -> None:
    hidden = np.zeros(64, np.float32)
    hidden[:2] = [2.0**24, 1.0]
    assert abs(abs(sketch(hidden)) - (2.0**24 + sketch_signs(64)[:, 0] * sketch_signs(64)[:, 1])).max() <= 1


@given(st.integers(0, 2**32 - 1), st.floats(1e-4, 0.5))
def test_relative_distance_survives_the_sketch_in_the_median(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(64, 256))
    other = hidden + size * rng.normal(size=hidden.shape)
    true = np.median(np.linalg.norm(other - hidden, axis=1) / np.linalg.norm(hidden, axis=1))
    a, b = sketch(hidden).astype(np.float64), sketch(other).astype(np.float64)
    seen = np.median(np.linalg.norm(b - a, axis=1) / np.linalg.norm(a, axis=1))
    assert 0.8 < seen / true < 1.25


@given(st.floats(0.5, 2.0))
def test_a_scaled_vector_has_a_scaled_sketch(factor: float) -> None:
    hidden = np.random.default_rng(3).normal(size=(5, 64))
    assert np.allclose(sketch(factor * hidden), factor * sketch(hidden).astype(np.float64), rtol=1e-6)
