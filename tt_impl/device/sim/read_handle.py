"""A device-to-host transfer on its way."""

from __future__ import annotations

from oracle.errors import DeviceFault
from tt_impl.device.host_read import HOST_POISON, HostRead
from tt_impl.device.protocol import Bytes, DType, HostArray, Layout
from tt_impl.device.sim.buffer import Buffer, FaultMaker
from tt_impl.device.sim.fp8 import through_float32
from tt_impl.device.sim.layout import unpack


class SimReadHandle(HostRead):
    """See `protocol.ReadHandle`. Its bytes are in flight from when its command has run until it settles.

    Args:
        destination: where they arrive, poison until then; memory of its own when None.
        enqueued: the event number of the read.
        flushes_fp8: `array` converts fp8 through float32, and loses its subnormals.

    Attributes:
        held: by how many settlings it is late.
        dropped: it settles, but nothing arrives.
    """

    def __init__(
        self,
        source: Buffer,
        shape: tuple[int, ...],
        dtype: DType,
        layout: Layout,
        destination: Bytes | None,
        enqueued: int,
        fault: FaultMaker,
        *,
        flushes_fp8: bool,
    ) -> None:
        super().__init__(source.label, destination)
        self._source, self._shape, self._dtype, self._layout = source, shape, dtype, layout
        self._enqueued = enqueued
        self._fault = fault
        self._flushes_fp8 = flushes_fp8
        self._in_flight: Bytes | None = None
        self.held = 0
        self.dropped = False

    def take_off(self) -> Bytes:
        """The read command runs: the device's bytes of this moment are on their way; they are returned."""
        self._in_flight = self._source.bytes.copy()
        return self._in_flight

    def settle(self, event: int) -> None:
        """The bytes arrive."""
        assert self._in_flight is not None, "settled before its command ran"
        if self.destination is None:  # the caller gave none, so nobody has seen it yet
            self.destination = self._in_flight
            if self.dropped:
                self.destination.fill(HOST_POISON)
        elif not self.dropped:
            self.destination[:] = self._in_flight
        self._in_flight = None
        self._event = event

    def array(self) -> HostArray:
        data = self.bytes()
        if self._flushes_fp8 and self._dtype is DType.FP8_E4M3:
            data = through_float32(data)
        return unpack(data, self._shape, self._dtype, self._layout)

    def _unsettled(self) -> DeviceFault:
        return self._fault(
            "unsettled-read",
            f"copy_device_to_host_tensor of {self._source}, enqueued at event {self._enqueued}, was used before anything "
            "settled it",
        )
