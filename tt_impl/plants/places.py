"""Where planted faults of a device strike: for the simulated card's plan of faults, and for the calls to any other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlantedBits:
    """Bits of one byte of a tensor.

    Attributes:
        pattern: of the tensor's label; `{layer}` stands for the layer that plants go for, `*` for anything.
        offset: of the byte in what the tensor holds.
        mask: of the bits.
    """

    pattern: str
    offset: int = 0
    mask: int = 1

    def label(self, layer: int) -> str:
        return self.pattern.format(layer=layer)


SLOT_BYTE = PlantedBits("layer{layer}.slot0", offset=5, mask=0x10)
RESIDENT_BYTE = PlantedBits("model.layers.{layer}.self_attn.o_proj.weight", offset=7, mask=0x02)
MEMO_BYTE = PlantedBits("layer{layer}.expert*.down", offset=4)
NORM_BYTE = PlantedBits("model.layers.{layer}.input_layernorm.weight")


def drain_of(layer: int) -> int:
    """Which synchronization is that layer's, from 1: cold slots make every layer drain once in the first step."""
    return layer + 1
