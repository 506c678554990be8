"""The decoder: one step from a token id to logits and the evidence of how they came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from oracle.subjects.census import DeclaredOps, OpUse
from oracle.subjects.operands import OperandImage
from oracle.subjects.protocol import FillObserver, Float32, ResidentImage, StepEvidence
from tt_impl.census import declared_ops, named_ops
from tt_impl.device.protocol import Device, DType, Layout, ReadHandle, Tensor
from tt_impl.expert_layout import ExpertSource
from tt_impl.expert_pool import ExpertPool
from tt_impl.isolate import run_layer
from tt_impl.kv_cache import PagedKvCache
from tt_impl.layers import DecoderLayer
from tt_impl.lifetimes import Scratch
from tt_impl.metering import Meter
from tt_impl.operands import OperandWatch
from tt_impl.residents import read_residents
from tt_impl.router import Routing
from tt_impl.settings import DecoderSettings, check_settings
from tt_impl.staging import WeightSource, stage
from tt_impl.stats import StepStats


class Decoder:
    """A Kolibri-1 on one device, decoding token by token.

    Residents are staged once; everything else (slots, memos, KV cache, counters) is made new by `reset`.

    Args:
        device: opened, and used by nobody else; closed by `close`.
        weights, experts: resident tensors and routed experts, as raw bytes.
        observer: told of verified fills and of uses; None when nobody listens.
        pool_type: of the routed experts.

    Raises:
        UsageError: settings that can't work.
        DeviceFault: `out-of-memory`.
        CheckpointError: a tensor with NaN or infinite values.
    """

    def __init__(
        self,
        device: Device,
        config: Kolibri1Config,
        weights: WeightSource,
        experts: ExpertSource,
        settings: DecoderSettings,
        observer: FillObserver | None = None,
        pool_type: type[ExpertPool] = ExpertPool,
    ) -> None:
        check_settings(settings, config)
        self._operands = OperandWatch(device, observer)
        self._meter = Meter(self._operands.device)
        self._device = device = self._meter.device
        self._pool_type = pool_type
        self._config = config
        self._experts = experts
        self._settings = settings
        self._observer = observer
        self._residents = stage(device, config, weights, settings)
        self._open_state()

    def reset(self) -> None:
        """Back to the state just after opening; also after a fault. Residents stay."""
        self._close_state()
        self._open_state()

    def start(self) -> None:
        """A new sequence at position 0; slots and memos stay warm."""
        self._cache.close()
        self._cache = PagedKvCache(self._device, self._config, self._settings)

    def stats(self) -> Mapping[str, int]:
        """The decoder's own counters, and the device's under `device.NAME`, since `reset`."""
        before = self._device_counts
        device = {f"device.{name}": n - before.get(name, 0) for name, n in self._device.event_counts().items()}
        return {**self._stats.counts(), **{name: n for name, n in device.items() if n}}

    def residents(self) -> Iterator[ResidentImage]:
        """Every resident tensor of the checkpoint, read back from the device as it is now."""
        return read_residents(self._device, self._residents.staged)

    def declared_ops(self) -> DeclaredOps:
        """How many ops of each name a step has."""
        return declared_ops(self._config, self._settings)

    def record_ops(self, on: bool) -> None:
        """Have the device keep each op of the next steps, or no more."""
        self._device.record_ops(on)

    def recorded_ops(self) -> list[OpUse]:
        """Take the ops that the device kept."""
        return named_ops(self._device.recorded_ops())

    def operands(self) -> Iterator[OperandImage]:
        """Every computing copy of fp8 weights, read back from the device as it is now."""
        return self._operands.operands()

    def close(self) -> None:
        self._device.close()

    def step(self, token: int) -> StepEvidence:
        """Consume `token` at the next position.

        Raises:
            UsageError: an id outside the vocabulary, or a full KV cache.
            DeviceFault: a check of the decoder or its device fired.
        """
        if not 0 <= token < self._config.vocab_size:
            raise UsageError(f"token id {token} is outside the vocabulary of {self._config.vocab_size}")
        position = self._cache.advance()
        self._pool.begin_step()
        device = self._device
        with Scratch(device) as scratch:
            hidden, embedding = self._embed(scratch, token)
            rope = self._residents.rope.rows(device, scratch, self._cache.rope_positions)
            residuals: list[ReadHandle] = []
            routings: list[Routing] = []
            for layer in self._layers:
                after, routing = layer.forward(hidden, self._cache, rope)
                hidden = scratch.own(after)
                residuals.append(device.copy_device_to_host_tensor(hidden, blocking=False))
                routings.append(routing)
            logits = self._logits(scratch, hidden)
        self._stats.steps += 1
        self._stats.note_memory(device.get_memory_view().allocated_bytes)
        return StepEvidence(
            token=token,
            position=position,
            logits=logits,
            embedding=embedding.array()[0].view(np.uint8).copy(),
            expert_ids=np.stack([routing.experts for routing in routings]),
            expert_weights=np.stack([routing.weights for routing in routings]),
            residual=np.stack([tap.array()[0].astype(np.float32) for tap in residuals]),
            router_logits=np.stack([np.asarray(routing.logits.array()[0], np.float32) for routing in routings]),
        )

    def layer(self, layer: int, inputs: Float32) -> Float32:
        """Layer `layer` alone over `inputs` [T, hidden]; see `run_layer`. Begins and leaves a new sequence."""
        self.start()
        self._pool.begin_step(tokens=len(inputs))
        rope, activation = self._residents.rope, self._settings.activation
        outputs = run_layer(self._device, self._layers[layer], self._cache, rope, inputs, activation)
        self.start()
        return outputs

    def _embed(self, scratch: Scratch, token: int) -> tuple[Tensor, ReadHandle]:
        """The residual stream before layer 0, [1, hidden], and the tap of the bf16 row that it was made from."""
        device = self._device
        device.copy_host_to_device_tensor(np.array([[token]], np.uint32), self._ids)
        row = scratch.own(device.embedding(self._ids, self._residents.embedding))
        tap = device.copy_device_to_host_tensor(row, blocking=False)
        if row.dtype is self._settings.activation:
            return row, tap
        return scratch.own(device.typecast(row, self._settings.activation)), tap

    def _logits(self, scratch: Scratch, hidden: Tensor) -> np.ndarray:
        """float32 [vocabulary], never rounded to bf16; this read settles all taps before it."""
        device, residents = self._device, self._residents
        normed = scratch.own(device.rms_norm(hidden, residents.final_norm, epsilon=self._config.rms_norm_eps))
        logits = scratch.own(device.linear(normed, residents.lm_head, dtype=DType.FLOAT32))
        read = device.copy_device_to_host_tensor(logits, blocking=True)
        self._stats.round_trips += 1
        return read.array()[0].copy()

    def _open_state(self) -> None:
        device, config, settings = self._device, self._config, self._settings
        self._device_counts = device.event_counts()
        self._stats = self._meter.stats = StepStats()
        self._ids = device.allocate_tensor_on_device((1, 1), DType.UINT32, Layout.ROW_MAJOR, "ids")
        self._cache = PagedKvCache(device, config, settings)
        self._pool = self._pool_type(device, config, self._experts, settings, self._stats, self._observer)
        self._layers = [
            DecoderLayer(device, config, layer, self._residents, self._pool, self._stats)
            for layer in range(config.num_hidden_layers)
        ]
        self._stats.memory_before = device.get_memory_view().allocated_bytes

    def _close_state(self) -> None:
        self._pool.close()
        self._cache.close()
        self._device.deallocate(self._ids)
