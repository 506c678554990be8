"""The factory: what it offers, what it refuses, and that each of its plants is caught as it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oracle.errors import DeviceFault, SubjectError, UsageError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import StepEvidence, SubjectRequest, VerifiedFill
from tt_impl.subject import FACTORY

OWN_CHECKS = {name: caught.removeprefix("device-fault:") for name, caught in FACTORY.plants.items() if "fault:" in caught}


def run(folder: Path, tokens: list[int], plant: str | None, arm: str = "exact") -> list[StepEvidence]:
    subject = FACTORY.open(SubjectRequest(folder, device="sim", arm=arm, plant=plant))
    subject.start()
    return [subject.step(token) for token in tokens]


def test_the_subject_says_who_it_is(tiny_folder: Path) -> None:
    subject = FACTORY.open(SubjectRequest(tiny_folder))
    identity = subject.identity
    assert (identity.name, identity.arm, identity.numeric_class, identity.device["kind"]) == ("tt", "bf16", "bf16", "sim")
    assert identity.required_gates == (
        *("golden", "alignment", "chain", "flips", "logits", "residual", "routing"),
        *("staging", "slots", "operands", "ops", "census", "capture", "counters", "determinism", "ledger"),
    )
    assert FACTORY.open(SubjectRequest(tiny_folder, arm="exact")).identity.numeric_class == "fp32"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"arm": "fast"}, "no arm 'fast': its base is 'fast'; an arm is bf16 or exact, then up to 2 of drain=layer"),
        ({"device": "gpu"}, "no device 'gpu'; its devices are sim, ttnn"),
        ({"device": "ttnn"}, r"device ttnn cannot be opened: no card: .*`kolibri-oracle doctor` shows what is there"),
        ({"device": "ttnn", "arm": "exact"}, "device ttnn has no float32 attention"),
        ({"device": "ttnn", "arm": "bf16,block=16"}, "no card has shown KV blocks of 16 positions; judge `block=16` with"),
        ({"plant": "rust"}, "no plant 'rust'; its plants are slot-byte, wrong-expert, missing-drain, resident-byte, "),
    ],
)
def test_what_it_does_not_have_is_refused_in_one_line(tiny_folder: Path, wrong: dict[str, str], message: str) -> None:
    with pytest.raises(SubjectError, match=message) as caught:
        FACTORY.open(SubjectRequest(tiny_folder, **wrong))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_device_may_name_its_schedule(tiny_folder: Path, tokens: list[int]) -> None:
    """And changes nothing but what the identity says of it."""
    named = FACTORY.open(SubjectRequest(tiny_folder, device="sim:random:5"))
    plain = FACTORY.open(SubjectRequest(tiny_folder))
    assert (named.identity.device["kind"], named.identity.device["schedule"]) == ("sim:random:5", "random:5")
    assert plain.identity.device["schedule"] == "lazy"
    logits = [[subject.step(token).logits.tobytes() for token in tokens[:3]] for subject in (named, plain)]
    assert logits[0] == logits[1]
    with pytest.raises(UsageError, match="unknown schedule 'sloppy'; use eager, lazy, reuse or random:SEED"):
        FACTORY.open(SubjectRequest(tiny_folder, device="sim:sloppy"))


@pytest.mark.parametrize(("device", "schedule"), [(None, "lazy"), ("sim:random:5", "random:5")])
def test_a_fault_says_what_replays_it(tiny_folder: Path, tokens: list[int], device: str | None, schedule: str) -> None:
    subject = FACTORY.open(SubjectRequest(tiny_folder, device=device, plant="slot-byte"))
    with pytest.raises(DeviceFault, match=f"; `gate --device sim:{schedule}@FILE` with (.*) in FILE replays it$") as caught:
        [subject.step(token) for token in tokens]
    assert caught.value.kind == "slot-verification"
    subject = FACTORY.open(SubjectRequest(tiny_folder, device=device, plant="missing-drain"))
    with pytest.raises(DeviceFault, match=f"; `gate --device sim:{schedule}` replays it$"):
        [subject.step(token) for token in tokens]


def test_a_step_counts_positions_and_shapes_its_evidence(tiny_folder: Path, tokens: list[int]) -> None:
    steps = run(tiny_folder, tokens[:3], None)
    assert [(step.token, step.position) for step in steps] == [(token, i) for i, token in enumerate(tokens[:3])]
    step = steps[-1]
    assert step.residual is not None
    assert step.expert_ids is not None
    assert (step.logits.shape, step.embedding.shape, step.residual.shape) == ((96,), (128,), (3, 64))
    assert (step.expert_ids.shape, step.expert_ids.dtype) == ((3, 3), np.int32)


@pytest.mark.parametrize("arm", ["bf16", "exact"])
@pytest.mark.parametrize(("plant", "kind"), OWN_CHECKS.items())
def test_a_plant_the_decoder_must_notice_is_raised_in_the_first_step_that_can_show_it(
    tiny_folder: Path, tokens: list[int], plant: str, kind: str, arm: str
) -> None:
    before = run(tiny_folder, tokens[:1], plant, arm) if kind == "trace-capture" else []  # nothing is captured in it
    with pytest.raises(DeviceFault) as caught:
        run(tiny_folder, tokens[: len(before) + 1], plant, arm)
    assert caught.value.kind == kind


def test_each_of_the_decoders_and_its_devices_own_checks_has_a_plant() -> None:
    assert sorted(OWN_CHECKS.values()) == ["slot-verification", "trace-capture", "unsettled-read"]


def test_a_weight_restaged_under_a_capture_changes_no_bit_and_is_in_its_record(tiny_folder: Path, tokens: list[int]) -> None:
    changed = []
    for plant in (None, "capture-restaged"):
        subject = FACTORY.open(SubjectRequest(tiny_folder, arm="exact,dispatch=captured", plant=plant))
        logits = [subject.step(token).logits.tobytes() for token in tokens[:4]]
        changed.append([region.changed for region in subject.captured_regions() if region.changed])
    assert logits == [step.logits.tobytes() for step in run(tiny_folder, tokens[:4], None)]
    assert changed == [[], [("model.layers.0.input_layernorm.weight",)]]


def test_the_wrong_experts_shadow_differs_from_the_checkpoint_and_from_nothing_else(
    tiny_folder: Path, tiny: Checkpoint, tokens: list[int]
) -> None:
    wrong: set[tuple[int, int]] = set()

    class Listener:
        def verified(self, fill: VerifiedFill) -> None:
            name = f"model.layers.{fill.layer}.mlp.experts.{fill.expert}.{fill.projection}.weight"
            stored = tiny.raw(name).tobytes() + tiny.raw(name + "_scale_inv").tobytes()
            assert fill.shadow.tobytes() == fill.read_back.tobytes()
            if fill.shadow.tobytes() != stored:
                wrong.add((fill.layer, fill.expert))

        def used(self, layer: int, expert: int, slot: int, generation: int, event: int) -> None:
            pass

    subject = FACTORY.open(SubjectRequest(tiny_folder, plant="wrong-expert"), Listener())
    for token in tokens:
        subject.step(token)
    assert len(wrong) == 1
    assert next(iter(wrong))[0] == 1


def test_swapped_norms_bend_the_residual_from_their_layer_on(tiny_folder: Path, tokens: list[int]) -> None:
    right, wrong = (run(tiny_folder, tokens[:2], plant)[0].residual for plant in (None, "norm-swap"))
    assert right is not None
    assert wrong is not None
    distance = np.linalg.norm(right - wrong, axis=1) / np.linalg.norm(right, axis=1)
    assert distance[0] == 0
    assert (distance[1:] > 0.01).all()


def test_a_short_window_shows_in_the_logits_once_the_window_is_full(
    tiny_folder: Path, tiny: Checkpoint, tokens: list[int]
) -> None:
    right, wrong = (run(tiny_folder, tokens, plant) for plant in (None, "window-short"))
    distance = [np.abs(a.logits - b.logits).max() / np.abs(a.logits).max() for a, b in zip(right, wrong, strict=True)]
    full = tiny.config.sliding_window - 1
    assert max(distance[:full]) == 0
    assert min(distance[full:]) > 1e-3


def test_every_plant_is_tried_here() -> None:
    elsewhere = {"resident-byte", "norm-byte-late"}  # test_residents.py
    quirks = {name for name in FACTORY.plants if name.startswith("quirk-")}  # test_quirks.py
    pools = {"memo-stale", "fingerprint-late", "swap-count-late"}  # test_pool.py
    watched = {name for name, caught in FACTORY.plants.items() if caught in ("gate:operands", "gate:census")}
    tried = {*OWN_CHECKS, "capture-restaged", "wrong-expert", "norm-swap", "window-short"}
    assert set(FACTORY.plants) == {*tried, *elsewhere, *quirks, *pools, *watched}
