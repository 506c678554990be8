"""Random checkpoints in the release's exact on-disk format, at any geometry, in bounded memory. Needs no torch.

For unit tests and benchmarks: every tensor has its own seeded stream, so every expert's bytes differ, every norm weight
is distinct, and router biases are non-zero. Tensors go to their shard a chunk at a time, so that the real geometry is
written at the disk's speed in a few megabytes of memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from pathlib import Path
from statistics import NormalDist
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import TensorSpec, inventory
from oracle.kolibri1.release import RELEASE_CONFIG
from oracle.kolibri1.scan import INDEX_FILE

_ITEM_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1}
_CHUNK_BYTES = 1 << 20  # even, so that no pair of fp8 codes and no bf16 value is cut
_FP8_STD = 120.0  # of the codes' values: a normal weight whose largest of a 128x128 block is near e4m3's 448

Table = npt.NDArray[np.uint16]
Progress = Callable[[int, int], None]


def geometry(
    *, layer_types: Sequence[str] | None = None, weight_block_size: tuple[int, int] | None = None, **overrides: Any
) -> dict[str, Any]:
    """The release's `config.json` with other values; what follows from a value follows here.

    Args:
        layer_types: one entry a layer; sets `num_hidden_layers`. When None, the release's pattern at that many layers.
        weight_block_size: of the fp8 scales, rows and columns; the release's 128x128 when None.
        overrides: any key of `RELEASE_CONFIG`. With a smaller `vocab_size`, end-of-sequence and padding become its
            last ids unless given.

    Raises:
        UsageError: a key that the release's config has not.
    """
    if unknown := sorted(overrides.keys() - RELEASE_CONFIG.keys()):
        raise UsageError(f"the release's config has no {unknown[0]!r}; override one of {', '.join(sorted(RELEASE_CONFIG))}")
    config = RELEASE_CONFIG | overrides
    if layer_types is None:
        pattern = RELEASE_CONFIG["layer_types"]
        layer_types = [pattern[layer % len(pattern)] for layer in range(config["num_hidden_layers"])]
    config |= {"layer_types": list(layer_types), "num_hidden_layers": len(layer_types)}
    if config["vocab_size"] < RELEASE_CONFIG["vocab_size"]:
        config["eos_token_id"] = overrides.get("eos_token_id", config["vocab_size"] - 1)
        config["pad_token_id"] = overrides.get("pad_token_id", max(0, config["vocab_size"] - 2))
    quantization = RELEASE_CONFIG["quantization_config"] | overrides.get("quantization_config", {})
    quantization["modules_to_not_convert"] = [f"model.layers.{layer}.mlp.gate" for layer in range(len(layer_types))]
    if weight_block_size is not None:
        quantization["weight_block_size"] = list(weight_block_size)
    return config | {"quantization_config": quantization}


TINY: dict[str, Any] = geometry(
    hidden_size=64,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
    vocab_size=96,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    sliding_window=9,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    weight_block_size=(32, 32),
)
"""A geometry that a unit test runs in milliseconds: 3 layers, GQA 3:1, 8 experts top-3, 2x2 scale grids, window 9."""


def write_synthetic(
    folder: Path,
    config: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    shards: int = 2,
    progress: Progress | None = None,
) -> Path:
    """Write a random checkpoint and return its folder. The index comes last: what was cut short does not open.

    Args:
        folder: created if need be.
        config: the dictionary for `config.json`, for example from `geometry`; `TINY` when None.
        seed: of every stream; tensors depend on (seed, name) only, never on their order or shard.
        shards: number of shard files, at most one a layer; layers are spread over them in order.
        progress: called after each tensor with the bytes written so far and those there will be.

    Raises:
        pydantic.ValidationError: `config` is not a Kolibri-1's.
        UsageError: more shards than layers; a folder that holds a checkpoint or part of one; a disk that is full.
    """
    parsed = Kolibri1Config.model_validate(TINY if config is None else config)
    done, total = 0, sum(map(tensor_bytes, inventory(parsed)))

    def write_tensor(file: BinaryIO, spec: TensorSpec) -> None:
        nonlocal done
        for chunk in _chunks(spec, parsed, seed):
            file.write(chunk)
        done += tensor_bytes(spec)
        if progress is not None:
            progress(done, total)

    return _write(folder, TINY if config is None else config, parsed, shards, write_tensor)


def write_hollow(folder: Path, config: dict[str, Any], *, shards: int) -> Path:
    """Write a checkpoint whose shards are whole by their headers and sparse files of zeros behind them.

    The real release's 78.8 GB then take a few megabytes: enough for all that reads headers only.

    Args and Raises: as `write_synthetic`.
    """

    def skip(file: BinaryIO, spec: TensorSpec) -> None:
        file.truncate(file.seek(tensor_bytes(spec), os.SEEK_CUR))

    return _write(folder, config, Kolibri1Config.model_validate(config), shards, skip)


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of one tensor's data."""
    return prod(spec.shape) * _ITEM_BYTES[spec.dtype]


def _write(
    folder: Path,
    config: dict[str, Any],
    parsed: Kolibri1Config,
    shards: int,
    write_tensor: Callable[[BinaryIO, TensorSpec], None],
) -> Path:
    layers = parsed.num_hidden_layers
    if not 1 <= shards <= layers:
        raise UsageError(f"{layers} layers cannot be spread over {shards} shards; ask for 1 to {layers}")
    parts: list[list[TensorSpec]] = [[] for _ in range(shards)]
    for spec in inventory(parsed):
        layer = int(spec.name.split(".")[2]) if spec.name.startswith("model.layers.") else 0
        parts[layer * shards // layers].append(spec)
    weight_map: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if present := sorted(folder.glob("*.safetensors*")):
            raise UsageError(f"{folder} already holds {present[0].name}; delete it or pass another folder")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for index, part in enumerate(parts):
            name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
            # The order of safetensors' own writer: wide dtypes first, which keeps every tensor aligned.
            part.sort(key=lambda spec: (-_ITEM_BYTES[spec.dtype], spec.name))
            with (folder / name).open("wb") as file:
                file.write(_header(part))
                for spec in part:
                    write_tensor(file, spec)
            weight_map |= {spec.name: name for spec in part}
        metadata = {"total_size": sum(tensor_bytes(spec) for part in parts for spec in part)}
        text = json.dumps({"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}, indent=2)
        partial = folder / f"{INDEX_FILE}.partial"
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(folder / INDEX_FILE)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}); free its disk or pass another folder") from None
    return folder


def _header(specs: Sequence[TensorSpec]) -> bytes:
    """A safetensors header for these tensors in this order: its length, then JSON padded to 8 bytes."""
    entries, offset = {}, 0
    for spec in specs:
        end = offset + tensor_bytes(spec)
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(spec: TensorSpec, config: Kolibri1Config, seed: int) -> Iterator[bytes | memoryview]:
    """The tensor's bytes, a chunk at a time. Weights and scales together have a standard deviation near 1 / sqrt(in)."""
    # A digest, since the release's 116,303 names are too many for a short checksum: two pairs of them share their crc32.
    name = hashlib.sha256(spec.name.encode()).digest()
    bits = np.random.SFC64(np.random.SeedSequence([seed, int.from_bytes(name, "little")]))
    if spec.dtype == "F32":
        columns = spec.shape[1] * config.quantization_config.weight_block_size[1]
        scales = np.random.Generator(bits).uniform(0.6, 1.4, spec.shape) / (_FP8_STD * columns**0.5)
        yield scales.astype("<f4").tobytes()
        return
    if spec.dtype == "F8_E4M3":
        table = _fp8_pairs()
    elif spec.name.endswith("expert_bias"):
        table = _normal(0.5)
    elif len(spec.shape) == 1:
        table = _log_normal(0.3 if "post_attn_norm" in spec.name or "post_ffn_norm" in spec.name else 1.0)
    else:
        table = _normal(1.0 if "embed_tokens" in spec.name else 2.0 / spec.shape[1] ** 0.5)
    left = tensor_bytes(spec)
    while left:
        size = min(left, _CHUNK_BYTES)
        draws = bits.random_raw(-(-size // 8)).astype("<u8", copy=False).view("<u2")
        yield table.take(draws).view(np.uint8)[:size].data
        left -= size


# Tables: what each of the 65,536 values of a random 16-bit word becomes, also 16 bits wide.


@cache
def _fp8_pairs() -> Table:
    """Two e4m3 codes of normal values a word, both zeros, every subnormal and both ends of the range among them, no NaN."""
    values = _quantiles(256) * _FP8_STD
    codes = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes[0], codes[-1] = 0xFE, 0x7E  # -448 and 448
    codes[120:136] = [*range(0x87, 0x7F, -1), *range(8)]  # the middle 6 %, where normal values would all be near zero too
    return (codes[None, :] | codes[:, None].astype(np.uint16) << 8).astype("<u2").ravel()


@cache
def _normal(std: float) -> Table:
    """bf16 values of that standard deviation around 0."""
    return _bf16(_quantiles(1 << 16) * std)


@cache
def _log_normal(centre: float) -> Table:
    """Positive bf16 values around `centre`, their logarithm of standard deviation 0.2."""
    return _bf16(centre * np.exp(0.2 * _quantiles(1 << 16)))


@cache
def _quantiles(count: int) -> npt.NDArray[np.float64]:
    """The standard normal distribution in `count` equally likely values."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((index + 0.5) / count) for index in range(count)])


def _bf16(values: npt.NDArray[np.float64]) -> Table:
    return values.astype(ml_dtypes.bfloat16).view(np.uint16).astype("<u2")
