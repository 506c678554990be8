"""What gate `ops` asks of a device, op by op: operands at a geometry's widths, seeded by name, and the true results.

Sums run over their whole real width (hidden 2560, q 6144, expert 512, head 128, window 513), since errors grow with it; of a
weight's rows, each of which is a sum of its own, a slice is enough: 256 of the projections, 512 of the head's 128,000, all
384 of the router's. `whole` takes all rows, for a slow and thorough look.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from oracle.judge import ops_exact
from oracle.judge.ops_exact import Exact, Float64
from oracle.subjects.ops import HostArray, Parameter, array_dtype

ROWS = 4
BLOCK = 32
EPSILON = 1e-6


@dataclass(frozen=True)
class Geometry:
    """Widths of a model. `projection_rows` and `head_rows` are the slices of weights that are asked for."""

    name: str
    hidden: int
    heads: int
    groups: int
    head_dim: int
    expert: int
    experts: int
    top: int
    window: int
    projection_rows: int
    head_rows: int

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.groups * self.head_dim


MINI = Geometry("mini", 256, 12, 4, 64, 256, 16, 6, 33, projection_rows=256, head_rows=512)
REAL = Geometry("real", 2560, 48, 4, 128, 512, 384, 6, 513, projection_rows=256, head_rows=512)


def whole(geometry: Geometry, vocabulary: int) -> Geometry:
    """With all rows of its weights but `vocabulary` of the head's."""
    rows = geometry.q + 2 * geometry.kv
    return Geometry(**{**geometry.__dict__, "name": f"{geometry.name} whole", "projection_rows": rows, "head_rows": vocabulary})


@dataclass(frozen=True)
class OpCase:
    """One question to a device, with its true answer."""

    operands: Mapping[str, HostArray]
    exact: tuple[Exact, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


class Draw:
    """Seeded operands of one case."""

    def __init__(self, name: str, dtype: str) -> None:
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.dtype = dtype

    def normal(self, *shape: int, scale: float = 1.0, dtype: str | None = None) -> HostArray:
        """N(0, scale), rounded to the dtype."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32).astype(array_dtype(dtype or self.dtype))

    def norm_weight(self, width: int) -> HostArray:
        return (1 + 0.3 * self.rng.standard_normal((1, width))).astype(np.float32).astype(array_dtype(self.dtype))


def _equal(*arrays: HostArray) -> tuple[Exact, ...]:
    return tuple(Exact(array, array.dtype.name, equal=True) for array in arrays)


def _wide(array: HostArray) -> Float64:
    return array.astype(np.float64)


def embedding(d: Draw, width: int) -> OpCase:
    table = d.normal(64, width)
    ids = d.rng.integers(0, 64, (1, 2 * ROWS)).astype(np.uint32)
    return OpCase({"ids": ids, "weight": table}, _equal(table[ids[0]]))


def typecast(d: Draw, width: int) -> OpCase:
    """From the other dtype, over all exponents, subnormal numbers and exact ties included."""
    other = "float32" if d.dtype == "bfloat16" else "bfloat16"
    x = (d.rng.standard_normal((ROWS, width)) * 2.0 ** d.rng.integers(-20, 20, (ROWS, width))).astype(np.float32)
    x[1] *= np.float32(2.0**-126)
    x[2] = x[2].astype(array_dtype("bfloat16")).astype(np.float32)
    if other == "float32":
        x[2] = np.nextafter(x[2], np.float32(np.inf), dtype=np.float32)
        x[3].view(np.uint32)[:] = x[3].view(np.uint32) & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    x = x.astype(array_dtype(other))
    return OpCase({"x": x}, _equal(x.astype(array_dtype(d.dtype))), {"dtype": d.dtype})


def norm(d: Draw, shape: tuple[int, ...]) -> OpCase:
    """One row, or user, is so small that epsilon counts."""
    x, weight = d.normal(*shape, scale=3.0), d.norm_weight(shape[-1])
    x[1] *= x.dtype.type(2.0**-11)
    exact = ops_exact.rms_norm(_wide(x), _wide(weight), EPSILON, d.dtype)
    return OpCase({"x": x, "weight": weight}, (exact,), {"epsilon": EPSILON})


def linear(d: Draw, width: int, rows: int, operand: str) -> OpCase:
    x = d.normal(ROWS, width, dtype=operand)
    weight = d.normal(rows, width, scale=width**-0.5, dtype=operand)
    exact = ops_exact.product(_wide(x), _wide(weight).T, d.dtype)
    return OpCase({"x": x, "weight": weight}, (exact,), {"dtype": d.dtype})


def combine(d: Draw, top: int, width: int) -> OpCase:
    """Routing weights float32 over experts' outputs."""
    a = d.rng.uniform(0.05, 1, (1, top)).astype(np.float32)
    b = d.normal(top, width)
    return OpCase({"a": a, "b": b}, (ops_exact.product(_wide(a), _wide(b), d.dtype),), {"dtype": d.dtype})


def binary(d: Draw, width: int, compute: np.ufunc) -> OpCase:
    a, b = d.normal(ROWS, width), d.normal(ROWS, width, scale=0.3)
    return OpCase({"a": a, "b": b}, (ops_exact.elementwise(compute(_wide(a), _wide(b)), d.dtype),))


def unary(d: Draw, width: int, compute: Callable[[Float64, str], Exact]) -> OpCase:
    x = d.normal(ROWS, width, scale=4.0)
    return OpCase({"x": x}, (compute(_wide(x), d.dtype),))


def concat(d: Draw, count: int, width: int) -> OpCase:
    parts = [d.normal(1, width) for _ in range(count)]
    return OpCase({str(index): part for index, part in enumerate(parts)}, _equal(np.concatenate(parts)))


def _tied(d: Draw, width: int) -> HostArray:
    """Rows of logits of which every other has its largest three times, and two equal ones at the edge of the top six."""
    x = d.normal(ROWS, width)
    for row in x[::2]:
        order = np.argsort(-row.astype(np.float32), kind="stable")
        row[order[1:3]] = row[order[0]]
        row[order[6]] = row[order[5]]
    return x


def topk(d: Draw, width: int, k: int) -> OpCase:
    x = _tied(d, width)
    columns = ops_exact.top_columns(_wide(x), k)
    index = np.dtype(np.uint16 if d.dtype == "bfloat16" else np.uint32)
    return OpCase({"x": x}, _equal(np.take_along_axis(x, columns, axis=1), columns.astype(index)), {"k": k})


def gather(d: Draw, width: int, k: int) -> OpCase:
    x = d.normal(ROWS, width)
    index = d.rng.integers(0, width, (ROWS, k))
    return OpCase({"x": x, "index": index.astype(np.uint32)}, _equal(np.take_along_axis(x, index, axis=1)))


def argmax(d: Draw, width: int) -> OpCase:
    x = _tied(d, width)
    return OpCase({"x": x}, _equal(ops_exact.top_columns(_wide(x), 1).reshape(1, -1).astype(np.uint32)))


def heads(d: Draw, g: Geometry) -> OpCase:
    x = d.normal(2, g.q + 2 * g.kv)
    q, k, v = np.split(x.reshape(2, -1, g.head_dim), [g.heads, g.heads + g.groups], axis=1)
    return OpCase({"x": x}, _equal(q, k, v), {"num_heads": g.heads, "num_kv_heads": g.groups})


def joined(d: Draw, g: Geometry) -> OpCase:
    x = d.normal(2, g.heads, g.head_dim)
    return OpCase({"x": x}, _equal(x.reshape(2, -1)))


def rope(d: Draw, g: Geometry) -> OpCase:
    x = d.normal(2, g.heads, g.head_dim)
    half = 10000.0 ** (-np.arange(g.head_dim // 2) / (g.head_dim // 2))
    angles = np.array([[7], [2 * g.window]]) * np.tile(half, 2)
    cos, sin = (table(angles).astype(np.float32).astype(array_dtype(d.dtype)) for table in (np.cos, np.sin))
    exact = ops_exact.rotary_embedding(_wide(x), _wide(cos), _wide(sin), d.dtype)
    return OpCase({"x": x, "cos": cos, "sin": sin}, (exact,))


def _pages(d: Draw, users: int, blocks: int) -> npt.NDArray[np.int32]:
    return d.rng.permutation(users * blocks).reshape(users, blocks).astype(np.int32)


def update(d: Draw, g: Geometry) -> OpCase:
    """Three users: within a block, skipped, and the first row of another block."""
    table = _pages(d, 3, 4)
    cache, x = d.normal(table.size, g.groups, BLOCK, g.head_dim), d.normal(3, g.groups, g.head_dim)
    positions = np.array([[BLOCK + 17, -1, 2 * BLOCK]], np.int32)
    after = cache.copy()
    for user in (0, 2):
        block, row = divmod(int(positions[0, user]), BLOCK)
        after[table[user, block], :, row] = x[user]
    operands = {"cache": cache, "x": x, "update_idxs_tensor": positions, "page_table": table}
    return OpCase(operands, _equal(after))


def fill(d: Draw, g: Geometry) -> OpCase:
    table = _pages(d, 2, 4)
    cache, x = d.normal(table.size, g.groups, BLOCK, g.head_dim), d.normal(g.groups, 2 * BLOCK + 5, g.head_dim)
    after = cache.copy()
    for position in range(x.shape[1]):
        after[table[1, position // BLOCK], :, position % BLOCK] = x[:, position]
    return OpCase({"cache": cache, "x": x, "page_table": table}, _equal(after), {"batch_idx": 1})


def attend(d: Draw, g: Geometry, window: int | None) -> OpCase:
    """Three users: past the window, skipped, and at a block's last position."""
    lengths = (g.window + 3 * BLOCK // 2, 0, BLOCK)
    blocks = -(-max(lengths) // BLOCK)
    table = _pages(d, len(lengths), blocks)
    shape = (table.size, g.groups, BLOCK, g.head_dim)
    caches = d.normal(*shape), d.normal(*shape)
    q = d.normal(len(lengths), g.heads, g.head_dim)
    seen = [
        [
            _wide(cache[table[user]]).swapaxes(0, 1).reshape(g.groups, -1, g.head_dim)[:, :length]
            for user, length in enumerate(lengths)
        ]
        for cache in caches
    ]
    scale = g.head_dim**-0.5
    operands = {"q": q, "k_cache": caches[0], "v_cache": caches[1], "page_table": table}
    operands["cur_pos_tensor"] = np.array([lengths], np.int32) - 1
    exact = ops_exact.attention(_wide(q), seen[0], seen[1], scale, window, d.dtype)
    return OpCase(operands, (exact,), {"scale": scale, "sliding_window_size": window})
