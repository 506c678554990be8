"""Ops on rows: look-ups, norms, matrix products, activations, selection. Rows are independent of each other.

Each says what it computes in, where it rounds, and how far from the true value that may be: u is a dtype's unit roundoff,
2^-8 of bfloat16 and 2^-24 of float32, and K the number of terms in a sum. What is refused is refused by ttnn 0.81.1 too,
but for what ttnn would take and misread: tables and ids of `embedding` in TILE.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tt_impl.device.protocol import TILE_SIDE, DType, Layout, Tensor
from tt_impl.device.sim import kernels, quirky_kernels
from tt_impl.device.sim.memory import SimTensor
from tt_impl.device.sim.op_base import COUNTS, FLOATS, MATRIX, OpBase, require, require_row_major, require_tiles, rows_of
from tt_impl.device.sim.quirks import NARROW

_NUMBERS = MATRIX | COUNTS | {DType.INT32}
_UINT16_COLUMNS = 1 << 16


class RowOps(OpBase):
    """See `protocol.Device` for shapes."""

    def embedding(self, ids: Tensor, weight: Tensor) -> SimTensor:
        """Rows copied bit for bit. An id beyond the table is `embedding-index` when the op runs."""
        require_row_major("embedding", DType.UINT32, ids)
        require("embedding", ids.shape[0] == 1, "ids [1, rows] are needed", ids)
        require("embedding", weight.dtype in FLOATS, "bfloat16 or float32 is needed", weight)
        require_row_major("embedding", weight.dtype, weight)
        out = self._result("embedding", (ids, weight), (ids.shape[1], weight.shape[1]), weight.dtype)

        def run() -> None:
            wanted = self._bits(ids).reshape(-1)
            self._check_index("embedding", wanted, weight.shape[0], ids)
            self._store_bits(out, self._bits(weight)[wanted])

        self._enqueue(run)
        return out

    def typecast(self, x: Tensor, dtype: DType) -> SimTensor:
        """To nearest, ties to even; exact where the dtype holds the value; fractions cut toward zero for whole numbers.

        Subnormal numbers stay. No fp8 on either side, and BFLOAT8_B in TILE only.
        """
        require("typecast", x.dtype in _NUMBERS, "no fp8 or uint8 is cast", x)
        tiled = x.layout is Layout.TILE or DType.BFLOAT8_B not in (x.dtype, dtype)
        require("typecast", dtype in _NUMBERS and tiled, f"it cannot become {dtype.label}", x)
        out = self._result("typecast", (x,), x.shape, dtype, x.layout)

        def run() -> None:
            if x.dtype in MATRIX:
                values = self._load(x)
                self._store_rounded(out, quirky_kernels.flushed(values) if self.quirks.flushes_subnormals else values)
            else:
                self._store(out, self._bits(x))

        self._enqueue(run)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, *, epsilon: float) -> SimTensor:
        """Mean, root and quotient in float32; the normalized value is rounded to x's dtype, then its product with the weight.

        Error: (sqrt(K) / 2 + 4) u of float32, and 2 u of x's dtype.
        """
        require_tiles("rms_norm", MATRIX, x)
        require("rms_norm", weight.shape == (1, x.shape[-1]), f"a weight [1, {x.shape[-1]}] is needed", x, weight)
        require("rms_norm", weight.dtype in FLOATS, "bfloat16 or float32 is needed", weight)
        out = self._result("rms_norm", (x, weight), x.shape, x.dtype)
        quirks = self.quirks
        mean = quirky_kernels.truncated_mean_of_squares if quirks.bf16_norm_sum else kernels.mean_of_squares
        narrow = quirks.zero_narrow_norm and x.shape[-1] <= NARROW

        def run() -> None:
            values = rows_of(self._load(x))
            normed = kernels.rms_norm(values, self._load(weight), epsilon, out.dtype, mean=mean, rounding=self._rounding)
            self._store_rounded(out, np.zeros(x.shape, np.float32) if narrow else normed.reshape(x.shape))

        self._enqueue(run)
        return out

    def linear(self, x: Tensor, weight: Tensor, *, dtype: DType | None = None) -> SimTensor:
        """Products and sums in float32, rounded once. Error: about sqrt(K) u of float32 of the sum of magnitudes, u of the
        result's dtype."""
        require_tiles("linear", MATRIX, x, weight)
        fits = len(x.shape) == len(weight.shape) == 2 and x.shape[1] == weight.shape[1]
        require("linear", fits, "matrices of equal width are needed", x, weight)
        out = self._result("linear", (x, weight), (x.shape[0], weight.shape[0]), _product_dtype("linear", dtype or x.dtype, x))
        self._enqueue(lambda: self._store_product(out, kernels.linear(self._load(x), self._load(weight))))
        return out

    def matmul(self, a: Tensor, b: Tensor, *, dtype: DType, output: Tensor | None = None) -> SimTensor:
        """As `linear`; summed over rising K."""
        require_tiles("matmul", MATRIX, a, b)
        fits = len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0]
        require("matmul", fits, "matrices [R, K] and [K, C] are needed", a, b)
        shape, dtype = (a.shape[0], b.shape[1]), _product_dtype("matmul", dtype, a)
        out = (
            self._result("matmul", (a, b), shape, dtype)
            if output is None
            else self._into("matmul", (a, b), shape, dtype, output)
        )
        self._enqueue(lambda: self._store_product(out, kernels.matmul(self._load(a), self._load(b))))
        return out

    def add(self, a: Tensor, b: Tensor) -> SimTensor:
        """Float32 sum, rounded once: u of the dtype. Whole numbers exactly, modulo their size."""
        return self._elementwise("add", a, b, np.add)

    def mul(self, a: Tensor, b: Tensor) -> SimTensor:
        """Float32 product, rounded once: u of the dtype. Whole numbers as in `add`."""
        return self._elementwise("mul", a, b, np.multiply)

    def _elementwise(self, op: str, a: Tensor, b: Tensor, compute: np.ufunc) -> SimTensor:
        require_tiles(op, _NUMBERS, a, b)
        require(op, a.shape == b.shape and a.dtype is b.dtype, "equal shapes and dtypes are needed", a, b)
        out = self._result(op, (a, b), a.shape, a.dtype)
        whole = a.dtype not in MATRIX

        def run() -> None:
            if whole:
                self._store_bits(out, compute(self._bits(a), self._bits(b)))
            else:
                self._store_rounded(out, compute(self._load(a), self._load(b)))

        self._enqueue(run)
        return out

    def silu(self, x: Tensor) -> SimTensor:
        """In float32, rounded once: 4 u of float32 and u of the dtype."""
        require_tiles("silu", MATRIX, x)
        out = self._result("silu", (x,), x.shape, x.dtype)
        self._enqueue(lambda: self._store_rounded(out, kernels.silu(self._load(x))))
        return out

    def sigmoid(self, x: Tensor) -> SimTensor:
        """In float32, rounded once: 4 u of float32 and u of the dtype."""
        require_tiles("sigmoid", MATRIX, x)
        out = self._result("sigmoid", (x,), x.shape, x.dtype)
        self._enqueue(lambda: self._store_rounded(out, kernels.sigmoid(self._load(x))))
        return out

    def swiglu(self, x: Tensor) -> SimTensor:
        """SiLU in float32 and rounded to the dtype, then the product: 4 u of float32 and 2 u of the dtype."""
        require_tiles("swiglu", MATRIX, x)
        fits = len(x.shape) == 2 and x.shape[1] % (2 * TILE_SIDE) == 0
        require("swiglu", fits, "a matrix of two halves of whole tiles is needed", x)
        out = self._result("swiglu", (x,), (x.shape[0], x.shape[1] // 2), x.dtype)
        self._enqueue(lambda: self._store_rounded(out, kernels.swiglu(self._load(x), out.dtype, rounding=self._rounding)))
        return out

    def concat_rows(self, tensors: Sequence[Tensor]) -> SimTensor:
        """Bit for bit."""
        parts = tuple(tensors)
        require("concat", bool(parts), "one operand or more is needed")
        require_tiles("concat", FLOATS, *parts)
        alike = len({(part.shape[1:], part.dtype) for part in parts}) == 1 and len(parts[0].shape) == 2
        require("concat", alike, "matrices of one width and dtype are needed", *parts)
        rows = sum(part.shape[0] for part in parts)
        out = self._result("concat", parts, (rows, parts[0].shape[1]), parts[0].dtype)
        self._enqueue(lambda: self._store(out, np.concatenate([self._load(part) for part in parts])))
        return out

    def topk(self, x: Tensor, k: int) -> tuple[SimTensor, SimTensor]:
        """Exact: values bit for bit, and of equal ones the lowest column first. NaN counts as smallest."""
        require_tiles("topk", FLOATS, x)
        require("topk", len(x.shape) == 2 and 1 <= k <= x.shape[1], f"k of {k} is not from 1 to its columns", x)
        indices = DType.UINT16 if x.dtype is DType.BFLOAT16 else DType.UINT32
        fits = indices is DType.UINT32 or x.shape[1] <= _UINT16_COLUMNS
        require("topk", fits, f"uint16 cannot number more than {_UINT16_COLUMNS} columns", x)
        values = self._result("topk", (x,), (x.shape[0], k), x.dtype)
        columns = self._new_tensor((x.shape[0], k), indices, Layout.TILE, "topk")

        def run() -> None:
            chosen = kernels.top_columns(self._load(x), k, highest=self.quirks.ties_to_highest)
            self._store_bits(values, np.take_along_axis(self._bits(x), chosen, axis=1))
            self._store_bits(columns, chosen.astype(indices.host))

        self._enqueue(run)
        return values, columns

    def gather(self, x: Tensor, index: Tensor) -> SimTensor:
        """Bit for bit. An index beyond the columns is `gather-index` when the op runs."""
        require_tiles("gather", FLOATS | COUNTS | {DType.INT32}, x)
        require_tiles("gather", COUNTS, index)
        fits = len(x.shape) == len(index.shape) == 2 and x.shape[0] == index.shape[0]
        require("gather", fits, "matrices of equally many rows are needed", x, index)
        out = self._result("gather", (x, index), index.shape, x.dtype)

        def run() -> None:
            columns = self._bits(index)
            self._check_index("gather", columns, x.shape[1], index)
            self._store_bits(out, np.take_along_axis(self._bits(x), columns.astype(np.intp), axis=1))

        self._enqueue(run)
        return out

    def argmax(self, x: Tensor) -> SimTensor:
        """Exact; of equal values the lowest column. NaN counts as smallest."""
        require_tiles("argmax", FLOATS, x)
        require("argmax", len(x.shape) == 2, "a matrix is needed", x)
        out = self._result("argmax", (x,), (1, x.shape[0]), DType.UINT32, Layout.ROW_MAJOR)

        def run() -> None:
            first = kernels.top_columns(self._load(x), 1, highest=self.quirks.ties_to_highest)
            self._store_bits(out, first.reshape(1, -1).astype(np.uint32))

        self._enqueue(run)
        return out


def _product_dtype(op: str, dtype: DType, x: Tensor) -> DType:
    require(op, dtype in MATRIX, f"it cannot give {dtype.label}", x)
    return dtype
