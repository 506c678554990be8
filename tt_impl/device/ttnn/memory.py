"""The card without its ops: tensors, transfers, events and traces, over ttnn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oracle.errors import DeviceFault, SubjectError
from tt_impl.device.logged import Logged
from tt_impl.device.protocol import Bytes, DType, Event, HostArray, Layout, MemoryView, Tensor, Trace
from tt_impl.device.sim.event_log import EventLog
from tt_impl.device.sim.trace import CapturedOp
from tt_impl.device.ttnn.guards import not_on_mock, refusals
from tt_impl.device.ttnn.held import held_shape, host_tensor, packed_host_bytes, ttnn_dtype, ttnn_layout
from tt_impl.device.ttnn.runtime import open_mesh
from tt_impl.device.ttnn.transfers import Flights, TtnnEvent, TtnnReadHandle

_MOST_DIMENSIONS = 4


class TtnnTensor:
    """A tensor on the card; see `protocol.Tensor`. `value` is ttnn's, of shape `held_shape(shape, dtype, layout)`."""

    def __init__(self, value: Any, shape: tuple[int, ...], dtype: DType, layout: Layout, label: str, identity: int) -> None:
        self.value = value
        self.shape, self.dtype, self.layout = shape, dtype, layout
        self.label, self.identity, self.generation = label, identity, 0
        self.is_allocated = True
        self.trace: TtnnTrace | None = None


class TtnnTrace:
    """A captured sequence; see `protocol.Trace`. `kept` are the buffers that its commands name by address."""

    def __init__(self, identity: int, cq_id: int, handle: Any) -> None:
        self.identity, self.cq_id, self.handle = identity, cq_id, handle
        self.kept: list[Any] = []
        self.outputs: list[TtnnTensor] = []
        self.ops: list[CapturedOp] = []
        self.released = False

    def note_op(self, op: CapturedOp) -> None:
        """It runs again with each replay."""
        self.ops.append(op)

    def lost(self) -> TtnnTensor | None:
        """A tensor from outside that a replay would need and that was deallocated since; its own stay until its release."""
        needed = (tensor for op in self.ops for tensor in op.operands if isinstance(tensor, TtnnTensor))
        return next((tensor for tensor in needed if not tensor.is_allocated and tensor.trace is not self), None)


class TtnnMemory(Logged):
    """Memory, transfers, synchronization and traces of an opened device; see `protocol.Device` for what each call does.

    Args:
        ttnn, mesh: the module, and its device; closed by `close`.
        is_mock: whether it is ttnn's mock device, where every value reads back as zero.

    Attributes:
        ttnn: the module.
    """

    def __init__(self, ttnn: Any, mesh: Any, *, command_queues: int, is_mock: bool) -> None:
        self.ttnn, self._mesh = ttnn, mesh
        self._queues, self._is_mock = command_queues, is_mock
        self._flights = Flights(ttnn, command_queues)
        self._log = EventLog()
        self._identities = 0
        self._traces = 0
        self._capturing: TtnnTrace | None = None
        self._opened = True

    def get_memory_view(self) -> MemoryView:
        """Summed over banks. A buffer takes of every bank what it takes of the fullest."""
        self._require_open()
        view = self.ttnn.get_memory_view(self._mesh, self.ttnn.BufferType.DRAM)
        return MemoryView(
            view.num_banks * view.total_bytes_per_bank,
            view.num_banks * view.total_bytes_allocated_per_bank,
            view.num_banks * view.total_bytes_free_per_bank,
            view.num_banks * view.largest_contiguous_bytes_free_per_bank,
        )

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self.ttnn.close_device(self._mesh)

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> TtnnTensor:
        self._require_no_capture("allocate_tensor_on_device")
        shape = tuple(shape)
        tiled_too_little = layout is Layout.TILE and (dtype is DType.FP8_E4M3 or len(shape) < 2)
        if tiled_too_little or (layout is Layout.ROW_MAJOR and dtype is DType.BFLOAT8_B):
            raise DeviceFault(
                "bad-operand", f"{label}: TILE takes two or more dimensions and no fp8_e4m3; bfloat8_b is TILE only"
            )
        if not 1 <= len(shape) <= _MOST_DIMENSIONS or min(shape) < 1:
            raise DeviceFault("bad-operand", f"{label}: shape {list(shape)} is not of 1 to {_MOST_DIMENSIONS} dimensions")
        with refusals(f"allocate_tensor_on_device {label}"):
            value = self.ttnn.allocate_tensor_on_device(
                self.ttnn.Shape(list(held_shape(shape, dtype, layout))),
                ttnn_dtype(self.ttnn, dtype),
                ttnn_layout(self.ttnn, layout),
                self._mesh,
                self.ttnn.DRAM_MEMORY_CONFIG,
            )
        return self._adopt(value, shape, dtype, layout, label)

    def deallocate(self, tensor: Tensor) -> None:
        self._require_open()
        owned = self._owned(tensor, "deallocate")
        if not owned.is_allocated:
            raise DeviceFault("double-free", f"deallocate of {owned.label} (buffer {owned.identity}), which is free")
        owned.is_allocated = False
        self._log.note("deallocations")
        if self._capturing is not None:
            self._log.captures.call("deallocate")
        if owned.trace is None:
            self.ttnn.deallocate(owned.value)

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, *, cq_id: int = 0) -> None:
        self._require_no_capture("copy_host_to_device_tensor")
        self._require_queue(cq_id)
        target = self._live(tensor, "copy_host_to_device_tensor")
        if array.shape != target.shape or array.dtype != target.dtype.host:
            raise DeviceFault(
                "bad-operand",
                f"copy_host_to_device_tensor: {target.label} is {target.dtype.label} {list(target.shape)}, "
                f"the array {array.dtype} {list(array.shape)}",
            )
        host = host_tensor(self.ttnn, array, target.dtype, target.layout)
        nbytes = packed_host_bytes(self.ttnn, host).size
        with refusals(f"copy_host_to_device_tensor {target.label}"):
            self.ttnn.copy_host_to_device_tensor(host, target.value, cq_id=cq_id)
        target.generation += 1
        self._log.note_write(nbytes, target)
        if self._flights.take_off(cq_id, host, nbytes=nbytes):
            self.ttnn.synchronize_device(self._mesh, cq_id)
            self._flights.land(cq_id, self._log.number)

    def copy_device_to_host_tensor(
        self, tensor: Tensor, destination: Bytes | None = None, *, blocking: bool, cq_id: int = 0
    ) -> TtnnReadHandle:
        self._require_no_capture("copy_device_to_host_tensor")
        self._require_queue(cq_id)
        source = self._live(tensor, "copy_device_to_host_tensor")
        with refusals(f"copy_device_to_host_tensor {source.label}"):
            host = self.ttnn.from_device(source.value, blocking=blocking, queue_id=cq_id)
        nbytes = packed_host_bytes(self.ttnn, host).size
        if destination is None:
            destination = np.empty(nbytes, np.uint8)
        elif destination.shape != (nbytes,) or destination.dtype != np.uint8:
            raise DeviceFault("bad-operand", f"reading {source.label} takes a uint8 vector of {nbytes} bytes")
        handle = TtnnReadHandle(source.label, source.shape, source.dtype, source.layout, destination)
        self._log.note_read(nbytes, blocking=blocking)
        self._flights.take_off(cq_id, host, handle)
        if blocking:
            self._flights.land(cq_id, self._log.number)
        return handle

    def record_event(self, *, cq_id: int = 0) -> TtnnEvent:
        self._require_no_capture("record_event")
        self._require_queue(cq_id)
        self._log.note("events_recorded")
        with refusals("record_event"):
            event = self.ttnn.record_event(self._mesh, cq_id)
        return TtnnEvent(self._flights, cq_id, self._flights.mark(cq_id), event)

    def wait_for_event(self, event: Event, *, cq_id: int) -> None:
        self._require_no_capture("wait_for_event")
        self._require_queue(cq_id)
        mark = self._mark(event, "wait_for_event")
        not_on_mock("wait_for_event", self._is_mock)
        self._log.note("events_awaited")
        with refusals("wait_for_event"):
            self.ttnn.wait_for_event(cq_id, mark.event)

    def event_synchronize(self, event: Event) -> None:
        self._require_no_capture("event_synchronize")
        mark = self._mark(event, "event_synchronize")
        self._log.note_wait("event_synchronizes")
        with refusals("event_synchronize"):
            self.ttnn.event_synchronize(mark.event)
        self._flights.land(mark.cq_id, self._log.number, mark.position)

    def synchronize_device(self, *, cq_id: int | None = None) -> None:
        self._require_no_capture("synchronize_device")
        if cq_id is not None:
            self._require_queue(cq_id)
        self._log.note_wait("synchronizes")
        with refusals("synchronize_device"):
            self.ttnn.synchronize_device(self._mesh, cq_id)
        for queue in range(self._queues) if cq_id is None else (cq_id,):
            self._flights.land(queue, self._log.number)

    def begin_trace_capture(self, *, cq_id: int = 0) -> TtnnTrace:
        """As the protocol says. What the ops hold on the way is kept too: their commands name it by address."""
        self._require_no_capture("begin_trace_capture")
        self._require_queue(cq_id)
        not_on_mock("begin_trace_capture", self._is_mock)
        self._log.note("traces_captured")
        with refusals("begin_trace_capture"):
            handle = self.ttnn.begin_trace_capture(self._mesh, cq_id=cq_id)
        self._traces += 1
        self._capturing = self._log.capture = TtnnTrace(self._traces, cq_id, handle)
        self._log.captures.begin(self._traces)
        return self._capturing

    def end_trace_capture(self, trace: Trace, *, cq_id: int = 0) -> None:
        captured = self._trace(trace, "end_trace_capture")
        if captured is not self._capturing or cq_id != captured.cq_id:
            raise DeviceFault("trace-capture", f"end_trace_capture: trace {captured.identity} is not captured on queue {cq_id}")
        self._capturing = self._log.capture = None
        self._log.captures.end()
        with refusals("end_trace_capture"):
            self.ttnn.end_trace_capture(self._mesh, captured.handle, cq_id=cq_id)

    def execute_trace(self, trace: Trace, *, cq_id: int = 0, blocking: bool) -> None:
        self._require_no_capture("execute_trace")
        self._require_queue(cq_id)
        captured = self._trace(trace, "execute_trace")
        not_on_mock("execute_trace", self._is_mock)
        if (lost := captured.lost()) is not None:
            raise DeviceFault(
                "use-after-free",
                f"execute_trace of trace {captured.identity}: it needs {lost.label} (buffer {lost.identity}), "
                "which was deallocated",
            )
        if blocking:
            self._log.note_wait("traces_executed")
        else:
            self._log.note("traces_executed")
        self._log.captures.replayed(captured.identity)
        with refusals("execute_trace"):
            self.ttnn.execute_trace(self._mesh, captured.handle, cq_id=cq_id, blocking=blocking)
        for op in captured.ops:
            self._log.note_replayed_op(op)
        for tensor in captured.outputs:
            tensor.generation += 1
        if blocking:
            self._flights.land(cq_id, self._log.number)

    def release_trace(self, trace: Trace) -> None:
        self._require_no_capture("release_trace")
        captured = self._trace(trace, "release_trace")
        with refusals("release_trace"):
            self.ttnn.release_trace(self._mesh, captured.handle)
        captured.released = True
        self._log.note("traces_released")
        self._log.captures.released(captured.identity)
        for tensor in captured.outputs:
            tensor.is_allocated = False
        for value in captured.kept:
            self.ttnn.deallocate(value)
        captured.kept.clear()

    # What ops are made of

    def _adopt(self, value: Any, shape: tuple[int, ...], dtype: DType, layout: Layout, label: str) -> TtnnTensor:
        self._log.note("allocations")
        self._identities += 1
        tensor = TtnnTensor(value, shape, dtype, layout, label, self._identities)
        if self._capturing is not None:
            tensor.trace = self._capturing
            self._capturing.outputs.append(tensor)
            self._capturing.kept.append(value)
        return tensor

    def _live(self, tensor: Tensor, call: str) -> TtnnTensor:
        self._require_open()
        owned = self._owned(tensor, call)
        if not owned.is_allocated:
            raise DeviceFault("use-after-free", f"{call} of {owned.label} (buffer {owned.identity}), which was deallocated")
        return owned

    def _owned(self, tensor: Tensor, call: str) -> TtnnTensor:
        if not isinstance(tensor, TtnnTensor):
            raise DeviceFault("bad-operand", f"{call} of {tensor!r}, which is no tensor of this device")
        return tensor

    def _mark(self, event: Event, call: str) -> TtnnEvent:
        if not isinstance(event, TtnnEvent):
            raise DeviceFault("bad-operand", f"{call} of {event!r}, which is no event of this device")
        return event

    def _trace(self, trace: Trace, call: str) -> TtnnTrace:
        self._require_open()
        if not isinstance(trace, TtnnTrace):
            raise DeviceFault("bad-operand", f"{call} of {trace!r}, which is no trace of this device")
        if trace.released:
            raise DeviceFault("trace-released", f"{call} of trace {trace.identity}, which was released")
        return trace

    def _require_queue(self, cq_id: int) -> None:
        if not 0 <= cq_id < self._queues:
            raise DeviceFault("bad-queue", f"queue {cq_id}: the device was opened with {self._queues}")

    def _require_open(self) -> None:
        if not self._opened:
            raise DeviceFault("closed", "the device was closed; open a new one")

    def _require_no_capture(self, call: str) -> None:
        self._require_open()
        if self._capturing is not None:
            raise DeviceFault("trace-capture", f"{call} while trace {self._capturing.identity} is captured")


def opened_parts(*, command_queues: int, mock: bool) -> tuple[Any, Any]:
    """ttnn and its opened device, for one or two queues. Raises SubjectError as `runtime.open_mesh` says."""
    if command_queues not in (1, 2):
        raise SubjectError(f"a device has 1 or 2 command queues, not {command_queues}")
    return open_mesh(command_queues=command_queues, mock=mock)
