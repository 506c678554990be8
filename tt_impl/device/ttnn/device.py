"""The ops of the card: each checks its operands and brings them into the form that ttnn's op takes, here and not in a decoder.

Decode ops of ttnn want heads height-sharded over one core for each user; everything a decoder holds is interleaved in DRAM, so
they are sharded on the way in and brought back on the way out. Every product runs at HiFi4 with fp32 accumulation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

from oracle.accelerator import level_in_use
from tt_impl.device.protocol import TILE_SIDE, DType, Layout, Tensor
from tt_impl.device.ttnn.adaptation import TtnnAdaptation
from tt_impl.device.ttnn.guards import MOST_USERS, require
from tt_impl.device.ttnn.held import held_shape, ttnn_dtype
from tt_impl.device.ttnn.memory import TtnnTensor, opened_parts

_D = TypeVar("_D", bound="TtnnDevice")

_ROW_MAJOR, _TILE = Layout.ROW_MAJOR, Layout.TILE
_INDICES = (DType.UINT16, DType.UINT32)
_PRODUCTS = (DType.BFLOAT16, DType.FLOAT32, DType.BFLOAT8_B)
_UINT16_COLUMNS = 1 << 16


class TtnnDevice(TtnnAdaptation):
    """An opened card, or what stands for one; implements `protocol.Device` on ttnn 0.81.1."""

    @classmethod
    def open(cls: type[_D], *, command_queues: int = 1) -> _D:
        """Open the card, or the simulator that `TT_METAL_SIMULATOR` names, and see that it holds what is written to it.

        Raises:
            SubjectError: there is none, it does not open, or it does not hold bytes, as the mock device does not.
        """
        ttnn, mesh = opened_parts(command_queues=command_queues, mock=False)
        device = cls(ttnn, mesh, command_queues=command_queues, is_mock=False)
        device._require_memory()
        return device

    @classmethod
    def open_mock(cls: type[_D], *, command_queues: int = 1) -> _D:
        """Open ttnn's mock device, which accepts or refuses ops and computes nothing. Raises SubjectError where it can't."""
        ttnn, mesh = opened_parts(command_queues=command_queues, mock=True)
        return cls(ttnn, mesh, command_queues=command_queues, is_mock=True)

    @property
    def level(self) -> str:
        """What it is: `silicon`, `ttsim` or `mock`."""
        return "mock" if self._is_mock else level_in_use().name

    def program_cache_entries(self) -> int:
        """Compiled programs so far: a step that adds one compiles, and its time is not a step's."""
        return self._mesh.num_program_cache_entries()

    @contextlib.contextmanager
    def graph(self) -> Iterator[list[str]]:
        """The names of all that ttnn's graph capture sees begin within the block, ops and transfers; there after it."""
        names: list[str] = []
        graph = self.ttnn.graph
        graph.begin_graph_capture(graph.RunMode.NORMAL)
        try:
            yield names
        finally:
            nodes = graph.end_graph_capture()
            names.extend(node["params"]["name"] for node in nodes if node["node_type"] == "function_start")

    def embedding(self, ids: Tensor, weight: Tensor) -> TtnnTensor:
        fits = ids.dtype is DType.UINT32 and ids.layout is _ROW_MAJOR and len(ids.shape) == 2 and ids.shape[0] == 1
        require("embedding", fits and weight.layout is _ROW_MAJOR and len(weight.shape) == 2, ids, weight)
        require("embedding", held_shape(weight.shape, weight.dtype, _ROW_MAJOR) == weight.shape, weight)
        shape = (ids.shape[1], weight.shape[1])
        with self._op("embedding", (ids, weight)) as (i, w):
            out = self.ttnn.embedding(i, w, layout=self.ttnn.TILE_LAYOUT)
            return self._result("embedding", out, shape, weight.dtype)

    def typecast(self, x: Tensor, dtype: DType) -> TtnnTensor:
        tiled = x.layout is _TILE or dtype is not DType.BFLOAT8_B
        require("typecast", tiled and not {x.dtype, dtype} & {DType.FP8_E4M3, DType.UINT8}, x)
        with self._op("typecast", (x,)) as (value,):
            out = self.ttnn.typecast(value, ttnn_dtype(self.ttnn, dtype))
            if x.layout is _ROW_MAJOR:
                return self._adopt(out, x.shape, dtype, _ROW_MAJOR, "typecast")
            return self._result("typecast", out, x.shape, dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, *, epsilon: float) -> TtnnTensor:
        require("rms_norm", x.layout is _TILE and weight.shape == (1, x.shape[-1]), x, weight)
        with self._op("rms_norm", (x, weight)) as (value, gamma):
            out = self.ttnn.rms_norm(value, epsilon=epsilon, weight=gamma, compute_kernel_config=self._precise())
            return self._result("rms_norm", out, x.shape, x.dtype)

    def linear(self, x: Tensor, weight: Tensor, *, dtype: DType | None = None) -> TtnnTensor:
        fits = x.layout is weight.layout is _TILE and len(x.shape) == len(weight.shape) == 2
        require("linear", fits and x.shape[1] == weight.shape[1] and (dtype or x.dtype) in _PRODUCTS, x, weight)
        with self._op("linear", (x, weight)) as (value, w):
            out = self.ttnn.linear(
                value,
                w,
                transpose_b=True,
                dtype=ttnn_dtype(self.ttnn, dtype or x.dtype),
                compute_kernel_config=self._precise(),
            )
            return self._result("linear", out, (x.shape[0], weight.shape[0]), dtype or x.dtype)

    def matmul(self, a: Tensor, b: Tensor, *, dtype: DType, output: Tensor | None = None) -> TtnnTensor:
        """As the protocol says; where K does not fill its tiles, b's padding is zeroed first: it takes part in the sums."""
        fits = a.layout is b.layout is _TILE and len(a.shape) == len(b.shape) == 2
        require("matmul", fits and a.shape[1] == b.shape[0] and dtype in _PRODUCTS, a, b)
        with self._op("matmul", (a, b)) as (left, right):
            if b.shape[0] % TILE_SIDE:
                right = self._on_the_way(self.ttnn.fill_implicit_tile_padding(right, 0.0))
            how = {"dtype": ttnn_dtype(self.ttnn, dtype), "compute_kernel_config": self._precise()}
            if output is not None:
                into = self._filled("matmul", output, (a.shape[0], b.shape[1]), dtype, (a, b))
                self.ttnn.matmul(left, right, optional_output_tensor=into.value, **how)
                return into
            return self._result("matmul", self.ttnn.matmul(left, right, **how), (a.shape[0], b.shape[1]), dtype)

    def add(self, a: Tensor, b: Tensor) -> TtnnTensor:
        return self._elementwise("add", a, b)

    def mul(self, a: Tensor, b: Tensor) -> TtnnTensor:
        return self._elementwise("mul", a, b)

    def silu(self, x: Tensor) -> TtnnTensor:
        return self._unary("silu", x)

    def sigmoid(self, x: Tensor) -> TtnnTensor:
        return self._unary("sigmoid", x)

    def swiglu(self, x: Tensor) -> TtnnTensor:
        require("swiglu", x.layout is _TILE and len(x.shape) == 2 and x.shape[1] % (2 * TILE_SIDE) == 0, x)
        with self._op("swiglu", (x,)) as (value,):
            return self._result("swiglu", self.ttnn.swiglu(value, -1), (x.shape[0], x.shape[1] // 2), x.dtype)

    def concat_rows(self, tensors: Sequence[Tensor]) -> TtnnTensor:
        parts = tuple(tensors)
        alike = len({(part.shape[1:], part.dtype) for part in parts}) == 1
        require("concat", alike and all(part.layout is _TILE and len(part.shape) == 2 for part in parts), *parts)
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        with self._op("concat", parts) as values:
            return self._result("concat", self.ttnn.concat(values, dim=-2), shape, parts[0].dtype)

    def topk(self, x: Tensor, k: int) -> tuple[TtnnTensor, TtnnTensor]:
        fits = x.layout is _TILE and len(x.shape) == 2 and x.dtype in (DType.BFLOAT16, DType.FLOAT32)
        require("topk", fits and 1 <= k <= x.shape[1], x)
        require("topk", x.dtype is DType.FLOAT32 or x.shape[1] <= _UINT16_COLUMNS, x)
        index = DType.UINT16 if x.dtype is DType.BFLOAT16 else DType.UINT32
        with self._op("topk", (x,)) as (value,):
            values, columns = self.ttnn.topk(value, k, dim=-1, largest=True, sorted=True)
            shape = (x.shape[0], k)
            return self._result("topk", values, shape, x.dtype), self._result("topk", columns, shape, index)

    def gather(self, x: Tensor, index: Tensor) -> TtnnTensor:
        fits = x.layout is index.layout is _TILE and len(x.shape) == len(index.shape) == 2
        require("gather", fits and index.dtype in _INDICES and x.shape[0] == index.shape[0], x, index)
        with self._op("gather", (x, index)) as (value, columns):
            return self._result("gather", self.ttnn.gather(value, -1, columns), index.shape, x.dtype)

    def argmax(self, x: Tensor) -> TtnnTensor:
        require("argmax", x.layout is _TILE and len(x.shape) == 2, x)
        shape = (1, x.shape[0])
        with self._op("argmax", (x,)) as (value,):
            out = self.ttnn.argmax(value, dim=-1, keepdim=False)
            return self._adopt(self.ttnn.reshape(out, list(shape)), shape, DType.UINT32, _ROW_MAJOR, "argmax")

    def nlp_create_qkv_heads_decode(
        self, x: Tensor, *, num_heads: int, num_kv_heads: int
    ) -> tuple[TtnnTensor, TtnnTensor, TtnnTensor]:
        name = "nlp_create_qkv_heads_decode"
        require(name, x.layout is _TILE and len(x.shape) == 2 and x.shape[0] <= MOST_USERS, x)
        users, (width, rest) = x.shape[0], divmod(x.shape[1], num_heads + 2 * num_kv_heads)
        require(name, rest == 0 and width % TILE_SIDE == 0, x)
        with self._op(name, (x,)) as (value,):
            parts = self.ttnn.experimental.nlp_create_qkv_heads_decode(
                value,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                memory_config=self.ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG,
            )
            q, k, v = (
                self._result(name, self._interleaved(part), (users, heads, width), x.dtype)
                for part, heads in zip(parts, (num_heads, num_kv_heads, num_kv_heads), strict=True)
            )
            return q, k, v

    def nlp_concat_heads_decode(self, x: Tensor) -> TtnnTensor:
        name = "nlp_concat_heads_decode"
        require(name, x.layout is _TILE and len(x.shape) == 3 and x.shape[0] <= MOST_USERS, x)
        users, heads, width = x.shape
        with self._op(name, (x,)) as (value,):
            out = self.ttnn.experimental.nlp_concat_heads_decode(self._by_user(value, x.shape), num_heads=heads)
            return self._result(name, self._interleaved(out), (users, heads * width), x.dtype)

    def rotary_embedding_hf(self, x: Tensor, cos: Tensor, sin: Tensor) -> TtnnTensor:
        name = "rotary_embedding_hf"
        fits = x.layout is cos.layout is sin.layout is _TILE and len(x.shape) == 3 and x.shape[0] <= MOST_USERS
        require(name, fits and cos.shape == sin.shape == (x.shape[0], x.shape[2]), x, cos, sin)
        require(name, cos.dtype is sin.dtype is x.dtype, x, cos, sin)
        users, _, width = x.shape
        with self._op(name, (x, cos, sin)) as (value, *tables):
            by_user = [self._by_user(self._on_the_way(self.ttnn.transpose(table, 1, 2)), (users, 1, width)) for table in tables]
            sharded = self._by_user(value, x.shape)
            out = self.ttnn.experimental.rotary_embedding_hf(
                sharded, *by_user, is_decode_mode=True, memory_config=sharded.memory_config()
            )
            return self._result(name, self._interleaved(out), x.shape, x.dtype)

    def paged_update_cache(self, cache: Tensor, x: Tensor, *, update_idxs_tensor: Tensor, page_table: Tensor) -> None:
        name = "paged_update_cache"
        operands = (cache, x, update_idxs_tensor, page_table)
        self._require_cache(name, cache)
        require(name, x.layout is _TILE and len(x.shape) == 3, cache, x)
        require(name, x.shape[1:] == (cache.shape[1], cache.shape[3]) and x.shape[0] <= MOST_USERS, cache, x)
        self._require_pages(name, x.shape[0], update_idxs_tensor, page_table)
        with self._op(name, operands) as (into, value, positions, table):
            self.ttnn.experimental.paged_update_cache(
                into,
                self._by_user(value, x.shape),
                update_idxs_tensor=self.ttnn.reshape(positions, [x.shape[0]]),
                page_table=table,
            )
            self._owned(cache, name).generation += 1

    def paged_fill_cache(self, cache: Tensor, x: Tensor, *, page_table: Tensor, batch_idx: int) -> None:
        name = "paged_fill_cache"
        self._require_cache(name, cache)
        require(name, x.layout is _TILE and len(x.shape) == 3, cache, x)
        require(name, (x.shape[0], x.shape[2]) == (cache.shape[1], cache.shape[3]) and x.dtype is cache.dtype, cache, x)
        require(name, page_table.dtype is DType.INT32 and page_table.layout is _ROW_MAJOR, page_table)
        require(
            name, 0 <= batch_idx < page_table.shape[0] and x.shape[1] <= page_table.shape[1] * cache.shape[2], x, page_table
        )
        with self._op(name, (cache, x, page_table)) as (into, value, table):
            self.ttnn.experimental.paged_fill_cache(into, value, table, batch_idx=batch_idx)
            self._owned(cache, name).generation += 1

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
    ) -> TtnnTensor:
        name = "paged_scaled_dot_product_attention_decode"
        self._require_cache(name, k_cache)
        alike = k_cache.shape == v_cache.shape and k_cache.dtype is v_cache.dtype and v_cache.layout is _TILE
        require(name, alike and q.layout is _TILE and len(q.shape) == 3 and q.shape[0] <= MOST_USERS, q, k_cache, v_cache)
        require(name, sliding_window_size is None or sliding_window_size > 0, q)
        require(name, q.shape[2] == k_cache.shape[3] and q.shape[1] % k_cache.shape[1] == 0, q, k_cache)
        self._require_pages(name, q.shape[0], cur_pos_tensor, page_table)
        with self._op(name, (q, k_cache, v_cache, page_table, cur_pos_tensor)) as (query, keys, values, table, positions):
            out = self.ttnn.transformer.paged_scaled_dot_product_attention_decode(
                query,
                keys,
                values,
                page_table_tensor=table,
                cur_pos_tensor=self.ttnn.reshape(positions, [q.shape[0]]),
                scale=scale,
                sliding_window_size=sliding_window_size,
                compute_kernel_config=self._precise(),
            )
            return self._result(name, out, q.shape, q.dtype)

    def _elementwise(self, name: str, a: Tensor, b: Tensor) -> TtnnTensor:
        require(name, a.layout is b.layout is _TILE and a.shape == b.shape and a.dtype is b.dtype, a, b)
        with self._op(name, (a, b)) as (left, right):
            return self._result(name, getattr(self.ttnn, name)(left, right), a.shape, a.dtype)

    def _unary(self, name: str, x: Tensor) -> TtnnTensor:
        require(name, x.layout is _TILE, x)
        with self._op(name, (x,)) as (value,):
            return self._result(name, getattr(self.ttnn, name)(value), x.shape, x.dtype)
