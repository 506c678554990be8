"""The inner loops of the reference, as explicit vector code for numba: every addition has one written place.

A compiler may not reorder floating-point additions, and here it has nothing to choose either: each loop is emitted as LLVM
instructions on 16 lanes with fused multiply-adds, which any CPU executes with the same result (LLVM splits the vectors
where registers are narrower). So the bits of a dot product depend on its operands alone: not on threads, not on how many
tokens share a pass, not on the vector width of the machine.

**The order of a dot product** over K inputs, K a multiple of 32: there are 32 accumulators, two vectors of 16 lanes. Group of
32 by group, lane l of the first takes input 2l, and lane l of the second input 2l + 1, each by one fused multiply-add. In the
end the two vectors are added, then the 16 lanes in halves (8, 4, 2, 1). Inputs are *packed* to match: of every group of 32,
first the even-numbered ones, then the odd-numbered. That is the order in which fp8 and bf16 weights fall out of 16- and
32-bit words by shifts and masks alone.

**fp8**: an e4m3 byte `s eeee mmm`, shifted to `s 0eeee mmm0000000`, is the half-precision float of its value / 256,
subnormals too. One conversion and one multiplication by 256 * scale then give fp32(q) * scale, rounded once, as the format
defines it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
GROUP = 2 * LANES
"""Inputs per step of a dot product; K must be a multiple of it."""

Kind = Literal["fp8", "bf16", "f32"]

_I16, _I32, _I64 = (ir.IntType(bits) for bits in (16, 32, 64))
_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)
_ITEM_BYTES: dict[Kind, int] = {"fp8": 1, "bf16": 2, "f32": 4}

# llvmlite's own annotations say None where it returns values.
_Builder = Any
_Value = Any
_Carried = list[_Value]


def dot_tile(kind: Kind, rows: int, tokens: int) -> Any:
    """An intrinsic that computes a tile of `rows` x `tokens` dot products of packed inputs with weights of that kind.

    Its arguments are int64, addresses and strides in bytes: `(w, w_stride, scales, blocks, groups, x, x_stride, out,
    out_stride)`. K = blocks * groups * 32; `scales` points at the fp32 scales of the rows' block row, one for every `groups`
    groups (read for fp8 alone). `f32` weights are packed like the inputs. Product (r, t) goes to `out + t * out_stride + 4 r`
    as float32. Its bits are those of the 1 x 1 tile.
    """

    def emit(builder: _Builder, args: Sequence[_Value]) -> None:
        w, w_stride, scales, blocks, groups, x, x_stride, out, out_stride = args
        w_rows = [_at(builder, w, r, w_stride) for r in range(rows)]
        x_rows = [_at(builder, x, t, x_stride) for t in range(tokens)]

        def step(first: _Value, scale: _Value | None) -> Callable[[_Value, _Carried], _Carried]:
            def body(index: _Value, sums: _Carried) -> _Carried:
                group = builder.add(first, index)
                weights = [_weights(builder, kind, row, group, scale) for row in w_rows]
                inputs = [_weights(builder, "f32", row, group, None) for row in x_rows]
                sums = list(sums)
                for k, (half, t, r) in enumerate((h, t, r) for h in (0, 1) for t in range(tokens) for r in range(rows)):
                    sums[k] = _fma(builder, weights[r][half], inputs[t][half], sums[k])
                return sums

            return body

        sums: _Carried = [_ZERO] * (2 * rows * tokens)
        if kind == "fp8":

            def block(index: _Value, sums: _Carried) -> _Carried:
                return _counted(builder, groups, sums, step(builder.mul(index, groups), _scale(builder, scales, index)))

            sums = _counted(builder, blocks, sums, block)
        else:
            sums = _counted(builder, builder.mul(blocks, groups), sums, step(ir.Constant(_I64, 0), None))
        for k, (t, r) in enumerate((t, r) for t in range(tokens) for r in range(rows)):
            total = _lane_sum(builder, builder.fadd(sums[k], sums[rows * tokens + k]))
            _store(builder, total, builder.add(_at(builder, out, t, out_stride), ir.Constant(_I64, 4 * r)))

    return _intrinsic(emit, 9)


def unpack_row(kind: Kind) -> Any:
    """An intrinsic that writes one row of weights as packed float32: `(w, scales, blocks, groups, out)`, as for `dot_tile`."""

    def emit(builder: _Builder, args: Sequence[_Value]) -> None:
        w, scales, blocks, groups, out = args

        def block(index: _Value, carried: _Carried) -> _Carried:
            scale = _scale(builder, scales, index) if kind == "fp8" else None

            def body(inner: _Value, carried: _Carried) -> _Carried:
                group = builder.add(builder.mul(index, groups), inner)
                even, odd = _weights(builder, kind, w, group, scale)
                to = builder.add(out, builder.mul(group, ir.Constant(_I64, 4 * GROUP)))
                _store(builder, even, to)
                _store(builder, odd, _at(builder, to, 1, 4 * LANES))
                return carried

            return _counted(builder, groups, carried, body)

        _counted(builder, blocks, [], block)

    return _intrinsic(emit, 5)


def mix_tile(heads: int, chunks: int) -> Any:
    """An intrinsic that adds weighted sums of vectors to `out`: for h of `heads`, `out[h] += sum over j of p[h, j] * v[j]`.

    Arguments, int64: `(p, p_stride, v, v_stride, n, out, out_stride)`. A call covers `chunks` * 16 columns. Each sum starts
    from zero, takes j in rising order by fused multiply-adds, and is added to `out` once.
    """

    def emit(builder: _Builder, args: Sequence[_Value]) -> None:
        p, p_stride, v, v_stride, n, out, out_stride = args
        p_rows = [_at(builder, p, h, p_stride) for h in range(heads)]

        def body(index: _Value, sums: _Carried) -> _Carried:
            row = builder.add(v, builder.mul(index, v_stride))
            values = [_load(builder, _at(builder, row, c, 4 * LANES), _VECTOR, 4) for c in range(chunks)]
            weights = [
                _splat(builder, _load(builder, builder.add(head, builder.mul(index, ir.Constant(_I64, 4))), _F32, 4))
                for head in p_rows
            ]
            return [_fma(builder, weights[h], values[c], sums[h * chunks + c]) for h in range(heads) for c in range(chunks)]

        sums = _counted(builder, n, [_ZERO] * (heads * chunks), body)
        for h in range(heads):
            for c in range(chunks):
                to = builder.add(_at(builder, out, h, out_stride), ir.Constant(_I64, 4 * LANES * c))
                _store(builder, builder.fadd(_load(builder, to, _VECTOR, 4), sums[h * chunks + c]), to)

    return _intrinsic(emit, 7)


def _intrinsic(emit: Callable[[_Builder, Sequence[_Value]], None], arity: int) -> Any:
    """A numba intrinsic of `arity` int64 arguments and no result, whose code `emit` writes."""

    def codegen(context: Any, builder: _Builder, _signature: Any, args: Sequence[_Value]) -> _Value:
        emit(builder, args)
        return context.get_dummy_value()

    signature = types.void(*([types.int64] * arity))
    # numba counts the parameters of the typing function, so each arity has its own.
    if arity == 5:

        @intrinsic
        def five(_typing, a, b, c, d, e):  # pyright: ignore[reportMissingParameterType]
            return signature, codegen

        return five
    if arity == 7:

        @intrinsic
        def seven(_typing, a, b, c, d, e, f, g):  # pyright: ignore[reportMissingParameterType]
            return signature, codegen

        return seven

    @intrinsic
    def nine(_typing, a, b, c, d, e, f, g, h, i):  # pyright: ignore[reportMissingParameterType]
        return signature, codegen

    return nine


def _weights(builder: _Builder, kind: Kind, row: _Value, group: _Value, scale: _Value | None) -> tuple[_Value, _Value]:
    """Group number `group` of a row as two float vectors: its 16 even-numbered values and its 16 odd-numbered ones."""
    address = builder.add(row, builder.mul(group, ir.Constant(_I64, GROUP * _ITEM_BYTES[kind])))
    if kind == "f32":
        return _load(builder, address, _VECTOR, 4), _load(builder, _at(builder, address, 1, 4 * LANES), _VECTOR, 4)
    if kind == "bf16":
        word = _load(builder, address, ir.VectorType(_I32, LANES), 1)
        even = builder.shl(word, _constant(_I32, 16))
        odd = builder.and_(word, _constant(_I32, 0xFFFF0000))
        return builder.bitcast(even, _VECTOR), builder.bitcast(odd, _VECTOR)
    word = _load(builder, address, ir.VectorType(_I16, LANES), 1)
    both = []
    for high in (builder.shl(word, _constant(_I16, 8)), word):
        half = builder.and_(builder.ashr(high, _constant(_I16, 1)), _constant(_I16, 0xBF80))
        value = builder.fpext(builder.bitcast(half, ir.VectorType(ir.HalfType(), LANES)), _VECTOR)
        both.append(builder.fmul(value, scale))
    return both[0], both[1]


def _scale(builder: _Builder, scales: _Value, block: _Value) -> _Value:
    """256 * the block's scale in every lane; exact, since 256 is a power of two."""
    scale = _load(builder, builder.add(scales, builder.mul(block, ir.Constant(_I64, 4))), _F32, 1)
    return _splat(builder, builder.fmul(scale, ir.Constant(_F32, 256.0)))


def _fma(builder: _Builder, a: _Value, b: _Value, c: _Value) -> _Value:
    kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _VECTOR])
    return builder.call(builder.module.declare_intrinsic("llvm.fma.v16f32", fnty=kind), [a, b, c])


def _lane_sum(builder: _Builder, vector: _Value) -> _Value:
    """The 16 lanes added in halves: 8, 4, 2, 1."""
    width = LANES
    while width > 1:
        width //= 2
        index = ir.VectorType(_I32, width)
        low = builder.shuffle_vector(vector, vector, ir.Constant(index, list(range(width))))
        high = builder.shuffle_vector(vector, vector, ir.Constant(index, list(range(width, 2 * width))))
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


def _counted(builder: _Builder, count: _Value, carried: _Carried, body: Callable[[_Value, _Carried], _Carried]) -> _Carried:
    """`for i in range(count): carried = body(i, carried)`, and what is carried out."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(_I64)
    index.add_incoming(ir.Constant(_I64, 0), before)
    values = [builder.phi(value.type) for value in carried]
    for phi, value in zip(values, carried, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
    builder.position_at_end(inside)
    results = body(index, list(values))
    index.add_incoming(builder.add(index, ir.Constant(_I64, 1)), builder.block)
    for phi, value in zip(values, results, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return list(values)


def _constant(kind: ir.IntType, value: int) -> ir.Constant:
    return ir.Constant(ir.VectorType(kind, LANES), [value] * LANES)


def _splat(builder: _Builder, value: _Value) -> _Value:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _at(builder: _Builder, base: _Value, index: int, stride: _Value | int) -> _Value:
    """The address `base + index * stride`."""
    if index == 0:
        return base
    step = ir.Constant(_I64, stride * index) if isinstance(stride, int) else builder.mul(stride, ir.Constant(_I64, index))
    return builder.add(base, step)


def _load(builder: _Builder, address: _Value, kind: ir.Type, align: int) -> _Value:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _store(builder: _Builder, value: _Value, address: _Value) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)
