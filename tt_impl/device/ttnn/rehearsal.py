"""The decoder itself, without weights, on a device that computes nothing: what is accepted of it is what it sends.

A layer of each kind stands for all of that kind, since their calls have the same shapes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from tt_impl.decode import Decoder
from tt_impl.device.protocol import Bytes, Device, DType
from tt_impl.experts.layout import ExpertLayout
from tt_impl.settings import default_settings

_ITEM_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


class NoWeights:
    """A `WeightSource` and an `ExpertSource` of zeros, in the sizes of the checkpoint's."""

    def __init__(self, config: Kolibri1Config) -> None:
        self._nbytes = {spec.name: math.prod(spec.shape) * _ITEM_BYTES[spec.dtype] for spec in inventory(config)}
        self._expert = ExpertLayout.of(config).nbytes

    def raw(self, name: str) -> Bytes:
        return np.zeros(self._nbytes[name], np.uint8)

    def payload(self, layer: int, expert: int) -> Bytes:
        return np.zeros(self._expert, np.uint8)


def layers_of_each_kind(config: Kolibri1Config) -> Kolibri1Config:
    """The same model cut down to its first layer of each kind, in their order."""
    first = sorted({config.layer_types.index(kind) for kind in config.layer_types})
    kinds = tuple(config.layer_types[layer] for layer in first)
    return config.model_copy(update={"num_hidden_layers": len(kinds), "layer_types": kinds})


def rehearsing_decoder(device: Device, config: Kolibri1Config) -> Decoder:
    """The decoder over zeros, in the arm `bf16`, with as few slots as a step needs.

    Args:
        device: read-backs of fills must be what was written (`mirroring`), or the decoder refuses them.
    """
    settings = replace(default_settings(config, DType.BFLOAT16), slots_per_layer=config.num_experts_per_tok)
    weights = NoWeights(config)
    return Decoder(device, config, weights, weights, settings)
