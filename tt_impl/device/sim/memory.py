"""What the simulated card's ops are made of: check and log, allocate the output, load, store."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from oracle.errors import DeviceFault
from tt_impl.device.protocol import DType, HostArray, Layout, Tensor
from tt_impl.device.sim.kernels import Float32
from tt_impl.device.sim.layout import few_rows, pack_into, unpack
from tt_impl.device.sim.machine import SimMachine
from tt_impl.device.sim.tensor import SimTensor
from tt_impl.device.sim.workload import LOOKS_INTO, WITH_FLOPS, dram_bytes, flops

__all__ = ["SimMemory", "SimTensor"]


class SimMemory(SimMachine):
    """The simulated card, ready for ops.

    An op calls `_operate`, allocates its outputs by `_new_tensor`, and then `self._queue.enqueue` with a closure that
    loads, computes and stores: exactly one for each op, which a trace records as it is. Decoded operands are kept on the
    buffer they were decoded from and dropped with any change of its bytes.
    """

    def _operate(self, op: str, operands: Iterable[Tensor], shape: tuple[int, ...] = (), written: int = 0) -> None:
        """Log `op` and check that its operands, in the protocol's order, live: all that one without an output needs."""
        taken, moved = [], written
        queues = self._queue
        captured, position = queues.capture is not None, queues.tails[0] + 1
        for operand in operands:
            if captured or not isinstance(operand, SimTensor) or not operand.buffer.is_allocated:
                live = self._live(operand, op)
            else:  # all that `_live` does then
                live = operand
                live.buffer.used[0] = position
            if live.dtype is DType.FP8_E4M3:
                raise DeviceFault("bad-operand", f"{op} of {live.label}: no op takes fp8_e4m3")
            taken.append(live)
            moved += live.buffer.nbytes
        if op in LOOKS_INTO:
            moved = dram_bytes(op, taken, written)
        self._log.note_op(op, moved, flops(op, taken, shape) if op in WITH_FLOPS else 0, taken)

    def _load(self, tensor: Tensor) -> Float32:
        """A float tensor's values now, read-only; called when a command runs."""
        owned = tensor if isinstance(tensor, SimTensor) else self._owned(tensor)
        decoded = owned.buffer.decoded
        if decoded is None:
            array = unpack(owned.buffer.bytes, owned.shape, owned.dtype, owned.layout)
            decoded = array.astype(np.float32)
            decoded.flags.writeable = False
            owned.buffer.decoded = decoded
        return decoded

    def _store(self, tensor: SimTensor, values: Float32) -> None:
        """Round `values` to the tensor's dtype and write its bytes; called when a command runs."""
        buffer, dtype = tensor.buffer, tensor.dtype
        array = values.astype(dtype.host, copy=False)
        elements = self._few_rows(tensor)
        if elements is None:
            pack_into(buffer.bytes, array, tensor.layout, dtype)
        else:  # all that `pack_into` does then
            buffer.bytes.fill(0)
            elements[...] = array.reshape(elements.shape)
        buffer.changed()
        if dtype is not DType.BFLOAT8_B:
            decoded = array.astype(np.float32)  # exactly what the bytes decode to
            decoded.setflags(write=False)
            buffer.decoded = decoded

    def _few_rows(self, tensor: SimTensor) -> HostArray | None:
        """As `layout.few_rows`, of a tensor where it lies, and made once for each place."""
        views, key = tensor.buffer.place.few_rows, (tensor.shape, tensor.dtype, tensor.layout)
        if key in views:
            return views[key]
        tiled = tensor.layout is Layout.TILE and tensor.dtype is not DType.BFLOAT8_B
        view = few_rows(tensor.buffer.bytes, tensor.shape, tensor.dtype.host) if tiled else None
        views[key] = view
        return view

    def _new_tensor(self, shape: tuple[int, ...], dtype: DType, layout: Layout, label: str) -> SimTensor:
        """An output of the op whose command is enqueued next."""
        tensor = self._allocate(shape, dtype, layout, label)
        queues = self._queue
        if queues.capture is None:
            tensor.buffer.used[0] = queues.tails[0] + 1
        else:
            self._tracer.allocated(tensor.buffer)
        return tensor
