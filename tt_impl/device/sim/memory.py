"""The simulated card without its ops: tensors, transfers, the queue, and the store and load that ops are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from oracle.errors import DeviceFault
from tt_impl.device.protocol import Bytes, DType, Event, HostArray, Layout, MemoryView, Tensor
from tt_impl.device.sim.dram import Buffer, Dram
from tt_impl.device.sim.event_log import EventLog
from tt_impl.device.sim.faults import FaultPlan
from tt_impl.device.sim.kernels import Float32
from tt_impl.device.sim.layout import pack, pack_into, packed_bytes, unpack
from tt_impl.device.sim.queue import ClosedQueue, CommandQueue, LazySchedule, Schedule, SimEvent, SimReadHandle

DEFAULT_DRAM_BYTES = 1 << 30
"""Enough for small checkpoints; memory of the host is taken only as the simulated card touches it."""


class SimTensor:
    """A tensor on the simulated card: a buffer and how to read it. See `protocol.Tensor`."""

    __slots__ = ("buffer", "dtype", "layout", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: DType, layout: Layout, buffer: Buffer) -> None:
        self.shape, self.dtype, self.layout, self.buffer = shape, dtype, layout, buffer

    @property
    def label(self) -> str:
        return self.buffer.label

    @property
    def identity(self) -> int:
        return self.buffer.identity

    @property
    def generation(self) -> int:
        return self.buffer.generation

    @property
    def is_allocated(self) -> bool:
        return self.buffer.is_allocated


class SimMemory:
    """Memory, transfers and synchronization of the simulated card; see `protocol.Device` for what each call does.

    A write packs its array when it is enqueued, so the host may change it afterwards; real drivers may copy later, and a
    decoder must not rely on more than this one grants. Decoded operands are kept on the buffer they were decoded from and
    dropped with any change of its bytes.

    Args:
        dram_bytes: capacity.
        schedule: when enqueued commands run; `LazySchedule` when None.
        faults: what goes wrong by itself; nothing when None.
    """

    def __init__(
        self, *, dram_bytes: int = DEFAULT_DRAM_BYTES, schedule: Schedule | None = None, faults: FaultPlan | None = None
    ) -> None:
        self._dram = Dram(dram_bytes)
        self._queue = CommandQueue(schedule or LazySchedule())
        self._faults = faults or FaultPlan()
        self._log = EventLog()

    @property
    def event_number(self) -> int:
        return self._log.number

    def event_counts(self) -> Mapping[str, int]:
        return self._log.counts()

    def get_memory_view(self) -> MemoryView:
        return self._dram.view()

    def close(self) -> None:
        self._queue = ClosedQueue()

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> SimTensor:
        return self._new_tensor(tuple(shape), dtype, layout, label)

    def deallocate(self, tensor: Tensor) -> None:
        buffer = self._owned(tensor).buffer
        self._dram.free(buffer, "deallocate")
        self._log.note("deallocations")
        self._queue.enqueue(buffer.poison)

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor) -> None:
        target = self._live(tensor, "copy_host_to_device_tensor")
        if array.shape != target.shape or array.dtype != target.dtype.host:
            raise DeviceFault(
                "bad-operand",
                f"copy_host_to_device_tensor: {target.label} is {target.dtype.label} {list(target.shape)}, "
                f"the array {array.dtype} {list(array.shape)}",
            )
        packed = pack(array, target.layout)
        buffer = target.buffer

        def run() -> None:
            buffer.bytes[:] = packed
            buffer.host_writes += 1
            self._faults.write_landed(buffer)
            buffer.changed()

        self._log.note_write(packed.size)
        self._queue.enqueue(run)

    def copy_device_to_host_tensor(self, tensor: Tensor, destination: Bytes | None = None, *, blocking: bool) -> SimReadHandle:
        source = self._live(tensor, "copy_device_to_host_tensor")
        buffer = source.buffer
        if destination is None:
            destination = np.empty(buffer.nbytes, np.uint8)
        elif destination.shape != (buffer.nbytes,) or destination.dtype != np.uint8:
            raise DeviceFault("bad-operand", f"reading {source.label} takes a uint8 vector of {buffer.nbytes} bytes")
        handle = SimReadHandle(source.label, source.shape, source.dtype, source.layout, destination)
        self._log.note_read(buffer.nbytes, blocking=blocking)
        self._queue.enqueue_read(lambda: handle.take_off(buffer.bytes), handle)
        if blocking:
            self._queue.settle(self._log.number)
        return handle

    def record_event(self) -> SimEvent:
        self._log.note("events_recorded")
        return self._queue.mark()

    def event_synchronize(self, event: Event) -> None:
        if not isinstance(event, SimEvent):
            raise DeviceFault("bad-operand", f"event_synchronize of {event!r}, which is no event of the simulated device")
        self._log.note_wait("event_synchronizes")
        self._queue.settle(self._log.number, event.position)

    def synchronize_device(self) -> None:
        self._log.note_wait("synchronizes")
        self._queue.settle(self._log.number)

    def poke(self, tensor: Tensor, offset: int, data: bytes) -> None:
        """Change device bytes behind the decoder's back, at once: for tests and mutation campaigns."""
        buffer = self._live(tensor, "poke").buffer
        buffer.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        buffer.changed()

    # What ops are made of

    def _output(self, op: str, operands: Iterable[Tensor], shape: tuple[int, ...], dtype: DType) -> SimTensor:
        """Log `op`, check that its operands live, and allocate its TILE output."""
        for operand in operands:
            self._live(operand, op)
            if operand.dtype is DType.FP8_E4M3:
                raise DeviceFault("bad-operand", f"{op} of {operand.label}: no op takes fp8_e4m3")
        self._log.note_op(op)
        return self._new_tensor(shape, dtype, Layout.TILE, op)

    def _load(self, tensor: Tensor) -> Float32:
        """A float tensor's values now, read-only; called when a command runs."""
        owned = self._owned(tensor)
        buffer = owned.buffer
        if buffer.decoded is None:
            array = unpack(buffer.bytes, owned.shape, owned.dtype, owned.layout)
            decoded = array.astype(np.float32)
            decoded.setflags(write=False)
            buffer.decoded = decoded
        return buffer.decoded

    def _store(self, tensor: SimTensor, values: Float32) -> None:
        """Round `values` to the tensor's dtype and write its bytes; called when a command runs."""
        buffer = tensor.buffer
        array = values.astype(tensor.dtype.host, copy=False)
        pack_into(buffer.bytes, array, tensor.layout)
        buffer.changed()
        decoded = array.astype(np.float32)  # exactly what the bytes decode to
        decoded.setflags(write=False)
        buffer.decoded = decoded

    def _live(self, tensor: Tensor, op: str) -> SimTensor:
        if not isinstance(tensor, SimTensor):
            raise DeviceFault("bad-operand", f"{op} of {tensor!r}, which is no tensor of the simulated device")
        if not tensor.buffer.is_allocated:
            raise DeviceFault("use-after-free", f"{op} of {tensor.label} (buffer {tensor.identity}), which was deallocated")
        return tensor

    def _owned(self, tensor: Tensor) -> SimTensor:
        if not isinstance(tensor, SimTensor):
            raise DeviceFault("bad-operand", f"{tensor!r} is no tensor of the simulated device")
        return tensor

    def _new_tensor(self, shape: tuple[int, ...], dtype: DType, layout: Layout, label: str) -> SimTensor:
        if layout is Layout.TILE and (dtype is DType.FP8_E4M3 or len(shape) < 2):
            raise DeviceFault("bad-operand", f"{label}: TILE takes two or more dimensions and no fp8_e4m3")
        buffer = self._dram.allocate(packed_bytes(shape, dtype, layout), label)
        self._log.note("allocations")
        return SimTensor(shape, dtype, layout, buffer)
