"""What all ops of the simulated card share: how they refuse operands, allocate results, run, and round what they store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, HostArray, Layout, Tensor
from tt_impl.device.sim import kernels, quirky_kernels
from tt_impl.device.sim.kernels import Float32
from tt_impl.device.sim.layout import unpack
from tt_impl.device.sim.machine import footprint
from tt_impl.device.sim.memory import SimMemory, SimTensor
from tt_impl.device.sim.quirks import NO_QUIRKS, Quirks

MATRIX = frozenset((DType.BFLOAT16, DType.FLOAT32, DType.BFLOAT8_B))
"""Element types that ttnn's matrix products, norms and activations take."""

FLOATS = frozenset((DType.BFLOAT16, DType.FLOAT32))
COUNTS = frozenset((DType.UINT16, DType.UINT32))


class OpBase(SimMemory):
    """The card's memory, and its quirks.

    Args:
        quirks: what it does otherwise than its ops say.
        memory: as `SimMemory` takes them.
    """

    def __init__(self, *, quirks: Quirks = NO_QUIRKS, **memory: Any) -> None:
        super().__init__(**memory)
        self.quirks = quirks
        self._rounding = quirky_kernels.truncated if quirks.truncates else kernels.rounded
        self._enqueue: Callable[[Callable[[], None]], None] = self._queue.enqueue

    def _result(
        self,
        op: str,
        operands: Sequence[Tensor],
        shape: tuple[int, ...],
        dtype: DType,
        layout: Layout = Layout.TILE,
    ) -> SimTensor:
        """Log `op`, check that its operands live, and allocate its result."""
        self._operate(op, operands, shape, footprint(shape, dtype, layout)[0])
        return self._new_tensor(shape, dtype, layout, op)

    def _into(self, op: str, operands: Sequence[Tensor], shape: tuple[int, ...], dtype: DType, output: Tensor) -> SimTensor:
        """As `_result`, in a TILE tensor that is there and is none of the operands."""
        fits = output.shape == shape and output.dtype is dtype and output.layout is Layout.TILE
        require(op, fits, f"an output TILE {dtype.label} {list(shape)} is needed", output)
        require(op, all(output is not operand for operand in operands), "it cannot write over its own operand", output)
        self._operate(op, (*operands, output), shape)
        return self._owned(output)

    def _store_rounded(self, out: SimTensor, values: Float32) -> None:
        """Round `values` as the card does to the result's dtype, and write them; called when a command runs."""
        self._store(out, self._rounding(values, out.dtype) if self.quirks.truncates else values)

    def _store_product(self, out: SimTensor, values: Float32) -> None:
        """As `_store_rounded`, of a matrix product."""
        if self.quirks.fp32_on_bf16_grid:
            values = kernels.rounded(values, DType.BFLOAT16)
        self._store_rounded(out, values)

    def _store_bits(self, out: SimTensor, array: HostArray) -> None:
        """Write an array of the result's own dtype bit for bit; called when a command runs."""
        assert array.dtype == out.dtype.host, (array.dtype, out.dtype)
        self._store(out, array)

    def _bits(self, tensor: Tensor) -> HostArray:
        """A tensor's present values, unconverted; read-only use. Called when a command runs."""
        owned = self._owned(tensor)
        return unpack(owned.buffer.bytes, owned.shape, owned.dtype, owned.layout)

    def _check_index(self, op: str, index: HostArray, limit: int, tensor: Tensor) -> None:
        """At execution: an index outside a table reads other memory on a card, and is a fault here."""
        if index.size and int(index.max()) >= limit:
            raise self._fault(f"{op}-index", f"{op}: {tensor.label} holds {index.max()}, which is not below {limit}")


def require(op: str, condition: bool, why: str, *operands: Tensor) -> None:
    """Refuse operands that an op does not take.

    Raises:
        DeviceFault: `bad-operand`, naming each operand with dtype, layout and shape, and what was wanted.
    """
    if not condition:
        shown = ", ".join(f"{t.label} {t.dtype.label} {t.layout.value} {list(t.shape)}" for t in operands)
        raise DeviceFault("bad-operand", f"{op} does not take {shown}: {why}")


def require_tiles(op: str, dtypes: frozenset[DType], *operands: Tensor) -> None:
    """Refuse operands that are not TILE, or not of one of `dtypes`."""
    for operand in operands:
        require(op, operand.layout is Layout.TILE, "TILE is needed", operand)
        if operand.dtype not in dtypes:
            wanted = " or ".join(sorted(dtype.label for dtype in dtypes))
            require(op, False, f"{wanted} is needed", operand)


def require_row_major(op: str, dtype: DType, *operands: Tensor) -> None:
    """Refuse operands that are not ROW_MAJOR matrices of `dtype`."""
    for operand in operands:
        fits = operand.layout is Layout.ROW_MAJOR and operand.dtype is dtype and len(operand.shape) == 2
        require(op, fits, f"a row_major matrix of {dtype.label} is needed", operand)


def rows_of(array: Float32) -> Float32:
    """[..., C] as [rows, C]."""
    return np.reshape(array, (-1, array.shape[-1]))
