"""What is a near tie: never beyond its band, never a token outside the stored ids, always an exact tie."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oracle.golden.calibration import Bands
from oracle.golden.compare import OUTSIDE
from oracle.golden.flip_class import classify, ulp

BANDS = Bands(
    regret=0.2,
    router_gap=0.02,
    router_regret=0.4,
    floor_regret=0.2,
    floor_router_gap=0.01,
    floor_router_regret=0.4,
    near_multiple=1,
    multiple=2.0,
)
NARROW = BANDS.model_copy(update={"regret": 0.0, "router_regret": 0.0})
ORDER = {"near-tie": 0, "router-near-tie": 0, "hard": 1}

flips = st.fixed_dictionaries(
    {
        "regret": st.floats(0, 100),
        "rank": st.integers(1, 63),
        "top": st.floats(-1e4, 1e4),
        "sets_agree": st.booleans(),
        "set_gap": st.floats(0, 0.1),
        "logit_dtype": st.sampled_from(["float32", "bfloat16"]),
    }
)


def kind(flip: dict[str, Any] | None = None, bands: Bands = BANDS, **values: Any) -> str:
    base = {"regret": 0.1, "rank": 1, "top": 10.0, "sets_agree": True, "set_gap": 0.0, "logit_dtype": "float32"}
    return classify(**base | (flip or {}) | values, bands=bands)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"regret": 0.2}, "near-tie"),
        ({"regret": 0.2001}, "hard"),
        ({"sets_agree": False, "set_gap": 0.02, "regret": 0.4}, "router-near-tie"),
        ({"sets_agree": False, "set_gap": 0.0201, "regret": 0.1}, "hard"),
        ({"sets_agree": False, "set_gap": 0.02, "regret": 0.4001}, "hard"),
        ({"rank": OUTSIDE}, "hard"),
        ({"rank": 63}, "near-tie"),
    ],
)
def test_the_edges_of_the_bands(values: dict[str, Any], expected: str) -> None:
    assert kind(values) == expected


@given(flips)
def test_an_exact_tie_is_never_hard(flip: dict[str, Any]) -> None:
    assert kind(flip, NARROW, regret=0.0) != "hard"
    assert kind(flip, NARROW, sets_agree=False, set_gap=0.0) == "router-near-tie"


@given(flips)
def test_a_token_outside_the_stored_ids_is_always_hard(flip: dict[str, Any]) -> None:
    assert kind(flip, rank=OUTSIDE) == kind(flip, rank=OUTSIDE, regret=0.0) == "hard"


@given(flips, st.floats(0, 100))
def test_more_regret_never_softens_a_flip(flip: dict[str, Any], more: float) -> None:
    assert ORDER[kind(flip, regret=flip["regret"] + more)] >= ORDER[kind(flip)]


@given(flips, st.floats(0, 1))
def test_a_wider_router_gap_never_softens_a_flip(flip: dict[str, Any], more: float) -> None:
    assert ORDER[kind(flip, set_gap=flip["set_gap"] + more)] >= ORDER[kind(flip)]


@given(flips)
def test_the_kind_of_near_tie_says_whether_the_experts_agree(flip: dict[str, Any]) -> None:
    assert kind(flip) in ("hard", "near-tie" if flip["sets_agree"] else "router-near-tie")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("exponent", [-3, 0, 1, 4, 5, 10])
@pytest.mark.parametrize("sets_agree", [True, False])
def test_one_ulp_at_the_logits_size_is_always_within_the_band(dtype: str, exponent: int, sets_agree: bool) -> None:
    step = 2.0 ** (exponent - {"float32": 23, "bfloat16": 7}[dtype])
    last_of_binade = 2.0 ** (exponent + 1) - step
    for top in (2.0**exponent, -(2.0**exponent), last_of_binade):
        flip = {"top": top, "logit_dtype": dtype, "sets_agree": sets_agree, "set_gap": 0.01}
        assert kind(flip, NARROW, regret=step) != "hard"
        assert kind(flip, NARROW, regret=step * 1.001) == "hard"


def test_a_bf16_ulp_is_a_quarter_for_logits_from_32_to_64() -> None:
    assert [ulp(v, "bfloat16") for v in (31.875, 32.0, 63.75, 64.0)] == [0.125, 0.25, 0.25, 0.5]


@given(st.floats(-(2.0**100), 2.0**100, width=32))
@example(2.0**-149)
@example(2.0**-126)
@example(0.0)
def test_ulp_is_the_spacing_of_float32(value: float) -> None:
    assert ulp(value, "float32") == float(abs(np.spacing(np.float32(value))))


@given(st.floats(-(2.0**100), 2.0**100, width=32))
def test_ulp_is_the_spacing_of_bfloat16(value: float) -> None:
    rounded = np.array(value, dtype=ml_dtypes.bfloat16)
    following = (np.abs(rounded).view(np.uint16) + np.uint16(1)).view(ml_dtypes.bfloat16)
    assert ulp(float(rounded), "bfloat16") == float(following) - abs(float(rounded))
