"""Reads on their way from ttnn, and which of them have settled."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from oracle.errors import DeviceFault
from tt_impl.device.host_read import HostRead
from tt_impl.device.protocol import Bytes, DType, HostArray, Layout
from tt_impl.device.sim.layout import unpack
from tt_impl.device.ttnn.held import packed_host_bytes

_HELD_WRITES = 1 << 30
"""Bytes of written host tensors that are kept until something settles; then the host waits once."""


class TtnnReadHandle(HostRead):
    """A transfer from a device tensor; see `protocol.ReadHandle`."""

    def __init__(self, label: str, shape: tuple[int, ...], dtype: DType, layout: Layout, destination: Bytes) -> None:
        super().__init__(label, destination)
        self._shape, self._dtype, self._layout = shape, dtype, layout

    def settle(self, data: Bytes, event: int) -> None:
        """The bytes have arrived: into the destination with them."""
        destination = self.destination
        assert destination is not None  # given at the start
        if data.shape != destination.shape:
            raise DeviceFault("short-read", f"the read of {self.label} brought {data.size} bytes, expected {destination.size}")
        destination[:] = data
        self._event = event

    def array(self) -> HostArray:
        return unpack(self.bytes(), self._shape, self._dtype, self._layout)


class TtnnEvent:
    """A mark behind the `position`-th transfer of queue `cq_id`; see `protocol.Event`."""

    def __init__(self, flights: Flights, cq_id: int, position: int, event: Any) -> None:
        self._flights = flights
        self.cq_id, self.position, self.event = cq_id, position, event

    @property
    def reached(self) -> bool:
        return self._flights.settled(self.cq_id) >= self.position


class Flights:
    """Host tensors of transfers under way, by queue: ttnn fills or reads their memory until the queue has come that far."""

    def __init__(self, ttnn: Any, queues: int) -> None:
        self._ttnn = ttnn
        self._flying: list[deque[tuple[int, Any, TtnnReadHandle | None]]] = [deque() for _ in range(queues)]
        self._enqueued = [0] * queues
        self._settled = [0] * queues
        self._written = 0

    def take_off(self, cq_id: int, host: Any, handle: TtnnReadHandle | None = None, nbytes: int = 0) -> bool:
        """Keep `host`. True when so much is kept that the queue should be waited for."""
        self._enqueued[cq_id] += 1
        self._flying[cq_id].append((self._enqueued[cq_id], host, handle))
        self._written += nbytes
        return self._written > _HELD_WRITES

    def mark(self, cq_id: int) -> int:
        """Count an event of the queue."""
        self._enqueued[cq_id] += 1
        return self._enqueued[cq_id]

    def settled(self, cq_id: int) -> int:
        return self._settled[cq_id]

    def land(self, cq_id: int, event: int, position: int | None = None) -> None:
        """The queue has come to `position` (to its end when None), as the device's event number `event`."""
        position = self._enqueued[cq_id] if position is None else position
        flying = self._flying[cq_id]
        while flying and flying[0][0] <= position:
            _, host, handle = flying.popleft()
            if handle is not None:
                handle.settle(np.asarray(packed_host_bytes(self._ttnn, host)), event)
        self._settled[cq_id] = max(self._settled[cq_id], position)
        if not any(self._flying):
            self._written = 0
