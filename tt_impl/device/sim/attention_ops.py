"""Ops of attention: cutting and joining heads, RoPE, the paged cache, and attention over it. Users are independent."""

from __future__ import annotations

import numpy as np

from oracle.errors import DeviceFault
from tt_impl.device.protocol import FACE_SIDE, TILE_SIDE, DType, Layout, Tensor
from tt_impl.device.sim import kernels, quirky_kernels
from tt_impl.device.sim.kernels import Float32
from tt_impl.device.sim.memory import SimTensor
from tt_impl.device.sim.op_base import FLOATS, MATRIX, OpBase, require, require_row_major, require_tiles
from tt_impl.device.sim.paged_rows import PagedRows

_ROTATED = 64
_SKIPPED = -1


class AttentionOps(OpBase):
    """See `protocol.Device` for shapes. Caches are BFLOAT16, BFLOAT8_B or, which ttnn's attention does not take, FLOAT32."""

    def nlp_create_qkv_heads_decode(
        self, x: Tensor, *, num_heads: int, num_kv_heads: int
    ) -> tuple[SimTensor, SimTensor, SimTensor]:
        """Bit for bit."""
        name = "nlp_create_qkv_heads_decode"
        require_tiles(name, FLOATS, x)
        width, rest = divmod(x.shape[-1], num_heads + 2 * num_kv_heads)
        require(name, len(x.shape) == 2 and rest == 0, f"rows of {num_heads} + 2 * {num_kv_heads} heads are needed", x)
        users = x.shape[0]
        q = self._result(name, (x,), (users, num_heads, width), x.dtype)
        k, v = (self._new_tensor((users, num_kv_heads, width), x.dtype, Layout.TILE, name) for _ in range(2))

        def run() -> None:
            heads = self._load(x).reshape(users, -1, width)
            self._store(q, heads[:, :num_heads])
            self._store(k, heads[:, num_heads : num_heads + num_kv_heads])
            self._store(v, heads[:, num_heads + num_kv_heads :])

        self._enqueue(run)
        return q, k, v

    def nlp_concat_heads_decode(self, x: Tensor) -> SimTensor:
        """Bit for bit."""
        name = "nlp_concat_heads_decode"
        require_tiles(name, FLOATS, x)
        require(name, len(x.shape) == 3, "[users, heads, head size] is needed", x)
        users, heads, width = x.shape
        out = self._result(name, (x,), (users, heads * width), x.dtype)
        self._enqueue(lambda: self._store(out, self._load(x).reshape(users, -1)))
        return out

    def rotary_embedding_hf(self, x: Tensor, cos: Tensor, sin: Tensor) -> SimTensor:
        """x * cos + cat(-x2, x1) * sin in float32, both products rounded to x's dtype, then their sum.

        Error: 2 u of x's dtype of the products' magnitudes. The head size is 32 or a multiple of 64.
        """
        name = "rotary_embedding_hf"
        require_tiles(name, FLOATS, x, cos, sin)
        require(name, len(x.shape) == 3, "[users, heads, head size] is needed", x)
        users, _, width = x.shape
        require(name, width == TILE_SIDE or width % _ROTATED == 0, "a head size of 32 or a multiple of 64 is needed", x)
        fits = cos.shape == sin.shape == (users, width)
        require(name, fits, "a row of cos and of sin for each user is needed", x, cos, sin)
        out = self._result(name, (x, cos, sin), x.shape, x.dtype)

        def run() -> None:
            cosines, sines = self._load(cos)[:, None], self._load(sin)[:, None]
            turned = kernels.rotary_embedding(self._load(x), cosines, sines, out.dtype, rounding=self._rounding)
            self._store_rounded(out, turned)

        self._enqueue(run)
        return out

    def paged_update_cache(self, cache: Tensor, x: Tensor, *, update_idxs_tensor: Tensor, page_table: Tensor) -> None:
        """Rounded to the cache's dtype, where that is smaller; otherwise bit for bit.

        A BFLOAT8_B cache's positions are packed as ttnn's host code packs, each by itself.
        """
        name = "paged_update_cache"
        groups, width = _check_cache(name, cache)
        require_tiles(name, FLOATS, x)
        users = x.shape[0]
        require(name, x.shape == (users, groups, width), f"one [{groups}, {width}] for each user is needed", x, cache)
        _check_pages(name, users, page_table, update_idxs_tensor)
        require(name, page_table.shape[1] <= cache.shape[0], "more pages of a user than blocks", cache, page_table)
        self._operate(name, (cache, x, update_idxs_tensor, page_table))

        def run() -> None:
            rows, paged = self._load(x), self._paged(cache)
            for user, position in enumerate(self._bits(update_idxs_tensor)[0].tolist()):
                if position != _SKIPPED:
                    paged.write(*self._block(cache, page_table, user, position), paged.pack(rows[user]))
            self._owned(cache).buffer.changed()

        self._enqueue(run)

    def paged_fill_cache(self, cache: Tensor, x: Tensor, *, page_table: Tensor, batch_idx: int) -> None:
        """Bit for bit: ttnn copies raw tiles."""
        name = "paged_fill_cache"
        groups, width = _check_cache(name, cache)
        require_tiles(name, frozenset({cache.dtype}), x)
        fits = len(x.shape) == 3 and (x.shape[0], x.shape[2]) == (groups, width)
        require(name, fits, f"[{groups}, positions, {width}] is needed", x, cache)
        require_row_major(name, DType.INT32, page_table)
        require(name, 0 <= batch_idx < page_table.shape[0], f"there is no user {batch_idx}", page_table)
        fits = x.shape[1] <= page_table.shape[1] * cache.shape[2]
        require(name, fits, "more positions than the page table has", x, page_table)
        self._operate(name, (cache, x, page_table))

        def run() -> None:
            rows, paged = self._paged(x), self._paged(cache)
            for position in range(x.shape[1]):
                paged.write(*self._block(cache, page_table, batch_idx, position), rows.read(position))
            self._owned(cache).buffer.changed()

        self._enqueue(run)

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
        """Scores, softmax and weighted sum in float32, rounded once; probabilities are not rounded.

        Error: about (2 sqrt(D) of the largest score's magnitudes + 2 sqrt(T)) u of float32 of the weighted magnitudes, u of
        the dtype. A skipped user's rows are NaN. BFLOAT8_B caches are read as what they hold, by queries in BFLOAT16.
        """
        name = "paged_scaled_dot_product_attention_decode"
        groups, width = _check_cache(name, k_cache)
        asking = DType.BFLOAT16 if k_cache.dtype is DType.BFLOAT8_B else k_cache.dtype
        require_tiles(name, frozenset({asking}), q)
        alike = k_cache.shape == v_cache.shape and k_cache.dtype is v_cache.dtype and v_cache.layout is Layout.TILE
        require(name, alike, "caches of one shape and dtype are needed", k_cache, v_cache)
        fits = len(q.shape) == 3 and q.shape[2] == width and q.shape[1] % groups == 0
        require(name, fits, f"[users, a multiple of {groups}, {width}] is needed", q, k_cache)
        require(name, sliding_window_size is None or sliding_window_size > 0, f"no window of {sliding_window_size}", q)
        _check_pages(name, q.shape[0], page_table, cur_pos_tensor)
        out = self._result(name, (q, k_cache, v_cache, page_table, cur_pos_tensor), q.shape, q.dtype)
        summed = quirky_kernels.weighted_sum_in_bf16 if self.quirks.bf16_attention_sum else kernels.weighted_sum

        def run() -> None:
            queries = self._load(q)
            attended = np.full(q.shape, np.nan, np.float32)
            for user, last in enumerate(self._bits(cur_pos_tensor)[0].tolist()):
                if last == _SKIPPED:
                    continue
                first = 0 if sliding_window_size is None else max(0, last - sliding_window_size + 1)
                k, v = (self._cached_rows(cache, page_table, user, first, last + 1) for cache in (k_cache, v_cache))
                attended[user] = kernels.attention(queries[user], k, v, scale, summed=summed)
            self._store_rounded(out, attended)

        self._enqueue(run)
        return out

    def _paged(self, tensor: Tensor) -> PagedRows:
        return PagedRows(self._owned(tensor).buffer.bytes, tensor.shape, tensor.dtype)

    def _block(self, cache: Tensor, page_table: Tensor, user: int, position: int) -> tuple[slice, int]:
        """Where the heads' matrices of a position's block lie in `cache`, and its row in them."""
        groups = cache.shape[1]
        logical, row = divmod(position, cache.shape[2])
        physical = int(self._physical_blocks(page_table, user, logical, logical + 1, cache)[0])
        return slice(physical * groups, (physical + 1) * groups), row

    def _cached_rows(self, cache: Tensor, page_table: Tensor, user: int, start: int, stop: int) -> Float32:
        """Positions `start` to `stop` of a user, as float32 [G, stop - start, D]."""
        _, groups, block_size, width = cache.shape
        first_block, last_block = start // block_size, (stop - 1) // block_size + 1
        physical = self._physical_blocks(page_table, user, first_block, last_block, cache)
        chosen = (np.arange(groups, dtype=np.int32)[:, None] + physical * groups).reshape(-1)  # block after block, by group
        rows = self._paged(cache).matrices(chosen)[:, :block_size].reshape(groups, -1, width)
        offset = start - first_block * block_size
        return rows[:, offset : offset + stop - start]

    def _physical_blocks(self, page_table: Tensor, user: int, first: int, last: int, cache: Tensor) -> np.ndarray:
        table = self._bits(page_table)[user]
        entries = table[first:last] if first >= 0 else table[:0]
        named = entries.tolist()
        if last > table.size or not named or min(named) < 0 or max(named) >= cache.shape[0]:
            raise DeviceFault(
                "page-table",
                f"{page_table.label}: logical blocks {first} to {last - 1} of {table.size} are {named}, "
                f"but {cache.label} has {cache.shape[0]} blocks",
            )
        return entries


def _check_cache(op: str, cache: Tensor) -> tuple[int, int]:
    """Heads and head size of a paged cache. ttnn takes blocks of 16 positions and of whole tiles."""
    require_tiles(op, MATRIX, cache)
    require(op, len(cache.shape) == 4, "a cache [blocks, heads, block size, head size] is needed", cache)
    _, groups, block_size, width = cache.shape
    whole = block_size == FACE_SIDE or block_size % TILE_SIDE == 0
    require(op, whole, "a block size of 16 or of whole tiles is needed", cache)
    require(op, width % TILE_SIDE == 0, "a head size of whole tiles is needed", cache)
    return groups, width


def _check_pages(op: str, users: int, page_table: Tensor, positions: Tensor) -> None:
    require_row_major(op, DType.INT32, page_table, positions)
    fits = page_table.shape[0] == users and positions.shape == (1, users)
    require(op, fits, f"{users} rows of pages and as many positions are needed", page_table, positions)
