"""Steps with one op or weight wrong, each planted where the decoder meets its device or its experts; `catalogue` enters them.

What the device logs is what it was asked for, so these are to it as if the decoder had erred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.experts.memo import FeedForwardWeights
from tt_impl.experts.pool import ExpertPool


class SwapsNormsInUse(Passing):
    """Gives the first two layers' second norms each other's weights."""

    def __init__(self, device: Device, config: Kolibri1Config) -> None:
        super().__init__(device)
        first, second = (f"model.layers.{layer % config.num_hidden_layers}.post_attn_norm.weight" for layer in (0, 1))
        self._other = {first: second, second: first}
        self._norms: dict[str, Tensor] = {}

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> Tensor:
        tensor = self._device.allocate_tensor_on_device(shape, dtype, layout, label)
        if label in self._other:
            self._norms[label] = tensor
        return tensor

    def rms_norm(self, x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
        given = self._norms.get(self._other.get(weight.label, ""), weight)
        return self._device.rms_norm(x, given, epsilon=epsilon)


class DoublesAnAdd(Passing):
    """Repeats the addition behind the last layer's second norm."""

    def __init__(self, device: Device, config: Kolibri1Config) -> None:
        super().__init__(device)
        self._norm = f"model.layers.{config.num_hidden_layers - 1}.post_attn_norm.weight"
        self._due = False

    def rms_norm(self, x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
        self._due |= weight.label == self._norm
        return self._device.rms_norm(x, weight, epsilon=epsilon)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        once = self._device.add(a, b)
        if not self._due:
            return once
        self._due = False
        twice = self._device.add(once, b)
        self._device.deallocate(once)
        return twice


class TurnsFullLayer(Passing):
    """Turns the normed queries and keys of the first full layer by the step's RoPE rows."""

    def __init__(self, device: Device, config: Kolibri1Config) -> None:
        super().__init__(device)
        full = [layer for layer in range(config.num_hidden_layers) if not config.is_sliding(layer)]
        self._norms = {f"model.layers.{layer}.self_attn.{name}_norm.weight" for layer in full[:1] for name in "qk"}
        self._rows: dict[str, Tensor] = {}

    def embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        rows = self._device.embedding(ids, weight)
        self._rows[weight.label] = rows
        return rows

    def rms_norm(self, x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
        normed = self._device.rms_norm(x, weight, epsilon=epsilon)
        if weight.label not in self._norms:
            return normed
        turned = self._device.rotary_embedding_hf(normed, self._rows["rope.cos"], self._rows["rope.sin"])
        self._device.deallocate(normed)
        return turned


IN_USE: Mapping[str, Callable[[Device, Kolibri1Config], Any]] = {
    "norms-crossed": SwapsNormsInUse,
    "add-doubled": DoublesAnAdd,
    "full-layer-turned": TurnsFullLayer,
}
"""By the plant's name: what changes which op is asked of a device, or with what."""


class RepeatsAnExpert(ExpertPool):
    """Serves a step's first expert of the first layer in the place of its second too."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._asked: list[FeedForwardWeights] = []

    def use(self, layer: int, expert: int) -> FeedForwardWeights:
        weights = super().use(layer, expert)
        if layer == 0:
            self._asked.append(weights)
        return self._asked[0] if layer == 0 and len(self._asked) == 2 else weights

    def release(self, layer: int) -> None:
        super().release(layer)
        self._asked.clear()
