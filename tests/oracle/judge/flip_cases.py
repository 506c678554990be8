"""Flip records made by hand, and every combination of the numbers that one may hold."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from oracle.golden.flip_class import ulp
from oracle.judge.blame import FlipNumbers, explain
from oracle.judge.flip_record import FlipRecord

SIZES = st.floats(0, 20, allow_nan=False)


NUMBERS: dict[str, Any] = {
    "regret": 0.01,
    "rank": 1,
    "top": 12.0,
    "experts_shown": True,
    "sketches_shown": True,
    "set_layer": None,
    "set_gap": 0.0,
    "set_before": None,
    "set_before_limit": None,
    "set_after": None,
    "set_after_limit": None,
    "sketch_layer": None,
    "sketch_distance": None,
    "sketch_limit": None,
    "bands": {"regret": 0.02, "router_gap": 0.1, "router_regret": 0.05}
    | {"floor_regret": 0.02, "floor_router_gap": 0.05, "floor_router_regret": 0.05, "near_multiple": 1.0, "multiple": 2.0},
    "logit_dtype": "float32",
}


def record(**changes: Any) -> FlipRecord:
    """A near tie of 0.01 nats under a band of 0.02, with fields replaced; label and explanation follow unless given."""
    numbers = {name: changes.get(name, value) for name, value in NUMBERS.items()}
    flip = FlipNumbers.model_validate(numbers)
    margin, step = flip.regret, ulp(flip.top, "bfloat16")
    values = {
        "prompt": "p",
        "position": 3,
        "expected": 5,
        "got": 7,
        "golden_margin": margin,
        "subject_margin": 0.02,
        "golden_margin_ulps": margin / step,
        "subject_margin_ulps": changes.get("subject_margin", 0.02) / step,
        "label": flip.kind,
        "explanation": explain(flip),
    }
    return FlipRecord.model_validate({**numbers, **values, **changes})


@st.composite
def chains(draw: st.DrawFn) -> dict[str, Any]:
    """Where expert sets and sketches first differ in five layers, in every combination, or are not shown."""
    experts_shown, sketches_shown = draw(st.booleans()), draw(st.booleans())
    distances, limits = (draw(st.lists(st.floats(0, 1), min_size=5, max_size=5)) for _ in range(2))
    off = next((layer for layer in range(5) if sketches_shown and distances[layer] > limits[layer]), None)
    set_layer = draw(st.none() | st.integers(0, 4)) if experts_shown else None
    before = set_layer - 1 if set_layer and sketches_shown else None
    after = set_layer if sketches_shown else None
    return {
        "experts_shown": experts_shown,
        "sketches_shown": sketches_shown,
        "set_layer": set_layer,
        "set_gap": 0.0 if set_layer is None else draw(st.just(0.0) | SIZES),
        "set_before": None if before is None else distances[before],
        "set_before_limit": None if before is None else limits[before],
        "set_after": None if after is None else distances[after],
        "set_after_limit": None if after is None else limits[after],
        "sketch_layer": off,
        "sketch_distance": None if off is None else distances[off],
        "sketch_limit": None if off is None else limits[off],
    }


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    """Everything a label follows from."""
    floors = {name: draw(SIZES) for name in ("regret", "router_gap", "router_regret")}
    multiple = draw(st.floats(1, 2))
    bands = {**floors, "router_gap": multiple * floors["router_gap"], **{f"floor_{n}": f for n, f in floors.items()}}
    return {
        "regret": draw(st.sampled_from([0.0, floors["regret"], floors["router_regret"]]) | SIZES),
        "rank": draw(st.sampled_from([-1, 1, 2, 63])),
        "top": draw(st.floats(-40, 40)),
        **draw(chains()),
        "bands": {**bands, "near_multiple": 1.0, "multiple": multiple},
        "logit_dtype": draw(st.sampled_from(["float32", "bfloat16"])),
    }
