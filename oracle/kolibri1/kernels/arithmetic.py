"""The default arm: float32 throughout, weights read where they are mapped, sums in the kernels' fixed order.

Bit-identical whatever the number of threads, the tokens that share a pass, or the pass a token came by: every value is
computed by a kernel from its own inputs, or by elementwise torch operations that IEEE 754 defines exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from oracle.errors import UsageError
from oracle.kolibri1.arithmetic import inverse_frequencies
from oracle.kolibri1.checkpoint import Checkpoint, RawBytes
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, SCALE_SUFFIX
from oracle.kolibri1.kernels import attention, pointwise
from oracle.kolibri1.kernels.products import run_jobs
from oracle.kolibri1.kernels.vector import GROUP, LANES


@dataclass(frozen=True)
class _Matrix:
    """A stored weight, mapped: the job fields that do not depend on the tokens, and what keeps their addresses valid."""

    fields: tuple[int, ...]
    rows: int
    holds: tuple[RawBytes, ...]


class KernelArithmetic:
    """See `Arithmetic` for shapes; `dtype` is float32.

    Raises:
        UsageError: a width that the kernels' vectors do not divide.
    """

    dtype = torch.float32

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        _check_widths(self.config)
        self._checkpoint = checkpoint
        self._matrices: dict[str, _Matrix] = {}
        self._vectors: dict[str, torch.Tensor] = {}
        self._inverse_frequencies = inverse_frequencies(self.config).numpy()

    def embed(self, ids: list[int]) -> torch.Tensor:
        return _widen(np.stack([self._checkpoint.row("model.embed_tokens.weight", i) for i in ids]))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty(flat.shape)
        pointwise.rms_norm(flat.numpy(), self._vector(name).numpy(), np.float32(self.config.rms_norm_eps), out.numpy())
        return out.reshape(x.shape)

    def add(self, h: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = h + delta
        return total, total

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.product(x, name)

    def product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        matrix, packed = self._matrix(name), _pack(x)
        out = torch.empty(x.shape[0], matrix.rows)
        _run([_job(matrix, packed, out)])
        return out

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1)
        out = torch.empty(flat.shape)
        pointwise.sigmoid(flat.numpy(), out.numpy())
        return out.reshape(x.shape)

    def rope_angles(self, positions: range) -> tuple[torch.Tensor, torch.Tensor]:
        steps = np.arange(positions.start, positions.stop, dtype=np.int64)
        cos, sin = (np.empty((len(steps), self.config.head_dim // 2), np.float32) for _ in range(2))
        pointwise.rope_angles(steps, self._inverse_frequencies, cos, sin)
        return torch.from_numpy(np.concatenate([cos, cos], 1)), torch.from_numpy(np.concatenate([sin, sin], 1))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    def cached(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        out = torch.empty(q.shape)
        attention.attend(q.contiguous().numpy(), keys.numpy(), values.numpy(), first.numpy(), last.numpy(), out.numpy())
        return out.reshape(q.shape[0], -1)

    def experts(self, x: torch.Tensor, ids: torch.Tensor, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, top_k = ids.shape
        # Rows by expert, so that each expert's tokens lie together and share its decoded weights.
        chosen, order = torch.sort(ids.reshape(-1), stable=True)
        experts, counts = torch.unique_consecutive(chosen, return_counts=True)
        rows = _pack(x)
        routed = _Half(rows[order // top_k], self.config.moe_intermediate_size, x.shape[1])
        shared = _Half(rows, self.config.shared_expert_intermediate_size, x.shape[1])
        uses: list[tuple[_Half, str, slice]] = [(shared, f"{prefix}.shared_experts", slice(0, tokens))]
        start = 0
        for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
            uses.append((routed, f"{prefix}.experts.{expert}", slice(start, start + count)))
            start += count
        _run([job for half, name, span in uses for job in self._into(half, name, span)])
        for half in (routed, shared):
            pointwise.swiglu(half.gate.numpy(), half.up.numpy(), half.mixed.numpy())
        _run([self._out_of(half, name, span) for half, name, span in uses])
        outputs = torch.empty_like(routed.out)
        outputs[order] = routed.out
        return outputs.reshape(tokens, top_k, -1), shared.out

    def _into(self, half: _Half, name: str, span: slice) -> list[_Job]:
        gate, up = (self._matrix(f"{name}.{projection}.weight") for projection in EXPERT_PROJECTIONS[:2])
        return [_job(gate, half.inputs[span], half.gate[span]), _job(up, half.inputs[span], half.up[span])]

    def _out_of(self, half: _Half, name: str, span: slice) -> _Job:
        return _job(self._matrix(f"{name}.{EXPERT_PROJECTIONS[2]}.weight"), half.mixed[span], half.out[span])

    def combine(self, outputs: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        weighted = outputs * weights[..., None]
        total = weighted[:, 0]
        for slot in range(1, weighted.shape[1]):  # in a written order: a library's sum may take another for another shape
            total = total + weighted[:, slot]
        return total + shared

    def _vector(self, name: str) -> torch.Tensor:
        if name not in self._vectors:
            self._vectors[name] = _widen(self._checkpoint.raw(name))
        return self._vectors[name]

    def _matrix(self, name: str) -> _Matrix:
        if name not in self._matrices:
            self._matrices[name] = self._map(name)
        return self._matrices[name]

    def _map(self, name: str) -> _Matrix:
        spec, raw = self._checkpoint.spec(name), self._checkpoint.raw(name)
        rows, width = spec.shape
        if spec.dtype == "BF16":
            fields = (0, raw.ctypes.data, 2 * width, 0, 0, 1, 1, width // GROUP, rows)
            return _Matrix(fields, rows, (raw,))
        scales = self._checkpoint.raw(name + SCALE_SUFFIX)
        grid_rows, blocks = self._checkpoint.spec(name + SCALE_SUFFIX).shape
        groups = width // blocks // GROUP
        fields = (1, raw.ctypes.data, width, scales.ctypes.data, 4 * blocks, rows // grid_rows, blocks, groups, rows)
        return _Matrix(fields, rows, (raw, scales))


class _Half:
    """Rows of tokens on their way through experts of one width: packed inputs, both products, their packed mix, the outputs."""

    def __init__(self, inputs: torch.Tensor, width: int, hidden: int) -> None:
        rows = len(inputs)
        self.inputs = inputs
        self.gate, self.up, self.mixed = (torch.empty(rows, width) for _ in range(3))
        self.out = torch.empty(rows, hidden)


_Job = tuple[int, ...]


def _job(matrix: _Matrix, inputs: torch.Tensor, out: torch.Tensor) -> _Job:
    """One row of the job table: packed inputs [T, in] times the matrix, into out [T, rows]; both contiguous float32."""
    return (*matrix.fields, inputs.data_ptr(), 4 * inputs.shape[1], len(inputs), out.data_ptr(), 4 * out.shape[1])


def _run(jobs: list[_Job]) -> None:
    run_jobs(np.array(jobs, dtype=np.int64))


def _pack(x: torch.Tensor) -> torch.Tensor:
    """[T, K] in the kernels' order: of every group of 32 the 16 even-numbered inputs, then the 16 odd-numbered."""
    return x.reshape(len(x), -1, LANES, 2).transpose(2, 3).reshape(len(x), -1).contiguous()


def _widen(raw: RawBytes) -> torch.Tensor:
    """bf16 bytes as float32, exactly; the last axis halves."""
    return torch.from_numpy((raw.view("<u2").astype(np.uint32) << 16).view(np.float32))


def _check_widths(config: Kolibri1Config) -> None:
    widths = {
        "hidden_size": config.hidden_size,
        "head_dim": config.head_dim,
        "moe_intermediate_size": config.moe_intermediate_size,
        "shared_expert_intermediate_size": config.shared_expert_intermediate_size,
        "weight_block_size[1]": config.quantization_config.weight_block_size[1],
    }
    for name, width in widths.items():
        if width % GROUP:
            raise UsageError(
                f"{name} is {width}, and the compiled kernels take multiples of {GROUP}; use the arm float32-blas (plain torch)"
            )
