"""The simulated card without its ops: tensors, transfers, queues and traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from oracle.errors import DeviceFault, UsageError
from tt_impl.device.logged import Logged
from tt_impl.device.protocol import Bytes, DType, Event, HostArray, Layout, MemoryView, Tensor, Trace
from tt_impl.device.sim.buffer import Buffer
from tt_impl.device.sim.cost import CostModel, ModelledTime
from tt_impl.device.sim.dram import Dram
from tt_impl.device.sim.event_log import EventLog
from tt_impl.device.sim.faults import FaultPlan
from tt_impl.device.sim.geometry import SMALL, DramGeometry, one_bank
from tt_impl.device.sim.injector import FaultInjector
from tt_impl.device.sim.layout import pack, packed_bytes, page_bytes
from tt_impl.device.sim.queue import CommandQueues, SimEvent
from tt_impl.device.sim.read_handle import SimReadHandle
from tt_impl.device.sim.schedule import LazySchedule, Schedule
from tt_impl.device.sim.tensor import SimTensor
from tt_impl.device.sim.trace import SimTrace
from tt_impl.device.sim.tracer import Tracer

_MAX_QUEUES = 2


class SimMachine(Logged):
    """Memory, transfers, synchronization and traces of the simulated card; see `protocol.Device` for what each call does.

    A write packs its array when it is enqueued, so the host may change it afterwards; real drivers may copy later, and a
    decoder must not rely on more than this one grants.

    Args:
        dram: its banks.
        dram_bytes: one bank of so many bytes in place of `dram`.
        schedule: when enqueued commands run; `LazySchedule` when None.
        faults: what goes wrong by itself; nothing when None. Kept as an attribute.
        command_queues: 1 or 2.
        flushes_fp8_subnormals: a quirk: an fp8 read-back's `array` is converted on the way; its `bytes` are not.
        cost: of `modelled_time`.
    """

    def __init__(
        self,
        *,
        dram: DramGeometry = SMALL,
        dram_bytes: int | None = None,
        schedule: Schedule | None = None,
        faults: FaultPlan | None = None,
        command_queues: int = _MAX_QUEUES,
        flushes_fp8_subnormals: bool = False,
        cost: CostModel | None = None,
    ) -> None:
        if not 1 <= command_queues <= _MAX_QUEUES:
            raise UsageError(f"command_queues is {command_queues}; a device has 1 or {_MAX_QUEUES}")
        self._schedule = schedule or LazySchedule()
        geometry = dram if dram_bytes is None else one_bank(dram_bytes)
        self._dram = Dram(geometry, self._fault, latest=self._schedule.latest_address)
        self._queue = CommandQueues(self._schedule, command_queues, self._placed)
        self._log = EventLog()
        self._tracer = Tracer(self._dram, self._queue, self._log, self._fault, self._reclaim)
        self._flushes_fp8 = flushes_fp8_subnormals
        self._cost = cost or CostModel()
        self.faults = faults or FaultPlan()
        self._injector: FaultInjector | None = None
        if self.faults.faults:
            self._injector = self._log.injector = FaultInjector(self.faults, self._dram, self._queue)

    @property
    def schedule(self) -> str:
        """The name that gives this device's schedule again."""
        return self._schedule.name

    @property
    def faults_struck(self) -> tuple[int, ...]:
        """For each fault of the plan, how often it has happened so far."""
        return tuple(self._injector.struck) if self._injector is not None else ()

    @property
    def cost_model(self) -> CostModel:
        """By which it reckons time."""
        return self._cost

    def modelled_time(self) -> ModelledTime:
        """Of everything since the device was opened, by its cost model; `CostModel.time` gives that of a part."""
        return self._cost.time(self.event_counts())

    def get_memory_view(self) -> MemoryView:
        return self._dram.view()

    def close(self) -> None:
        self._queue.closed = True

    # Memory and transfers

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> SimTensor:
        self._enter("allocate_tensor_on_device")
        return self._allocate(tuple(shape), dtype, layout, label)

    def deallocate(self, tensor: Tensor) -> None:
        if self._queue.closed:
            self._queue.refuse_if_closed()
        buffer = self._owned(tensor).buffer
        self._dram.free(buffer, "deallocate", self._log.number + 1)
        self._log.note("deallocations")
        if self._queue.capture is not None:
            self._log.captures.call("deallocate")
        if buffer.owner is None or not self._tracer.keeps(buffer):
            self._reclaim(buffer)

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, *, cq_id: int = 0) -> None:
        op = "copy_host_to_device_tensor"
        self._enter(op)
        target = self._live(tensor, op, self._checked(cq_id))
        if array.shape != target.shape or array.dtype != target.dtype.host:
            raise DeviceFault(
                "bad-operand",
                f"{op}: {target.label} is {target.dtype.label} {list(target.shape)}, "
                f"the array {array.dtype} {list(array.shape)}",
            )
        packed = pack(array, target.layout, target.dtype)
        buffer, injector = target.buffer, self._injector

        def land() -> None:
            buffer.bytes[:] = packed
            buffer.changed()

        def run() -> None:
            buffer.host_writes += 1
            if injector is None:
                land()
            else:
                injector.write(buffer, land, cq_id)

        self._log.note_write(packed.size, target)
        self._queue.enqueue(run, cq_id)

    def copy_device_to_host_tensor(
        self, tensor: Tensor, destination: Bytes | None = None, *, blocking: bool, cq_id: int = 0
    ) -> SimReadHandle:
        op = "copy_device_to_host_tensor"
        self._enter(op)
        source = self._live(tensor, op, self._checked(cq_id))
        buffer, injector = source.buffer, self._injector
        if destination is not None and (destination.shape != (buffer.nbytes,) or destination.dtype != np.uint8):
            raise DeviceFault("bad-operand", f"reading {source.label} takes a uint8 vector of {buffer.nbytes} bytes")
        self._log.note_read(buffer.nbytes, blocking=blocking)
        handle = SimReadHandle(
            buffer,
            source.shape,
            source.dtype,
            source.layout,
            destination,
            self._log.number,
            self._fault,
            flushes_fp8=self._flushes_fp8,
        )

        def run() -> None:
            buffer.host_reads += 1
            if injector is None:
                handle.take_off()
            else:
                injector.read(buffer, handle)

        self._queue.enqueue_read(handle, run, cq_id)
        if blocking:
            self._settle({cq_id: self._queue.tails[cq_id]}, op)
        return handle

    # Synchronization

    def record_event(self, *, cq_id: int = 0) -> SimEvent:
        self._enter("record_event")
        self._log.note("events_recorded")
        return self._queue.mark(self._checked(cq_id))

    def wait_for_event(self, event: Event, *, cq_id: int) -> None:
        self._enter("wait_for_event")
        mark = self._own_event(event, "wait_for_event")
        self._log.note("events_awaited")
        self._queue.wait(mark, self._checked(cq_id))

    def event_synchronize(self, event: Event) -> None:
        self._enter("event_synchronize")
        mark = self._own_event(event, "event_synchronize")
        self._log.note_wait("event_synchronizes")
        self._settle({mark.cq_id: mark.position}, "event_synchronize", drain=True)

    def synchronize_device(self, *, cq_id: int | None = None) -> None:
        self._enter("synchronize_device")
        tails = self._queue.tails
        goals = dict(enumerate(tails[: self._queue.count])) if cq_id is None else {self._checked(cq_id): tails[cq_id]}
        self._log.note_wait("synchronizes")
        self._settle(goals, "synchronize_device", drain=True)

    # Traces

    def begin_trace_capture(self, *, cq_id: int = 0) -> SimTrace:
        self._ops_queue(cq_id, "begin_trace_capture")
        return self._tracer.begin()

    def end_trace_capture(self, trace: Trace, *, cq_id: int = 0) -> None:
        self._ops_queue(cq_id, "end_trace_capture")
        self._tracer.end(trace)

    def execute_trace(self, trace: Trace, *, cq_id: int = 0, blocking: bool) -> None:
        self._ops_queue(cq_id, "execute_trace")
        self._tracer.execute(trace, blocking=blocking)
        if blocking:
            self._settle({0: self._queue.tails[0]}, "execute_trace")

    def release_trace(self, trace: Trace) -> None:
        self._queue.refuse_if_closed()
        self._tracer.release(trace)

    def poke(self, tensor: Tensor, offset: int, data: bytes) -> None:
        """Change device bytes behind the decoder's back, at once: for tests and mutation campaigns.

        Raises:
            DeviceFault: `out-of-bounds`. What writes past a buffer is planted with `faults.Overwrite`.
        """
        buffer = self._live(tensor, "poke").buffer
        if offset < 0 or offset + len(data) > buffer.nbytes:
            raise self._fault(
                "out-of-bounds", f"poke of {len(data)} bytes at offset {offset} of {buffer}, which has {buffer.nbytes}"
            )
        buffer.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        buffer.changed()

    # Below all of them

    def _live(self, tensor: Tensor, op: str, cq_id: int = 0) -> SimTensor:
        """`tensor`, which `op`, enqueued on `cq_id` next, uses."""
        if not isinstance(tensor, SimTensor):
            raise DeviceFault("bad-operand", f"{op} of {tensor!r}, which is no tensor of the simulated device")
        buffer = tensor.buffer
        if not buffer.is_allocated:
            raise self._fault("use-after-free", f"{op} of {buffer}, which was deallocated at event {buffer.freed_at}")
        queues = self._queue
        if queues.capture is None:
            buffer.used[cq_id] = queues.tails[cq_id] + 1
        else:
            queues.capture.operands[buffer.identity] = buffer
        return tensor

    def _owned(self, tensor: Tensor) -> SimTensor:
        if not isinstance(tensor, SimTensor):
            raise DeviceFault("bad-operand", f"{tensor!r} is no tensor of the simulated device")
        return tensor

    def _allocate(self, shape: tuple[int, ...], dtype: DType, layout: Layout, label: str) -> SimTensor:
        buffer = self._dram.allocate(*footprint(shape, dtype, layout), label)
        self._log.note("allocations")
        return SimTensor(shape, dtype, layout, buffer)

    def _reclaim(self, buffer: Buffer) -> None:
        """Give a freed buffer's addresses back, and poison it as soon as the device is done with it on every queue.

        One that no command uses never held anything: its predecessor, whose work may be going on, leaves poison there.
        """
        self._dram.addresses.give(buffer.address, buffer.share)
        if any(buffer.used):
            self._queue.behind(buffer.used, buffer.poison)

    def _settle(self, goals: dict[int, int], call: str, *, drain: bool = False) -> None:
        self._queue.settle(goals, self._log.number)
        self._dram.sentinels.check_touched(call)
        if drain and self._injector is not None:
            self._injector.drained()

    def _checked(self, cq_id: int) -> int:
        if not 0 <= cq_id < self._queue.count:
            raise self._fault("bad-queue", f"there is no command queue {cq_id}; the device was opened with {self._queue.count}")
        return cq_id

    def _enter(self, call: str) -> None:
        """Refuse what a closed device does not do, nor one that captures a trace."""
        self._queue.refuse_if_closed()
        self._tracer.refuse_in_capture(call)

    def _ops_queue(self, cq_id: int, call: str) -> None:
        self._queue.refuse_if_closed()
        if self._checked(cq_id) != 0:
            raise self._fault("bad-queue", f"{call} on command queue {cq_id}; ops run on queue 0")

    def _own_event(self, event: Event, call: str) -> SimEvent:
        if not isinstance(event, SimEvent):
            raise DeviceFault("bad-operand", f"{call} of {event!r}, which is no event of the simulated device")
        return event

    def _fault(self, kind: str, text: str) -> DeviceFault:
        return DeviceFault(kind, f"{text} [event {self._log.number}, schedule {self._schedule.name}]")

    def _placed(self, fault: DeviceFault) -> DeviceFault:
        """`fault`, with the place that those of `_fault` have."""
        return fault if "[event " in fault.message else self._fault(fault.kind, fault.message)


@lru_cache(maxsize=4096)
def footprint(shape: tuple[int, ...], dtype: DType, layout: Layout) -> tuple[int, int]:
    """Packed bytes of a tensor and of a page of it.

    Raises:
        DeviceFault: `bad-operand`, there is no such tensor.
    """
    if layout is Layout.TILE and (dtype is DType.FP8_E4M3 or len(shape) < 2):
        raise DeviceFault(
            "bad-operand", f"TILE takes two or more dimensions and no fp8_e4m3, this is {dtype.label} {list(shape)}"
        )
    if layout is Layout.ROW_MAJOR and dtype is DType.BFLOAT8_B:
        raise DeviceFault("bad-operand", f"bfloat8_b is TILE only, this is row_major {list(shape)}")
    return packed_bytes(shape, dtype, layout), page_bytes(shape, dtype, layout)
