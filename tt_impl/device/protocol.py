"""What the decoder needs of a device, named and shaped like ttnn. Types only.

Differences from ttnn, all deliberate: leading dimensions of 1 are dropped from shapes; `linear` takes weights in the
checkpoint's order [out, in] (ttnn's `transpose_b=True`); every tensor carries a label, an identity and a generation; and a
read returns a handle that knows whether it has settled.

Layouts. ROW_MAJOR is the array's own bytes. TILE cuts the last two dimensions, padded with zeros, into 32x32 tiles, each
stored as four 16x16 faces (top left, top right, bottom left, bottom right). FP8_E4M3 is ROW_MAJOR only and no op takes it.
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
        host: the numpy dtype that has exactly its bits; fp8 travels as raw bytes.
        item_bytes: of one element.
    """

    BFLOAT16 = ("bfloat16", np.dtype(bfloat16))
    FLOAT32 = ("float32", np.dtype(np.float32))
    FP8_E4M3 = ("fp8_e4m3", np.dtype(np.uint8))
    UINT8 = ("uint8", np.dtype(np.uint8))
    INT32 = ("int32", np.dtype(np.int32))
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
    """A mark in the command queue."""

    @property
    def reached(self) -> bool: ...


class Device(Protocol):
    """One opened card with one in-order asynchronous command queue.

    Every call but `synchronize_device`, `event_synchronize` and a blocking read only enqueues. All raise
    `DeviceFault`: `use-after-free` for a deallocated operand, `out-of-memory` when an output does not fit,
    `bad-operand` for a shape, dtype or layout the op does not take, `closed` after `close`.
    """

    @property
    def event_number(self) -> int:
        """How many events (allocations, transfers, ops, synchronizations, ...) the device has logged since it was opened."""
        ...

    def event_counts(self) -> Mapping[str, int]:
        """Every counter of the event log, since the device was opened."""
        ...

    def get_memory_view(self) -> MemoryView: ...

    def close(self) -> None: ...

    # Memory and transfers

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> Tensor:
        """A new tensor; its content is poison until written."""
        ...

    def deallocate(self, tensor: Tensor) -> None:
        """Free it; work already enqueued may still use it. Raises DeviceFault("double-free")."""
        ...

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor) -> None:
        """Enqueue a write of `array` (the tensor's shape and dtype; uint8 for FP8_E4M3). `array` may change afterwards."""
        ...

    def copy_device_to_host_tensor(self, tensor: Tensor, destination: Bytes | None = None, *, blocking: bool) -> ReadHandle:
        """Enqueue a read of the packed bytes into `destination` (allocated when None).

        `destination` is overwritten with poison at once and with the bytes when the read settles; a blocking read settles
        before the call returns, and with it everything enqueued before it.
        """
        ...

    def record_event(self) -> Event: ...

    def event_synchronize(self, event: Event) -> None:
        """Block until everything enqueued before `event` has run and settled."""
        ...

    def synchronize_device(self) -> None:
        """Block until everything enqueued has run and settled."""
        ...

    # Ops. R rows, C columns, H query heads, G key/value heads, D head size.

    def embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        """ids UINT32 ROW_MAJOR [1, R], weight ROW_MAJOR [V, C] -> TILE [R, C]."""
        ...

    def typecast(self, x: Tensor, dtype: DType) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
        """x TILE [R, C], weight [1, C] -> x's dtype [R, C]; each row normalized by itself."""
        ...

    def linear(self, x: Tensor, weight: Tensor, *, dtype: DType | None = None) -> Tensor:
        """x TILE [R, in], weight TILE [out, in] -> [R, out] in `dtype` (x's when None)."""
        ...

    def matmul(self, a: Tensor, b: Tensor, *, dtype: DType) -> Tensor:
        """a TILE [R, K], b TILE [K, C] -> [R, C] in `dtype`."""
        ...

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Elementwise; equal shapes and dtypes."""
        ...

    def swiglu(self, x: Tensor) -> Tensor:
        """x TILE [R, 2C] -> x[:, :C] * silu(x[:, C:]): ttnn applies SiLU to the second half."""
        ...

    def concat_rows(self, tensors: Sequence[Tensor]) -> Tensor:
        """TILE [1, C] each -> TILE [n, C]: `ttnn.concat(..., dim=-2)`."""
        ...

    def nlp_create_qkv_heads_decode(self, x: Tensor, *, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """x TILE [1, (H + 2G) * D], query rows first, then key, then value -> TILE [H, D], [G, D], [G, D]."""
        ...

    def nlp_concat_heads_decode(self, x: Tensor) -> Tensor:
        """x TILE [H, D] -> TILE [1, H * D]."""
        ...

    def rotary_embedding(self, x: Tensor, cos: Tensor, sin: Tensor, *, token_index: int) -> Tensor:
        """NeoX RoPE of x TILE [H, D] by row `token_index` of cos and sin TILE [positions, D]."""
        ...

    def paged_update_cache(self, cache: Tensor, x: Tensor, *, update_idxs_tensor: Tensor, page_table: Tensor) -> None:
        """Write x TILE [G, D] at a position into cache TILE [blocks, G, block size, D].

        `update_idxs_tensor` INT32 ROW_MAJOR [1, 1] holds the position, `page_table` INT32 ROW_MAJOR [1, n] the physical
        block of each logical one. Raises DeviceFault("page-table") at execution for an entry that is no block.
        """
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
        """Attention of one query position over the paged cache -> TILE [H, D].

        The query at position i sees j <= i, and with a window also i - j < `sliding_window_size`: its own position counts.
        Query head a uses key/value head a // (H / G).
        """
        ...
