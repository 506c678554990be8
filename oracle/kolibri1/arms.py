"""The reference's arms: named settings of its precision and of its orders of summation.

An arm is a claim: every arm of a class computes Kolibri-1 correctly in that class's numeric contract. The truth of a
golden is one arm; a class's floor is the spread of the class's other arms around it. Free of torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from oracle.errors import UsageError
from oracle.subjects.protocol import NumericClass


@dataclass(frozen=True)
class Arm:
    """One setting of the reference.

    Attributes:
        name: as in a recipe.
        numeric_class: the class whose contract it fulfils.
        dtype: of activations and of the weights' working copies. `bfloat16` means fp32 arithmetic on bf16 values, rounded
            at transformers' rounding points (facts, section 5).
        combine: how the experts' outputs are summed. `fp32`: products and sum in fp32, rounded, then the rounded shared
            expert added (transformers' grouped_mm). `per-expert`: rounded after every expert, by rising id
            (transformers' eager). `fp32-with-shared`: the shared expert inside the fp32 sum, one rounding; the same as
            `fp32` where nothing is rounded.
        residual: `rounded` (transformers: the sum is rounded, then normalized) or `fused` (vLLM: the unrounded fp32 sum
            is normalized, the rounded one is kept).
        probabilities: whether attention probabilities are `rounded` to the dtype (eager) or `kept` in fp32 (flash).
        norms: rounded `twice`, after normalizing and after the weight (transformers), or `once` at the end (fused kernels).
        reduction: `straight`, or `permuted`: every matrix product sums its inputs in another, fixed order.
        activations: `kept`, or `quantized` to e4m3 before every fp8 product (W8A8: dynamic, per token and 128 inputs).
        kv_cache: `kept` in the dtype, or `fp8`: keys and values stored as e4m3 with scale 1, after norm and RoPE.
        kernels: computed by the compiled kernels (float32 alone); else by torch.
    """

    name: str
    numeric_class: NumericClass
    dtype: Literal["float64", "float32", "bfloat16"]
    combine: Literal["fp32", "per-expert", "fp32-with-shared"] = "fp32"
    residual: Literal["rounded", "fused"] = "rounded"
    probabilities: Literal["rounded", "kept"] = "rounded"
    norms: Literal["twice", "once"] = "twice"
    reduction: Literal["straight", "permuted"] = "straight"
    activations: Literal["kept", "quantized"] = "kept"
    kv_cache: Literal["kept", "fp8"] = "kept"
    kernels: bool = False


TRUTH = Arm("float32", "fp32", "float32", kernels=True)
"""The arm whose values a golden stores, unless another is asked for."""

_BF16 = (
    Arm("bfloat16", "bf16", "bfloat16"),
    Arm("bfloat16-per-expert", "bf16", "bfloat16", combine="per-expert"),
    Arm("bfloat16-with-shared", "bf16", "bfloat16", combine="fp32-with-shared"),
    Arm("bfloat16-fused", "bf16", "bfloat16", residual="fused"),
    Arm("bfloat16-kept", "bf16", "bfloat16", probabilities="kept"),
    Arm("bfloat16-permuted", "bf16", "bfloat16", reduction="permuted"),
    Arm("bfloat16-once", "bf16", "bfloat16", norms="once"),
    Arm("bfloat16-fused-per-expert", "bf16", "bfloat16", "per-expert", "fused"),
    Arm("bfloat16-fused-once-kept", "bf16", "bfloat16", "fp32", "fused", "kept", "once"),
    Arm("bfloat16-fused-kept-with-shared", "bf16", "bfloat16", "fp32-with-shared", "fused", "kept", "twice", "permuted"),
)


def _like_bf16(name: NumericClass, activations: Literal["kept", "quantized"], kv_cache: Literal["kept", "fp8"]) -> list[Arm]:
    """The bf16 arms' rounding points and orders in a class that quantizes more: `w8a8`, `w8a8-per-expert`, ..."""
    return [
        replace(arm, name=arm.name.replace("bfloat16", name), numeric_class=name, activations=activations, kv_cache=kv_cache)
        for arm in _BF16
    ]


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        TRUTH,
        Arm("float64", "fp32", "float64"),
        Arm("float32-blas", "fp32", "float32"),
        Arm("float32-permuted", "fp32", "float32", reduction="permuted"),
        Arm("float32-per-expert", "fp32", "float32", combine="per-expert"),
        Arm("float32-per-expert-permuted", "fp32", "float32", combine="per-expert", reduction="permuted"),
        *_BF16,
        *_like_bf16("w8a8", "quantized", "kept"),
        *_like_bf16("fp8-kv", "kept", "fp8"),
    )
}


def arm_named(name: str) -> Arm:
    """The arm of that name.

    Raises:
        UsageError: there is none.
    """
    try:
        return ARMS[name]
    except KeyError:
        raise UsageError(f"the reference has no arm {name!r}; it has {', '.join(ARMS)}") from None


def floor_arms(numeric_class: NumericClass, truth: Arm = TRUTH) -> tuple[Arm, ...]:
    """The arms of a class that are measured against the truth, in a fixed order."""
    return tuple(arm for arm in ARMS.values() if arm.numeric_class == numeric_class and arm is not truth)
