"""The decoder: one step from a token id to logits and the evidence of how they came about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from oracle.errors import UsageError
from oracle.kolibri1.config import Kolibri1Config
from oracle.subjects.captures import CapturedRegion
from oracle.subjects.census import DeclaredOps, OpUse
from oracle.subjects.operands import OperandImage
from oracle.subjects.protocol import FillObserver, Float32, ResidentImage, StepEvidence
from tt_impl.attention.kv_cache import PagedKvCache
from tt_impl.attention.rope import RopeTables
from tt_impl.captured import captured_region
from tt_impl.census import declared_ops, named_ops
from tt_impl.device.protocol import Device, DType, HostArray, Layout, ReadHandle, Tensor
from tt_impl.experts.layout import ExpertSource
from tt_impl.experts.pool import ExpertPool
from tt_impl.isolate import run_layer
from tt_impl.layers import DecoderLayer, Entered
from tt_impl.lifetimes import Scratch
from tt_impl.metering import Meter
from tt_impl.operands import OperandWatch
from tt_impl.phases import phase
from tt_impl.residents import read_residents
from tt_impl.router import Routing
from tt_impl.settings import DecoderSettings, check_settings
from tt_impl.staging import WeightSource, stage
from tt_impl.stats import StepStats
from tt_impl.stretches import STRETCHES, Scopes

T = TypeVar("T")


class Decoder:
    """A Kolibri-1 on one device, decoding token by token, for one sequence or for several side by side.

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

    def start(self, user: int | None = None) -> None:
        """A new sequence at position 0, of one user or of all; slots and memos stay warm, and other users go on.

        Raises:
            UsageError: there is no such user.
        """
        if user is not None and not 0 <= user < self._settings.users:
            raise UsageError(f"there is no user {user}; the decoder was opened with users={self._settings.users}")
        if user is not None and self._settings.users > 1:
            self._cache.restart(user)
            return
        self._stretches.release()
        self._cache.close()
        self._cache = PagedKvCache(self._device, self._config, self._settings, self._stats)

    def stats(self) -> Mapping[str, int]:
        """The decoder's own counters, and the device's under `device.NAME`, since `reset`."""
        before = self._device_counts
        device = {f"device.{name}": n - before.get(name, 0) for name, n in self._device.event_counts().items()}
        return {**self._stats.counts(), **{name: n for name, n in device.items() if n}}

    def residents(self) -> Iterator[ResidentImage]:
        """Every resident tensor of the checkpoint, read back from the device as it is now."""
        return read_residents(self._device, self._residents.staged)

    def declared_ops(self) -> DeclaredOps:
        """How many ops of each name a step of one user has."""
        return declared_ops(self._config, self._settings)

    def record_ops(self, on: bool) -> None:
        """Have the device keep each op of the next steps, or no more."""
        self._device.record_ops(on)

    def recorded_ops(self) -> list[OpUse]:
        """Take the ops that the device kept."""
        return named_ops(self._device.recorded_ops())

    def captured_regions(self) -> list[CapturedRegion]:
        """What the device noted of captures since `reset`."""
        return [captured_region(record) for record in self._device.captures()]

    def operands(self) -> Iterator[OperandImage]:
        """Every computing copy of fp8 weights, read back from the device as it is now."""
        return self._operands.operands()

    def close(self) -> None:
        self._device.close()

    def step(self, token: int) -> StepEvidence:
        """Consume `token` at the next position of the one user.

        Raises:
            UsageError, DeviceFault: as `step_users`.
        """
        [evidence] = self.step_users([token])
        assert evidence is not None  # of a user with a token
        return evidence

    def step_users(self, tokens: Sequence[int | None]) -> list[StepEvidence | None]:
        """Consume one token of each user at its next position; None for a user that idles, whose sequence stays as it is.

        Each user's evidence is what it would be alone, bit for bit.

        Raises:
            UsageError: not a token or None for each user, no token at all, an id outside the vocabulary, or a full KV cache;
                nobody has moved.
            DeviceFault: a check of the decoder or its device fired.
        """
        taking = self._taking_part(tokens)
        positions = self._cache.advance(list(taking))
        self._pool.begin_step(tokens=len(taking))
        device, stretches = self._device, self._stretches
        device.copy_host_to_device_tensor(np.array([[token or 0 for token in tokens]], np.uint32), self._ids)
        residuals: list[ReadHandle] = []
        routings: list[list[Routing]] = []
        with stretches.step():
            row, rope, entered = stretches.run(0, self._begin)
            embedding = self._tap(row)
            for number, following in enumerate(self._layers[1:]):
                enter = partial(following.enter, cache=self._cache, rope=rope)
                hidden, entered = self._past(number, entered, routings, enter)
                residuals.append(self._tap(hidden))
            hidden, logits = self._past(len(self._layers) - 1, entered, routings, self._logits)
            residuals.append(self._tap(hidden))
            final = self._read_logits(logits)
        self._stats.steps += 1
        self._stats.companion_steps += len(taking) - 1
        self._stats.note_memory(self._device.get_memory_view().allocated_bytes)
        shown: list[StepEvidence | None] = [None] * len(tokens)
        streams, rows = [tap.array() for tap in residuals], embedding.array()
        for at, (user, token) in enumerate(taking.items()):
            own = [layer[at] for layer in routings]
            shown[user] = StepEvidence(
                token=token,
                position=positions[at],
                logits=final[user].copy(),
                embedding=rows[user].view(np.uint8).copy(),
                expert_ids=np.stack([routing.experts for routing in own]),
                expert_weights=np.stack([routing.weights for routing in own]),
                residual=np.stack([stream[user].astype(np.float32) for stream in streams]),
                router_logits=np.stack([routing.logits for routing in own]),
            )
        return shown

    def layer(self, layer: int, inputs: Float32) -> Float32:
        """Layer `layer` alone over `inputs` [T, hidden]; see `run_layer`. Begins and leaves new sequences of all users."""
        self.start()
        self._pool.begin_step(tokens=len(inputs))
        rope, activation = self._residents.rope, self._settings.activation
        outputs = run_layer(self._device, self._layers[layer], self._cache, rope, inputs, activation)
        self.start()
        return outputs

    def _taking_part(self, tokens: Sequence[int | None]) -> dict[int, int]:
        """The token of each user that has one."""
        users = self._settings.users
        if len(tokens) != users:
            raise UsageError(f"a step of {len(tokens)} tokens; the decoder was opened with users={users}, so give one for each")
        taking = {user: token for user, token in enumerate(tokens) if token is not None}
        if not taking:
            raise UsageError("a step in which every user idles; give at least one a token")
        for token in taking.values():
            if not 0 <= token < self._config.vocab_size:
                raise UsageError(f"token id {token} is outside the vocabulary of {self._config.vocab_size}")
        return taking

    def _begin(self, scopes: Scopes) -> tuple[Tensor, RopeTables, Entered]:
        """The ids' bf16 rows, the positions' rows of the RoPE tables, and layer 0 up to its router."""
        device = self._device
        row = hidden = scopes.next.own(device.embedding(self._ids, self._residents.embedding))
        if row.dtype is not self._settings.activation:
            hidden = scopes.stretch.own(device.typecast(row, self._settings.activation))
        rope = self._residents.rope.rows(device, scopes.step, self._cache.rope_positions)
        return row, rope, self._layers[0].enter(scopes, hidden, self._cache, rope)

    def _past(
        self, number: int, entered: Entered, routings: list[list[Routing]], ops: Callable[[Scopes, Tensor], T]
    ) -> tuple[Tensor, T]:
        """Past the experts of layer `number`, which add to `routings`: the residual stream behind it, and what `ops` make of
        that in the same stretch."""
        layer = self._layers[number]
        with Scratch(self._device) as scratch:
            routed, own = layer.route(scratch, entered, self._cache.active, self._routed)
            routings.append(own)

            def stretch(scopes: Scopes) -> tuple[Tensor, T]:
                hidden = layer.leave(scopes, entered, routed)
                return hidden, ops(scopes, hidden)

            return self._stretches.run(number + 1, stretch)

    def _logits(self, scopes: Scopes, hidden: Tensor) -> Tensor:
        """float32 [users, vocabulary], never rounded to bf16."""
        device, residents = self._device, self._residents
        normed = scopes.stretch.own(device.rms_norm(hidden, residents.final_norm, epsilon=self._config.rms_norm_eps))
        return scopes.next.own(device.linear(normed, residents.lm_head, dtype=DType.FLOAT32))

    @phase("evidence")
    def _tap(self, tensor: Tensor) -> ReadHandle:
        return self._device.copy_device_to_host_tensor(tensor, blocking=False)

    @phase("logits")
    def _read_logits(self, logits: Tensor) -> HostArray:
        """This read settles all taps before it."""
        read = self._device.copy_device_to_host_tensor(logits, blocking=True)
        self._stats.round_trips += 1
        return read.array()

    def _open_state(self) -> None:
        device, config, settings = self._device, self._config, self._settings
        device.forget_captures()
        self._device_counts = device.event_counts()
        self._stats = self._meter.stats = StepStats()
        self._ids = device.allocate_tensor_on_device((1, settings.users), DType.UINT32, Layout.ROW_MAJOR, "ids")
        self._cache = PagedKvCache(device, config, settings, self._stats)
        self._pool = self._pool_type(device, config, self._experts, settings, self._stats, self._observer)
        self._layers = [
            DecoderLayer(device, config, layer, self._residents, self._pool, self._stats)
            for layer in range(config.num_hidden_layers)
        ]
        self._stretches = STRETCHES[settings.dispatch](device, self._stats)
        self._routed = None
        if settings.dispatch == "captured":
            shape = (settings.users, config.hidden_size)
            self._routed = device.allocate_tensor_on_device(shape, settings.activation, Layout.TILE, "routed")
        self._stats.memory_before = device.get_memory_view().allocated_bytes

    def _close_state(self) -> None:
        self._stretches.release()
        routed, self._routed = self._routed, None
        if routed is not None:
            self._device.deallocate(routed)
        self._pool.close()
        self._cache.close()
        self._device.deallocate(self._ids)
