"""fp8 weights: every code, and block scales that multiply in the right places."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.fp8 import E4M3FN, dequantize
from oracle.kolibri1.weights import Weights, round_bf16

CODES = np.arange(256, dtype=np.uint8)
DOWN = "model.layers.1.mlp.experts.3.down_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"  # 192 x 64 in 6 x 2 blocks


def test_every_code_has_the_value_that_torch_and_ml_dtypes_give_it() -> None:
    for other in (
        torch.from_numpy(CODES).view(torch.float8_e4m3fn).float().numpy(),
        CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32),
    ):
        assert np.array_equal(E4M3FN.numpy(), other, equal_nan=True)
        finite = ~np.isnan(other)
        assert np.array_equal(np.signbit(E4M3FN.numpy())[finite], np.signbit(other)[finite])
    assert np.isnan(E4M3FN.numpy()).sum() == 2
    assert np.nanmax(E4M3FN.numpy()) == 448.0
    assert E4M3FN[1] == 2.0**-9


@given(
    blocks=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_element_is_multiplied_by_its_own_blocks_scale(blocks: tuple[int, int], grid: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = blocks[0] * grid[0], blocks[1] * grid[1]
    codes = rng.integers(0, 0x7F, (rows, columns), dtype=np.uint8)
    scale = rng.uniform(1e-4, 3, grid).astype(np.float32)
    got = dequantize(torch.from_numpy(codes), torch.from_numpy(scale)).numpy()
    assert got.dtype == np.float32
    for o in range(rows):
        for i in range(columns):
            value = np.float32(codes[o, i : i + 1].view(ml_dtypes.float8_e4m3fn)[0])
            assert got[o, i] == value * scale[o // blocks[0], i // blocks[1]]


def test_a_scale_multiplies_despite_its_name() -> None:
    two = torch.full((1, 1), 0x40, dtype=torch.uint8)
    assert dequantize(two, torch.tensor([[0.25]])).tolist() == [[0.5]]


def test_the_grid_lies_the_way_the_weight_lies() -> None:
    codes = torch.full((4, 2), 0x38, dtype=torch.uint8)  # ones
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert dequantize(codes, scale).tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert dequantize(codes, scale.T).tolist() != dequantize(codes, scale).tolist()


@pytest.mark.parametrize("grid", [(3, 1), (1, 3), (8, 1), (2, 4)])
def test_a_grid_that_does_not_divide_the_weight_is_refused(grid: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"a {grid[0]}x{grid[1]} grid of scales does not divide a 4x2 weight"):
        dequantize(torch.zeros((4, 2), dtype=torch.uint8), torch.ones(grid))


def test_a_transposed_rectangular_grid_cannot_pass_unseen() -> None:
    codes, scale = torch.zeros((4, 6), dtype=torch.uint8), torch.ones((4, 3))
    assert dequantize(codes, scale).shape == (4, 6)
    with pytest.raises(ValueError, match="does not divide"):
        dequantize(codes, scale.T)


@given(st.integers(0, 2**32 - 1))
def test_rounding_to_bf16_is_to_nearest_even(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0, 10, 64).astype(np.float32)
    rounded = round_bf16(torch.from_numpy(values))
    assert rounded.dtype == torch.float32
    assert np.array_equal(rounded.numpy(), values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_a_tie_rounds_to_the_even_neighbour() -> None:
    ties = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20])
    assert round_bf16(ties).tolist() == [1.0, 1 + 2.0**-6, 1 + 2.0**-7]


def by_hand(tiny: Checkpoint, name: str) -> np.ndarray:
    """The weight in float32 from raw bytes, block by block."""
    shape, grid = tiny.spec(name).shape, tiny.spec(name + "_scale_inv").shape
    codes = tiny.raw(name).view(ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(shape)
    scale = tiny.raw(name + "_scale_inv").view("<f4").reshape(grid)
    return codes * np.kron(scale, np.ones((32, 32), np.float32))


@pytest.mark.parametrize("name", [DOWN, QUERY])
def test_a_checkpoints_weight_is_its_codes_times_its_scales(tiny: Checkpoint, name: str) -> None:
    expected = by_hand(tiny, name)
    assert np.array_equal(Weights(tiny, ARMS["float32"])[name].numpy(), expected)
    assert np.array_equal(Weights(tiny, ARMS["float64"])[name].numpy(), expected.astype(np.float64))
    rounded = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(Weights(tiny, ARMS["bfloat16"])[name].numpy(), rounded)
    assert not np.array_equal(rounded, expected)


def test_an_unquantized_tensor_is_its_bf16_values(tiny: Checkpoint) -> None:
    name = "model.layers.2.mlp.gate.weight"
    expected = tiny.raw(name).view(ml_dtypes.bfloat16).astype(np.float32).reshape(8, 64)
    for arm in ("float32", "bfloat16"):
        weights = Weights(tiny, ARMS[arm])
        assert np.array_equal(weights[name].numpy(), expected)
        assert weights[name] is weights[name]
