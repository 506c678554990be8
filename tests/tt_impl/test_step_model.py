"""Modelled time of a decoder's steps: its parts add up to the device's own, and what a step has too much shows in its part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest

from oracle.errors import DeviceFault
from oracle.subjects.modelled_time import PartTimes, total_ns
from tt_impl.decode import Decoder
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import DType
from tt_impl.device.sim import CostModel, SimDevice, schedule_named
from tt_impl.phases import PHASES, Phase
from tt_impl.step_model import CAUSES, StepModel

Open = Callable[..., Decoder]
Wanted = Callable[[str, str, tuple[int, ...], bool], bool]

CHURNING = {"activation": DType.BFLOAT16, "slots_per_layer": 3, "memos": 3}
"""As few slots and memos as a step allows, so that every phase has work."""


TOKENS = (5, 17, 80, 3, 41)


def walked(decoder: Decoder, model: StepModel) -> PartTimes:
    """A new sequence, modelled from its first step."""
    decoder.start()
    model.turn(True)
    for token in TOKENS:
        with model.step():
            decoder.step(token)
    return model.modelled_ns()


def decoded(open_decoder: Open, device: SimDevice, **settings: Any) -> PartTimes:
    return walked(open_decoder(device=device, **(CHURNING | settings)), StepModel(device))


class Doubling(SimDevice):
    """Does one call of those wanted twice, the `nth`: what a decoder does that asks for it once too often."""

    def __init__(self, wanted: Wanted, nth: int = 4) -> None:
        super().__init__()
        self._wanted = wanted
        self._left = nth

    def _again(self, call: str, label: str = "", shape: tuple[int, ...] = (), blocking: bool = False) -> bool:
        self._left -= self._wanted(call, label, shape, blocking)
        return self._left == 0 and self._wanted(call, label, shape, blocking)

    def copy_host_to_device_tensor(self, array: Any, tensor: Any, **rest: Any) -> None:
        for _ in range(1 + self._again("write", tensor.label, tensor.shape)):
            super().copy_host_to_device_tensor(array, tensor, **rest)

    def copy_device_to_host_tensor(self, tensor: Any, destination: Any = None, *, blocking: bool, **rest: Any) -> Any:
        if self._again("read", tensor.label, tensor.shape, blocking):
            super().copy_device_to_host_tensor(tensor, blocking=blocking, **rest)
        return super().copy_device_to_host_tensor(tensor, destination, blocking=blocking, **rest)

    def synchronize_device(self, **rest: Any) -> None:
        for _ in range(1 + self._again("synchronize")):
            super().synchronize_device(**rest)

    def add(self, a: Any, b: Any) -> Any:
        if self._again("add"):
            super().add(a, b)
        return super().add(a, b)


def _of_slot(label: str) -> bool:
    return ".slot" in label and "." not in label.split(".slot")[1]


EXTRA: dict[str, tuple[dict[str, Any], Wanted, Phase, set[str]]] = {
    "a router read": ({}, lambda c, _, s, b: (c, s, b) == ("read", (1, 8), True), "router", {"round_trips", "transfers_out"}),
    "a bias read": (
        {"bias": "fetched"},
        lambda c, label, s, _: c == "read" and "expert_bias" in label,
        "router",
        {"round_trips", "transfers_out"},
    ),
    "a fill": ({}, lambda c, label, *_: c == "write" and _of_slot(label), "fills", {"transfers_in"}),
    "a read-back": ({}, lambda c, label, *_: c == "read" and _of_slot(label), "verification", {"transfers_out"}),
    "a drain": ({}, lambda c, *_: c == "synchronize", "verification", {"round_trips"}),
    "a drain behind a fill": ({"drain": "fill"}, lambda c, *_: c == "synchronize", "verification", {"round_trips"}),
    "a reread": (
        {"dequant": "reread"},
        lambda c, label, _, b: c == "read" and _of_slot(label) and b,
        "dequantization",
        {"round_trips", "transfers_out"},
    ),
    "an upload": ({}, lambda c, label, *_: c == "write" and ".generation" in label, "dequantization", {"transfers_in"}),
    "an op": ({}, lambda c, *_: c == "add", "compute", {"dispatch", "memory"}),
    "a read of logits": (
        {},
        lambda c, _, s, b: (c, s, b) == ("read", (1, 96), True),
        "logits",
        {"round_trips", "transfers_out"},
    ),
    "a tap": ({}, lambda c, _, s, b: (c, s, b) == ("read", (1, 64), False), "evidence", {"transfers_out"}),
}


@pytest.mark.parametrize("what", EXTRA)
def test_what_a_step_does_once_too_often_shows_in_its_part_and_nowhere_else(open_decoder: Open, what: str) -> None:
    settings, wanted, part, causes = EXTRA[what]
    plain = decoded(open_decoder, SimDevice(), **settings)
    more = decoded(open_decoder, Doubling(wanted), **settings)
    grown = {(p, c): ns - plain[p][c] for p, its in more.items() for c, ns in its.items() if ns != plain[p][c]}
    assert set(grown) == {(part, cause) for cause in causes}
    if "round_trips" in causes:
        assert grown[part, "round_trips"] == CostModel().round_trip_ns


def test_the_parts_add_up_to_the_devices_own_time(open_decoder: Open) -> None:
    device = SimDevice()
    decoder, model = open_decoder(device=device, **CHURNING), StepModel(device)
    decoder.start()
    before = Counter(device.event_counts())
    model.turn(True)
    for token in TOKENS:
        with model.step():
            decoder.step(token)
    increase = {name: count - before[name] for name, count in device.event_counts().items()}
    whole, times = device.cost_model.time(increase), model.modelled_ns()
    assert whole.total_ns <= total_ns(times) < whole.total_ns + len(PHASES) * len(CAUSES)  # each rounded up to a nanosecond
    assert all(sum(causes.values()) > 0 for causes in times.values())


def test_a_fill_costs_what_its_bytes_do_and_a_drain_a_round_trip(open_decoder: Open) -> None:
    device = SimDevice()
    decoder = open_decoder(device=device, **CHURNING)
    times, stats = walked(decoder, StepModel(device)), decoder.stats()
    assert stats["fills"] > len(TOKENS)
    nothing = dict.fromkeys(CAUSES, 0)
    assert times["fills"] == nothing | {"transfers_in": at_25_gigabytes(stats["staged_bytes"])}
    drained = {"transfers_out": at_25_gigabytes(stats["verified_bytes"]), "round_trips": 20_000 * stats["drains"]}
    assert times["verification"] == nothing | drained
    assert times["dequantization"] == nothing | {"transfers_in": at_25_gigabytes(stats["memo_misses"] * 3 * 64 * 64 * 2)}


def at_25_gigabytes(nbytes: int) -> int:
    """Nanoseconds, rounded up."""
    return -(-nbytes // 25)


@pytest.mark.parametrize("schedule", ["eager", "reuse", "random:5"])
def test_it_is_the_same_under_every_schedule(open_decoder: Open, schedule: str) -> None:
    assert decoded(open_decoder, SimDevice(schedule=schedule_named(schedule))) == decoded(open_decoder, SimDevice())


def test_it_begins_from_nothing_and_counts_nothing_between_steps(open_decoder: Open) -> None:
    device = SimDevice()
    decoder, model = open_decoder(device=device, **CHURNING), StepModel(device)
    assert model.modelled_ns() == {}
    first = walked(decoder, model)
    decoder.step(TOKENS[0])  # that nobody models
    with model.step():
        pass
    assert model.modelled_ns() == first
    decoder.reset()
    assert walked(decoder, model) == first
    model.turn(False)
    assert model.modelled_ns() == {}


def test_a_step_that_faults_leaves_the_next_decoders_steps_to_themselves(open_decoder: Open) -> None:
    device = SimDevice()
    faulty, model = open_decoder(device=device, **CHURNING), StepModel(device)
    before = walked(faulty, model)
    device.close()
    with pytest.raises(DeviceFault, match="closed"), model.step():
        faulty.step(TOKENS[0])
    assert decoded(open_decoder, SimDevice()) == model.modelled_ns() == before


def test_a_device_without_a_cost_model_has_no_modelled_time() -> None:
    device: Any = Passing(SimDevice())
    model = StepModel(device)
    model.turn(True)
    assert model.told() is None
    assert model.modelled_ns() == {}


def test_the_constants_told_are_the_devices_own() -> None:
    told = StepModel(SimDevice(cost=CostModel(round_trip_ns=5))).told()
    assert told is not None
    assert told.constants["round_trip_ns"] == 5
    assert tuple(told.parts) == get_args(Phase)


def test_the_page_names_every_part_cause_and_constant() -> None:
    page = (Path(__file__).parents[2] / "docs/bench.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \| (?!`)", page, re.MULTILINE) == list(PHASES)
    for name in (*CAUSES, *asdict(CostModel())):
        assert f"`{name}`" in page, name
    ns_above = re.search(r"at most (\d+) of them above", page)
    assert ns_above is not None
    assert int(ns_above[1]) == len(PHASES) * len(CAUSES)
