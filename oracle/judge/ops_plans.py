"""Which cases gate `ops` asks of a device: those that the arm under judgement needs, at the mini's and the release's widths.

An arm needs each op in the dtype of its activations, which follows from the numeric class it declares: float32 in `fp32`,
bfloat16 in all others. And every arm needs some in float32: router logits and the head's, of which ids are chosen (`add` of a
bias, `sigmoid`, `topk`, `gather`, `argmax`), and in bfloat16 the embedding table, as it is stored; casts go both ways. No case
asks for an op in a dtype that no arm of the class gives it: a device need not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from oracle.judge import ops_cases, ops_exact
from oracle.judge.ops_cases import MINI, REAL, ROWS, Draw, Geometry, OpCase
from oracle.subjects.protocol import NumericClass


@dataclass(frozen=True)
class OpPlan:
    """A case before its operands are made.

    Attributes:
        name: of op, geometry and dtype; unique, over the classes too. Seeds the operands.
    """

    name: str
    op: str
    dtype: str
    make: Callable[[Draw], OpCase]

    def case(self) -> OpCase:
        """Operands and true results, always the same ones."""
        return self.make(Draw(self.name, self.dtype))


def plans(numeric_class: NumericClass, geometries: Sequence[Geometry] = (MINI, REAL)) -> tuple[OpPlan, ...]:
    """Every op at every geometry, in each dtype that a decoder of that class uses it in."""
    activation = "float32" if numeric_class == "fp32" else "bfloat16"
    kinds = (_rows, _selection, _attention)
    return tuple(plan for geometry in geometries for kind in kinds for plan in kind(geometry, activation))


def planned(plans: Sequence[OpPlan]) -> tuple[tuple[str, str], ...]:
    """Their names and results' dtypes, as evidence must show them."""
    return tuple((plan.name, plan.dtype) for plan in plans)


def _plan(g: Geometry, op: str, what: str, dtype: str, make: Callable[[Draw], OpCase]) -> OpPlan:
    return OpPlan(" ".join((op, *([what] if what else []), g.name, dtype)), op, dtype, make)


def _rows(g: Geometry, activation: str) -> list[OpPlan]:
    logits_too = list(dict.fromkeys((activation, "float32")))
    found = [
        _plan(g, "embedding", "", dtype, lambda d: ops_cases.embedding(d, g.hidden))
        for dtype in dict.fromkeys(("bfloat16", activation))
    ]
    found += [_plan(g, "typecast", "to", other, lambda d: ops_cases.typecast(d, g.hidden)) for other in ("bfloat16", "float32")]
    norms = {"hidden": (ROWS, g.hidden), "q heads": (2, g.heads, g.head_dim), "k heads": (2, g.groups, g.head_dim)}
    for what, shape in norms.items():
        found.append(_plan(g, "rms_norm", what, activation, lambda d, s=shape: ops_cases.norm(d, s)))
    found += _products(g, activation)
    found.append(_plan(g, "matmul", "combine", activation, lambda d: ops_cases.combine(d, g.top, g.hidden)))
    for op, ufunc, dtypes in (("add", np.add, logits_too), ("mul", np.multiply, [activation])):
        for dtype in dtypes:
            found.append(_plan(g, op, "", dtype, lambda d, u=ufunc: ops_cases.binary(d, g.hidden, u)))
    for op, exact, dtypes in (("silu", ops_exact.silu, [activation]), ("sigmoid", ops_exact.sigmoid, logits_too)):
        for dtype in dtypes:
            found.append(_plan(g, op, "", dtype, lambda d, e=exact: ops_cases.unary(d, g.expert, e)))
    found.append(_plan(g, "swiglu", "", activation, lambda d: ops_cases.unary(d, 2 * g.expert, ops_exact.swiglu)))
    found.append(_plan(g, "concat_rows", "", activation, lambda d: ops_cases.concat(d, g.top, g.hidden)))
    return found


def _products(g: Geometry, activation: str) -> list[OpPlan]:
    """Of activations; the router's and the head's give float32 in every class."""
    linears = {
        "qkv": (g.hidden, g.projection_rows, activation),
        "output": (g.q, min(g.projection_rows, g.hidden), activation),
        "expert up and gate": (g.hidden, 2 * g.expert, activation),
        "expert down": (g.expert, min(g.projection_rows, g.hidden), activation),
        "router": (g.hidden, g.experts, "float32"),
        "head": (g.hidden, g.head_rows, "float32"),
    }
    of = "" if activation == "bfloat16" else f" of {activation}"
    return [
        _plan(g, "linear", what + of, dtype, lambda d, w=width, r=rows: ops_cases.linear(d, w, r, activation))
        for what, (width, rows, dtype) in linears.items()
    ]


def _selection(g: Geometry, activation: str) -> list[OpPlan]:
    logits_too = list(dict.fromkeys((activation, "float32")))
    found = [_plan(g, "topk", "", dtype, lambda d: ops_cases.topk(d, g.experts, g.top)) for dtype in logits_too]
    found.append(_plan(g, "gather", "", "float32", lambda d: ops_cases.gather(d, g.experts, g.top)))
    found += [_plan(g, "argmax", "", dtype, lambda d: ops_cases.argmax(d, g.head_rows)) for dtype in logits_too]
    return found


def _attention(g: Geometry, activation: str) -> list[OpPlan]:
    cases = {
        "nlp_create_qkv_heads_decode": ops_cases.heads,
        "nlp_concat_heads_decode": ops_cases.joined,
        "paged_update_cache": ops_cases.update,
        "paged_fill_cache": ops_cases.fill,
        "rotary_embedding_hf": ops_cases.rope,
    }
    found = [_plan(g, op, "", activation, lambda d, make=make: make(d, g)) for op, make in cases.items()]
    for what, window in (("window", g.window), ("full", None)):
        name = "paged_scaled_dot_product_attention_decode"
        found.append(_plan(g, name, what, activation, lambda d, w=window: ops_cases.attend(d, g, w)))
    return found
