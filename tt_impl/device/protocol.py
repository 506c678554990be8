"""What the decoder needs of a device, named and shaped like ttnn. Types only.

Differences from ttnn, all deliberate: leading dimensions of 1 are dropped from shapes; `linear` takes weights in the
checkpoint's order [out, in] (ttnn's `transpose_b=True`); every tensor carries a label, an identity and a generation; and a
read returns a handle that knows whether it has settled.

Layouts. ROW_MAJOR is the array's own bytes. TILE cuts the last two dimensions, padded with zeros, into 32x32 tiles, each
stored as four 16x16 faces (top left, top right, bottom left, bottom right). FP8_E4M3 is ROW_MAJOR only and no op takes it.
BFLOAT8_B is TILE only: each tile is 64 shared exponents, one for each face row of 16, and then 1,024 bytes of sign and
7-bit mantissa.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

Bytes = npt.NDArray[np.uint8]
HostArray = npt.NDArray[Any]

TILE_SIDE = 32
FACE_SIDE = 16


class DType(Enum):
    """Element types.

    Attributes:
        label: as ttnn spells it, in lower case.
        host: the numpy dtype that has exactly its bits; fp8 travels as raw bytes, bfloat8_b as float32 values.
        item_bytes: of one element as the host holds it. Of a device tensor's bytes `sim.layout.packed_bytes` speaks.
    """

    BFLOAT16 = ("bfloat16", np.dtype(bfloat16))
    FLOAT32 = ("float32", np.dtype(np.float32))
    FP8_E4M3 = ("fp8_e4m3", np.dtype(np.uint8))
    BFLOAT8_B = ("bfloat8_b", np.dtype(np.float32))
    UINT8 = ("uint8", np.dtype(np.uint8))
    INT32 = ("int32", np.dtype(np.int32))
    UINT16 = ("uint16", np.dtype(np.uint16))
    UINT32 = ("uint32", np.dtype(np.uint32))

    def __init__(self, label: str, host: np.dtype[Any]) -> None:
        self.label = label
        self.host = host
        self.item_bytes = host.itemsize

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python call, on every op's path


class Layout(Enum):
    ROW_MAJOR = "row_major"
    TILE = "tile"

    __hash__ = object.__hash__


@dataclass(frozen=True)
class MemoryView:
    """DRAM in bytes: as `ttnn.get_memory_view`, summed over banks."""

    total_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int


class Tensor(Protocol):
    """A tensor in device DRAM.

    Attributes:
        identity: unique for the device's lifetime; a new tensor at an old address has a new identity.
        generation: how often its bytes have changed on the device so far.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def label(self) -> str: ...
    @property
    def identity(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def is_allocated(self) -> bool: ...


class ReadHandle(Protocol):
    """A device-to-host transfer. Its destination holds poison until the transfer has settled."""

    @property
    def settled(self) -> bool: ...

    @property
    def event(self) -> int:
        """The device's event number at which it settled. Raises DeviceFault("unsettled-read") before."""
        ...

    def bytes(self) -> Bytes:
        """The tensor's packed bytes, in its layout. Raises DeviceFault("unsettled-read") before it has settled."""
        ...

    def array(self) -> HostArray:
        """The same, unpacked to the tensor's shape. Raises DeviceFault("unsettled-read") before it has settled."""
        ...


class Event(Protocol):
    """A mark in a command queue."""

    @property
    def reached(self) -> bool: ...


class Trace(Protocol):
    """A captured sequence of ops; valid until `release_trace`.

    Attributes:
        identity: counts the traces of a device, from 1.
    """

    @property
    def identity(self) -> int: ...


@dataclass(frozen=True)
class CaptureRecord:
    """What a device noted of a captured trace, or of several that are alike.

    Attributes:
        calls: what it was asked for between begin and end, by name, and how often, sorted: `op.NAME` for an op, and
            `deallocate`, which is let in too.
        replays: how often the trace was executed, or all of them together.
        operands: labels of the tensors that its ops take, those of its own outputs among them, sorted.
        changed: of them, those that the host wrote after the capture and before a replay, sorted.
        alike: how many traces.
    """

    calls: tuple[tuple[str, int], ...]
    replays: int
    operands: tuple[str, ...]
    changed: tuple[str, ...]
    alike: int = 1


class Device(Protocol):
    """One opened card with one or two in-order asynchronous command queues. Ops run on queue 0.

    Every call but `synchronize_device`, `event_synchronize`, a blocking read and a blocking `execute_trace` only enqueues.
    Between queues nothing is ordered but by `wait_for_event`. All raise `DeviceFault`: `use-after-free` for a deallocated
    operand, `out-of-memory` when an output does not fit, `bad-operand` for a shape, dtype or layout the op does not take,
    `bad-queue` for a queue the device was not opened with, `closed` after `close`.
    """

    @property
    def event_number(self) -> int:
        """How many events (allocations, transfers, ops, synchronizations, ...) the device has logged since it was opened."""
        ...

    def event_counts(self) -> Mapping[str, int]:
        """Every counter of the event log, since the device was opened."""
        ...

    def record_ops(self, on: bool) -> None:
        """Begin or stop keeping, of each op, its name and the labels of its operands in the order of its parameters."""
        ...

    def recorded_ops(self) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Take what was kept since recording began or it was last taken, in the order of calls; replayed ops too."""
        ...

    def captures(self) -> Sequence[CaptureRecord]:
        """What was noted of captures since `forget_captures`."""
        ...

    def forget_captures(self) -> None: ...

    def get_memory_view(self) -> MemoryView: ...

    def close(self) -> None: ...

    # Memory and transfers

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> Tensor:
        """A new tensor; its content is poison until written."""
        ...

    def deallocate(self, tensor: Tensor) -> None:
        """Free it; work already enqueued may still use it. Raises DeviceFault("double-free")."""
        ...

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, *, cq_id: int = 0) -> None:
        """Enqueue a write of `array` (the tensor's shape and dtype; uint8 for FP8_E4M3). `array` may change afterwards."""
        ...

    def copy_device_to_host_tensor(
        self, tensor: Tensor, destination: Bytes | None = None, *, blocking: bool, cq_id: int = 0
    ) -> ReadHandle:
        """Enqueue a read of the packed bytes into `destination` (allocated when None).

        `destination` is overwritten with poison at once and with the bytes when the read settles; a blocking read settles
        before the call returns, and with it everything enqueued on its queue before it.
        """
        ...

    def record_event(self, *, cq_id: int = 0) -> Event: ...

    def wait_for_event(self, event: Event, *, cq_id: int) -> None:
        """Queue `cq_id` runs nothing enqueued from here on before `event`, of either queue, is reached. The host goes on."""
        ...

    def event_synchronize(self, event: Event) -> None:
        """Block until everything enqueued before `event` on its queue has run and settled."""
        ...

    def synchronize_device(self, *, cq_id: int | None = None) -> None:
        """Block until everything enqueued on a queue (on all when None) has run and settled."""
        ...

    # Trace

    def begin_trace_capture(self, *, cq_id: int = 0) -> Trace:
        """From here on ops are recorded and not run; their outputs are allocated, and stay the trace's.

        Until `end_trace_capture`, `allocate_tensor_on_device`, host reads and writes, and synchronizations raise
        DeviceFault("trace-capture"), and so does a second capture.
        """
        ...

    def end_trace_capture(self, trace: Trace, *, cq_id: int = 0) -> None: ...

    def execute_trace(self, trace: Trace, *, cq_id: int = 0, blocking: bool) -> None:
        """Enqueue every op of the trace over what its buffers hold when they run. Raises DeviceFault("trace-released")."""
        ...

    def release_trace(self, trace: Trace) -> None:
        """Give the trace up, and the memory of its own outputs. Raises DeviceFault("trace-released") the second time."""
        ...

    # Ops. B users (sequences, one position each), R rows, C columns, H query heads, G key/value heads, D head size.

    def embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        """ids UINT32 ROW_MAJOR [1, R], weight ROW_MAJOR [V, C] -> TILE [R, C], rows bit for bit."""
        ...

    def typecast(self, x: Tensor, dtype: DType) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
        """x TILE [..., C], weight ROW_MAJOR or TILE [1, C] -> x's dtype and shape; each row normalized by itself."""
        ...

    def linear(self, x: Tensor, weight: Tensor, *, dtype: DType | None = None) -> Tensor:
        """x TILE [R, in], weight TILE [out, in] -> [R, out] in `dtype` (x's when None; FLOAT32 and BFLOAT16)."""
        ...

    def matmul(self, a: Tensor, b: Tensor, *, dtype: DType, output: Tensor | None = None) -> Tensor:
        """a TILE [R, K], b TILE [K, C] -> [R, C] in `dtype`; into `output`, of just that kind, where it is given."""
        ...

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Elementwise; TILE, equal shapes and dtypes."""
        ...

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """As `add`."""
        ...

    def silu(self, x: Tensor) -> Tensor:
        """x TILE -> x * sigmoid(x)."""
        ...

    def sigmoid(self, x: Tensor) -> Tensor:
        """x TILE -> 1 / (1 + exp(-x))."""
        ...

    def swiglu(self, x: Tensor) -> Tensor:
        """x TILE [R, 2C] -> x[:, :C] * silu(x[:, C:]): ttnn applies SiLU to the second half."""
        ...

    def concat_rows(self, tensors: Sequence[Tensor]) -> Tensor:
        """TILE [R, C] each, of equal C -> TILE [sum of R, C]: `ttnn.concat(..., dim=-2)`."""
        ...

    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """x TILE [R, C] -> values TILE [R, k], falling, and their columns TILE [R, k]: UINT16 from BFLOAT16, UINT32 from
        FLOAT32. Which of equal values comes first is not specified (the simulated card's: the lowest column)."""
        ...

    def gather(self, x: Tensor, index: Tensor) -> Tensor:
        """x TILE [R, C], index TILE UINT16 or UINT32 [R, k] -> x's dtype [R, k]: `ttnn.gather(x, -1, index)`."""
        ...

    def argmax(self, x: Tensor) -> Tensor:
        """x TILE [R, C] -> UINT32 ROW_MAJOR [1, R]: the lowest column of each row's largest value."""
        ...

    def nlp_create_qkv_heads_decode(self, x: Tensor, *, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """x TILE [B, (H + 2G) * D], query rows first, then key, then value -> TILE [B, H, D], [B, G, D], [B, G, D]."""
        ...

    def nlp_concat_heads_decode(self, x: Tensor) -> Tensor:
        """x TILE [B, H, D] -> TILE [B, H * D]."""
        ...

    def rotary_embedding_hf(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """NeoX RoPE of x TILE [B, H, D] by each user's row of cos and sin, TILE [B, D]."""
        ...

    def paged_update_cache(self, cache: Tensor, x: Tensor, *, update_idxs_tensor: Tensor, page_table: Tensor) -> None:
        """Write x TILE [B, G, D], one position of each user, into cache TILE [blocks, G, block size, D].

        `update_idxs_tensor` INT32 ROW_MAJOR [1, B] holds the positions (-1: none), `page_table` INT32 ROW_MAJOR [B, n] the
        physical block of each logical one. Raises DeviceFault("page-table") at execution for an entry that is no block.
        """
        ...

    def paged_fill_cache(self, cache: Tensor, x: Tensor, *, page_table: Tensor, batch_idx: int) -> None:
        """Write x TILE [G, T, D], of cache's dtype, to positions 0 to T - 1 of user `batch_idx`; otherwise as above."""
        ...

    def paged_scaled_dot_product_attention_decode(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        page_table: Tensor,
        cur_pos_tensor: Tensor,
        scale: float,
        sliding_window_size: int | None,
    ) -> Tensor:
        """Attention of one query position of each user over the paged cache: q TILE [B, H, D] -> TILE [B, H, D].

        `cur_pos_tensor` INT32 ROW_MAJOR [1, B]; a user at -1 is skipped and its rows are not specified. The query at
        position i sees j <= i, and with a window also i - j < `sliding_window_size`: its own position counts. Query head a
        uses key/value head a // (H / G).
        """
        ...
