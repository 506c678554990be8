"""transformers' `Kolibri1ForCausalLM` filled from a checkpoint's bytes, without its own loader.

`from_pretrained` converts fp8 with torch, at about 0.1 GB/s on a CPU, and holds the weights more than once. Here the
model is built uninitialized and every parameter written in place through a table; a test holds that the result is
`from_pretrained`'s to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, Kolibri1ForCausalLM
from transformers.initialization import no_init_weights

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import SCALE_SUFFIX, expert_weight

# transformers' name in a layer -> the release's (conversion_mapping.py of transformers 5.24).
_RENAMED = {
    "mlp.gate.e_score_correction_bias": "moe.router.expert_bias",
    "post_self_attn_layernorm.weight": "post_attn_norm.weight",
    "post_mlp_layernorm.weight": "post_ffn_norm.weight",
}


def load_transformers(
    checkpoint: Checkpoint, dtype: torch.dtype, progress: Callable[[str], None] = lambda name: None
) -> Kolibri1ForCausalLM:
    """The model in `dtype` with eager attention, as `from_pretrained(dtype=..., attn_implementation="eager")` loads it.

    Args:
        checkpoint: an opened checkpoint.
        dtype: float32 or bfloat16; the router's bias stays float32.
        progress: called with each parameter's name before it is filled.
    """
    config: Any = AutoConfig.from_pretrained(checkpoint.folder)
    del config.quantization_config
    with no_init_weights():
        model: Any = Kolibri1ForCausalLM._from_config(config, dtype=dtype, attn_implementation="eager")
    for name, target in model.state_dict().items():
        progress(name)
        _fill(checkpoint, name, target)
    return model.eval()


def _fill(checkpoint: Checkpoint, name: str, target: torch.Tensor) -> None:
    prefix, _, rest = name.partition(".mlp.experts.")
    if rest:
        projections = ("gate_proj", "up_proj") if rest == "gate_up_proj" else ("down_proj",)
        layer, rows = int(prefix.rsplit(".", 1)[1]), target.shape[1] // len(projections)
        for expert in range(target.shape[0]):
            for index, projection in enumerate(projections):
                part = target[expert, index * rows : (index + 1) * rows]
                part.copy_(_weight(checkpoint, expert_weight(layer, expert, projection)))
        return
    for theirs, released in _RENAMED.items():
        name = name.replace(theirs, released)
    target.copy_(_weight(checkpoint, name))


def _weight(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """float32 `fp32(q) * scale` of an fp8 weight, the bf16 values of any other."""
    spec, raw = checkpoint.spec(name), checkpoint.raw(name)
    if spec.dtype == "BF16":
        return torch.from_numpy(raw.copy()).view(torch.bfloat16).reshape(spec.shape)
    grid = checkpoint.spec(name + SCALE_SUFFIX).shape
    scale = checkpoint.raw(name + SCALE_SUFFIX).view("<f4").reshape(grid[0], 1, grid[1], 1)
    values = _pairs().take(raw.view("<u2")) if raw.size % 2 == 0 else _values()[raw]
    blocks = values.view(np.float32).reshape(grid[0], spec.shape[0] // grid[0], grid[1], spec.shape[1] // grid[1])
    blocks *= scale
    return torch.from_numpy(blocks.reshape(spec.shape))


@cache
def _values() -> npt.NDArray[np.float32]:
    """float32 of every e4m3fn code."""
    return np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


@cache
def _pairs() -> npt.NDArray[np.uint64]:
    """Two float32 values for two codes at once, by the little-endian 16-bit word that holds them."""
    pairs = np.stack([np.tile(_values(), 256), np.repeat(_values(), 256)], 1)
    return np.ascontiguousarray(pairs).view(np.uint64).ravel()
