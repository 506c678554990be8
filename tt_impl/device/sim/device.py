"""The ops of the simulated card: each checks its operands, allocates its output and enqueues its kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.errors import DeviceFault
from tt_impl.device.protocol import FACE_SIDE, TILE_SIDE, DType, Layout, Tensor
from tt_impl.device.sim import kernels
from tt_impl.device.sim.kernels import Float32
from tt_impl.device.sim.layout import face_rows, unpack
from tt_impl.device.sim.memory import SimMemory, SimTensor


class SimDevice(SimMemory):
    """A simulated Blackhole; implements `protocol.Device`. Rounding is stated in `kernels`, per op."""

    def embedding(self, ids: Tensor, weight: Tensor) -> SimTensor:
        """Rows copied bit for bit."""
        _require("embedding", ids.dtype is DType.UINT32 and ids.layout is Layout.ROW_MAJOR, ids)
        _require("embedding", weight.layout is Layout.ROW_MAJOR, weight)
        rows, columns = weight.shape
        out = self._output("embedding", (ids, weight), (ids.shape[-1], columns), weight.dtype)

        def run() -> None:
            wanted = self._raw_array(ids).reshape(-1)
            if wanted.max() >= rows:
                raise DeviceFault("embedding-index", f"embedding: id {wanted.max()} in a table of {rows} rows")
            self._store(out, self._raw_array(weight)[wanted])

        self._queue.enqueue(run)
        return out

    def typecast(self, x: Tensor, dtype: DType) -> SimTensor:
        """To nearest, ties to even."""
        out = self._output("typecast", (x,), x.shape, dtype)
        self._queue.enqueue(lambda: self._store(out, self._load(x)))
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, *, epsilon: float) -> SimTensor:
        _require("rms_norm", weight.shape == (1, x.shape[-1]), x, weight)
        out = self._output("rms_norm", (x, weight), x.shape, x.dtype)
        self._queue.enqueue(lambda: self._store(out, kernels.rms_norm(self._load(x), self._load(weight), epsilon, out.dtype)))
        return out

    def linear(self, x: Tensor, weight: Tensor, *, dtype: DType | None = None) -> SimTensor:
        _require("linear", x.layout is weight.layout is Layout.TILE and x.shape[-1] == weight.shape[-1], x, weight)
        out = self._output("linear", (x, weight), (x.shape[0], weight.shape[0]), dtype or x.dtype)
        self._queue.enqueue(lambda: self._store(out, kernels.linear(self._load(x), self._load(weight))))
        return out

    def matmul(self, a: Tensor, b: Tensor, *, dtype: DType) -> SimTensor:
        _require("matmul", a.layout is b.layout is Layout.TILE and a.shape[-1] == b.shape[0], a, b)
        out = self._output("matmul", (a, b), (a.shape[0], b.shape[1]), dtype)
        self._queue.enqueue(lambda: self._store(out, kernels.matmul(self._load(a), self._load(b))))
        return out

    def add(self, a: Tensor, b: Tensor) -> SimTensor:
        """Float32 sum, rounded at store only."""
        _require("add", a.shape == b.shape and a.dtype is b.dtype, a, b)
        out = self._output("add", (a, b), a.shape, a.dtype)
        self._queue.enqueue(lambda: self._store(out, self._load(a) + self._load(b)))
        return out

    def swiglu(self, x: Tensor) -> SimTensor:
        _require("swiglu", x.shape[-1] % (2 * TILE_SIDE) == 0, x)
        out = self._output("swiglu", (x,), (x.shape[0], x.shape[1] // 2), x.dtype)
        self._queue.enqueue(lambda: self._store(out, kernels.swiglu(self._load(x), out.dtype)))
        return out

    def concat_rows(self, tensors: Sequence[Tensor]) -> SimTensor:
        """Bit for bit."""
        parts = tuple(tensors)
        _require("concat", len({(part.shape, part.dtype) for part in parts}) == 1, *parts)
        rows = sum(part.shape[0] for part in parts)
        out = self._output("concat", parts, (rows, parts[0].shape[1]), parts[0].dtype)
        self._queue.enqueue(lambda: self._store(out, np.concatenate([self._load(part) for part in parts])))
        return out

    def nlp_create_qkv_heads_decode(
        self, x: Tensor, *, num_heads: int, num_kv_heads: int
    ) -> tuple[SimTensor, SimTensor, SimTensor]:
        """Bit for bit."""
        name = "nlp_create_qkv_heads_decode"
        width, rest = divmod(x.shape[-1], num_heads + 2 * num_kv_heads)
        _require(name, x.shape[0] == 1 and rest == 0, x)
        q = self._output(name, (x,), (num_heads, width), x.dtype)
        k, v = (self._new_tensor((num_kv_heads, width), x.dtype, Layout.TILE, name) for _ in range(2))

        def run() -> None:
            heads = self._load(x).reshape(-1, width)
            self._store(q, heads[:num_heads])
            self._store(k, heads[num_heads : num_heads + num_kv_heads])
            self._store(v, heads[num_heads + num_kv_heads :])

        self._queue.enqueue(run)
        return q, k, v

    def nlp_concat_heads_decode(self, x: Tensor) -> SimTensor:
        """Bit for bit."""
        out = self._output("nlp_concat_heads_decode", (x,), (1, x.shape[0] * x.shape[1]), x.dtype)
        self._queue.enqueue(lambda: self._store(out, self._load(x).reshape(1, -1)))
        return out

    def rotary_embedding(self, x: Tensor, cos: Tensor, sin: Tensor, *, token_index: int) -> SimTensor:
        _require("rotary_embedding", cos.shape == sin.shape and cos.shape[1] == x.shape[1], x, cos, sin)
        _require("rotary_embedding", 0 <= token_index < cos.shape[0], cos)
        out = self._output("rotary_embedding", (x, cos, sin), x.shape, x.dtype)

        def run() -> None:
            row = slice(token_index, token_index + 1)
            turned = kernels.rotary_embedding(self._load(x), self._load(cos)[row], self._load(sin)[row], out.dtype)
            self._store(out, turned)

        self._queue.enqueue(run)
        return out

    def paged_update_cache(self, cache: Tensor, x: Tensor, *, update_idxs_tensor: Tensor, page_table: Tensor) -> None:
        """Bit for bit."""
        name = "paged_update_cache"
        _require(name, x.shape == (cache.shape[1], cache.shape[3]) and x.dtype is cache.dtype, cache, x)
        _require(name, cache.shape[2] % TILE_SIDE == 0 and cache.shape[3] % TILE_SIDE == 0, cache)
        target = self._live(cache, name)
        for operand in (x, update_idxs_tensor, page_table):
            self._live(operand, name)
        self._log.note_op(name)

        def run() -> None:
            block, row = divmod(int(self._raw_array(update_idxs_tensor)[0, 0]), cache.shape[2])
            physical = self._physical_blocks(page_table, block, block + 1, cache)[0]
            rows = self._load(x).astype(cache.dtype.host, copy=False)
            groups, width = rows.shape
            tiles = face_rows(target.buffer.bytes, cache.shape, cache.dtype.item_bytes)
            tile, row_in_tile = divmod(row, TILE_SIDE)
            face, row_in_face = divmod(row_in_tile, FACE_SIDE)
            into = tiles[physical * groups : (physical + 1) * groups, tile, :, face, :, row_in_face]
            into[...] = np.ascontiguousarray(rows).view(tiles.dtype).reshape(groups, width // TILE_SIDE, 2)
            target.buffer.changed()

        self._queue.enqueue(run)

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
    ) -> SimTensor:
        name = "paged_scaled_dot_product_attention_decode"
        _require(name, k_cache.shape == v_cache.shape and q.shape[1] == k_cache.shape[3], q, k_cache, v_cache)
        _require(name, q.shape[0] % k_cache.shape[1] == 0, q, k_cache)
        out = self._output(name, (q, k_cache, v_cache, page_table, cur_pos_tensor), q.shape, q.dtype)

        def run() -> None:
            last = int(self._raw_array(cur_pos_tensor)[0, 0])
            first = 0 if sliding_window_size is None else max(0, last - sliding_window_size + 1)
            k, v = (self._cached_rows(cache, page_table, first, last + 1) for cache in (k_cache, v_cache))
            self._store(out, kernels.attention(self._load(q), k, v, scale))

        self._queue.enqueue(run)
        return out

    def _cached_rows(self, cache: Tensor, page_table: Tensor, start: int, stop: int) -> Float32:
        """Positions `start` to `stop` of a paged cache, as float32 [G, stop - start, D]."""
        _, groups, block_size, width = cache.shape
        first_block, last_block = start // block_size, (stop - 1) // block_size + 1
        physical = self._physical_blocks(page_table, first_block, last_block, cache)
        tiles = face_rows(self._owned(cache).buffer.bytes, cache.shape, cache.dtype.item_bytes)
        chosen = tiles.reshape(cache.shape[0], groups, *tiles.shape[1:])[physical]
        # [block, group, tile row, tile column, face row, face column, 16] -> rows of one group, block after block
        rows = np.ascontiguousarray(chosen.transpose(1, 0, 2, 4, 6, 3, 5)).reshape(-1).view(cache.dtype.host)
        offset = start - first_block * block_size
        return rows.reshape(groups, -1, width)[:, offset : offset + stop - start].astype(np.float32)

    def _physical_blocks(self, page_table: Tensor, first: int, last: int, cache: Tensor) -> np.ndarray:
        table = self._raw_array(page_table).reshape(-1)
        entries = table[first:last]
        if first < 0 or last > table.size or entries.min() < 0 or entries.max() >= cache.shape[0]:
            raise DeviceFault(
                "page-table",
                f"{page_table.label}: logical blocks {first} to {last - 1} of {table.size} are {entries.tolist()}, "
                f"but {cache.label} has {cache.shape[0]} blocks",
            )
        return entries

    def _raw_array(self, tensor: Tensor) -> np.ndarray:
        """A ROW_MAJOR tensor's present values, unconverted."""
        owned = self._owned(tensor)
        return unpack(owned.buffer.bytes, owned.shape, owned.dtype, owned.layout)


def _require(op: str, condition: bool, *operands: Tensor) -> None:
    if not condition:
        shown = ", ".join(f"{t.label} {t.dtype.label} {t.layout.value} {list(t.shape)}" for t in operands)
        raise DeviceFault("bad-operand", f"{op} does not take {shown}")
