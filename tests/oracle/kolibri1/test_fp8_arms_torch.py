"""The w8a8 and fp8-kv arms: fp8 operands where the facts (section 4) put them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from geometries import WIDE

from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.fp8 import to_e4m3fn
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.reference import Forward, Reference
from oracle.kolibri1.synthetic import write_synthetic
from oracle.kolibri1.torch_arithmetic import TorchArithmetic
from oracle.kolibri1.weights import round_bf16

IDS = np.random.default_rng(11).integers(0, 96, 40).tolist()
DOWN = "model.layers.1.mlp.experts.3.down_proj.weight"  # 256 x 256 in 2 x 2 blocks of 128


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.open(write_synthetic(tmp_path_factory.mktemp("wide") / "checkpoint", WIDE))


def linear_by_hand(checkpoint: Checkpoint, x: np.ndarray, name: str, group: int = 128) -> np.ndarray:
    """vLLM's W8A8 rule in float64: each token's group of inputs in e4m3, partial products times both scales, summed."""
    shape, grid = checkpoint.spec(name).shape, checkpoint.spec(name + "_scale_inv").shape
    codes = checkpoint.raw(name).view(ml_dtypes.float8_e4m3fn).astype(np.float64).reshape(shape)
    scales = checkpoint.raw(name + "_scale_inv").view("<f4").astype(np.float64).reshape(grid)
    out = np.zeros((len(x), shape[0]))
    for token in range(len(x)):
        for start in range(0, shape[1], group):
            part = x[token, start : start + group]
            scale = np.float32(max(np.abs(part).max(), 1e-10)) / np.float32(448)
            q = np.clip(part / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
            for row in range(shape[0]):
                weight_scale = scales[row // 128, start // 128]
                out[token, row] += codes[row, start : start + group] @ q * (float(scale) * weight_scale)
    return out


def test_a_w8a8_linear_is_vllms_rule(wide: Checkpoint) -> None:
    m = TorchArithmetic(wide, ARMS["w8a8"])
    x = np.random.default_rng(1).normal(0, 1, (3, 256)).astype(np.float32)
    x[:, 128:] *= 30  # the groups need scales of their own
    x = round_bf16(torch.from_numpy(x)).numpy()
    expected = linear_by_hand(wide, x, DOWN)
    largest = np.abs(expected).max()
    got = m._w8a8(torch.from_numpy(x), DOWN)
    assert np.abs(got.numpy() - expected).max() < 1e-6 * largest
    assert torch.equal(m.linear(torch.from_numpy(x), DOWN), round_bf16(got))
    # What it is not: weight-only, or groups of another width.
    weight_only = TorchArithmetic(wide, ARMS["float64"]).linear(torch.from_numpy(x).double(), DOWN).numpy()
    assert np.abs(weight_only - expected).max() > 1e-3 * largest
    finer = linear_by_hand(wide, x, DOWN, group=64)
    assert np.abs(finer - expected).max() > 1e-3 * largest


def test_every_fp8_weight_and_nothing_else_meets_quantized_activations(wide: Checkpoint) -> None:
    reference = Reference(wide, ARMS["w8a8"])
    m = reference.m
    assert isinstance(m, TorchArithmetic)
    seen: set[str] = set()
    honest = m._w8a8

    def note(x: torch.Tensor, name: str) -> torch.Tensor:
        seen.add(name)
        return honest(x, name)

    m._w8a8 = note
    got = reference.forward(IDS, reference.new_cache())
    used = {f"model.layers.{layer}.mlp.experts.{e}." for layer in range(2) for e in got.expert_ids[:, layer].unique().tolist()}
    names = [spec.name for spec in inventory(wide.config) if spec.dtype == "F8_E4M3"]
    assert seen == {n for n in names if ".experts." not in n or any(n.startswith(prefix) for prefix in used)}


def whole(checkpoint: Checkpoint, arm: str) -> Forward:
    reference = Reference(checkpoint, ARMS[arm])
    return reference.forward(IDS, reference.new_cache())


def test_the_w8a8_arm_is_off_by_quantization_noise_and_not_by_more(wide: Checkpoint) -> None:
    truth, bf16, w8a8 = (whole(wide, arm).logits.double() for arm in ("float32", "bfloat16", "w8a8"))
    noise = {name: float((logits - truth).norm() / truth.norm()) for name, logits in (("bf16", bf16), ("w8a8", w8a8))}
    assert 2 * noise["bf16"] < noise["w8a8"] < 0.5


@pytest.mark.parametrize("sizes", [[40], [1] * 40], ids=["prefill", "decode"])
def test_the_fp8_kv_arm_keeps_keys_and_values_as_e4m3(tiny: Checkpoint, sizes: list[int]) -> None:
    kept, rounded = Reference(tiny, ARMS["bfloat16"]), Reference(tiny, ARMS["fp8-kv"])
    kept_cache, rounded_cache, start = kept.new_cache(), rounded.new_cache(), 0
    for size in sizes:
        kept.forward(IDS[start : start + size], kept_cache)
        rounded.forward(IDS[start : start + size], rounded_cache)
        start += size
    for layer in rounded_cache.layers:
        for held in (layer.keys, layer.values):
            assert torch.equal(to_e4m3fn(held), held)
    # The first layer sees the same inputs: its keys, after norm and RoPE, and its values are the bf16 ones rounded once.
    first, plain = rounded_cache.layers[0], kept_cache.layers[0]
    for got, exact in ((first.keys, plain.keys), (first.values, plain.values)):
        assert torch.equal(got, to_e4m3fn(exact))
        assert not torch.equal(got, exact)


def test_a_token_attends_to_its_own_rounded_key_and_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token of one layer: what attention mixes is its value alone, and that comes from the cache."""
    one_layer = WIDE | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    checkpoint = Checkpoint.open(write_synthetic(tmp_path / "one", one_layer, shards=1))
    reference = Reference(checkpoint, ARMS["fp8-kv"])
    mixed: list[torch.Tensor] = []
    honest = reference.m.attend

    def attend(*args: torch.Tensor) -> torch.Tensor:
        mixed.append(honest(*args))
        return mixed[-1]

    monkeypatch.setattr(reference.m, "attend", attend)
    cache = reference.new_cache()
    reference.forward([7], cache)
    assert torch.equal(mixed[0].reshape(2, 12, 128), cache.layers[0].values.expand(2, 12, 128))


def test_values_beyond_448_saturate_in_the_cache(tiny: Checkpoint) -> None:
    m = Reference(tiny, ARMS["fp8-kv"]).m
    assert m.cached(torch.tensor([500.0, -1e6, 1.06])).tolist() == [448.0, -448.0, 1.0]
    assert Reference(tiny).m.cached(torch.tensor([500.0])).tolist() == [500.0]
