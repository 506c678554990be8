"""The resident auditor: each way in which a read-back can differ from the checkpoint is a violation of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle.judge.resident_controls as resident_controls
from oracle.judge.resident_audit import audit_residents, plan_table, resident_plan
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import inventory
from oracle.subjects.protocol import ResidentImage
from oracle.subjects.run import ResidentEvidence

NORM = "model.layers.2.post_ffn_norm.weight"
OTHER_NORM = "model.layers.2.post_attn_norm.weight"
WEIGHT = "model.layers.1.mlp.shared_experts.down_proj.weight"
GRID = WEIGHT + "_scale_inv"
BIAS = "model.layers.0.moe.router.expert_bias"
NAMES = (NORM, OTHER_NORM, WEIGHT, GRID, BIAS, "model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture
def images(tiny: Checkpoint) -> dict[str, ResidentImage]:
    """An honest read-back of everything, in the checkpoint's own dtypes."""
    plan = resident_plan(tiny.config)
    return {name: ResidentImage(name, spec.dtype, tiny.raw(name).copy()) for name, spec in plan.items()}


def violations(tiny: Checkpoint, images: dict[str, ResidentImage]) -> tuple[str, ...]:
    return audit_residents(tiny, images.values()).violations


def test_an_honest_read_back_is_counted_by_kind_and_has_no_violation(
    tiny: Checkpoint, images: dict[str, ResidentImage]
) -> None:
    evidence = audit_residents(tiny, images.values())
    assert evidence == ResidentEvidence(1, plan_table(resident_plan(tiny.config)), ())
    assert sum(count for _, count, _ in evidence.kinds) == len(images)
    assert sum(size for _, _, size in evidence.kinds) == sum(image.data.nbytes for image in images.values())


def test_the_plan_is_every_tensor_of_the_checkpoint_but_the_routed_experts(tiny: Checkpoint) -> None:
    names = {spec.name for spec in inventory(tiny.config)}
    left_out = names - resident_plan(tiny.config).keys()
    layers, experts = tiny.config.num_hidden_layers, tiny.config.num_experts
    assert len(left_out) == layers * experts * 3 * 2
    assert all(".mlp.experts." in name for name in left_out)


def widened(data: np.ndarray) -> np.ndarray:
    """bf16 bytes as fp32 bytes, made otherwise than the auditor makes them."""
    return np.array([[0, 0, low, high] for low, high in data.reshape(-1, 2).tolist()], np.uint8).reshape(-1)


def test_bf16_tensors_may_be_held_as_fp32_that_widens_them_exactly(tiny: Checkpoint, images: dict[str, ResidentImage]) -> None:
    for name in (NORM, BIAS):
        images[name] = replace(images[name], dtype="F32", data=widened(images[name].data))
    assert violations(tiny, images) == ()


@pytest.mark.parametrize("at", [0, 1, 2, 3, -1])
def test_one_bit_of_a_widened_tensor_is_found_in_its_zero_half_too(
    tiny: Checkpoint, images: dict[str, ResidentImage], at: int
) -> None:
    data = widened(images[NORM].data)
    data[at] ^= 1
    images[NORM] = replace(images[NORM], dtype="F32", data=data)
    [violation] = violations(tiny, images)
    assert violation.startswith(f"{NORM}: 1 of {data.size} device bytes differ from the checkpoint, first at byte")


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("name", NAMES)
def test_one_flipped_bit_is_found_in_every_kind_of_tensor(
    tiny: Checkpoint, images: dict[str, ResidentImage], name: str, at: int
) -> None:
    images[name].data[at] ^= 0x80
    [violation] = violations(tiny, images)
    size = images[name].data.size
    assert violation.startswith(f"{name}: 1 of {size} device bytes differ from the checkpoint, first at byte {at % size} ")


@given(data=st.data())
def test_any_single_byte_of_any_tensor_is_found(tiny: Checkpoint, data: Any) -> None:
    plan = resident_plan(tiny.config)
    name = data.draw(st.sampled_from(sorted(plan)))
    flipped = tiny.raw(name).copy()
    flipped[data.draw(st.integers(0, flipped.size - 1))] ^= data.draw(st.integers(1, 255))
    image = ResidentImage(name, plan[name].dtype, flipped)
    [violation] = audit_residents(tiny, [image], {name: plan[name]}).violations
    assert violation.startswith(f"{name}: 1 of ")


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_is_not_read_back_is_named(tiny: Checkpoint, images: dict[str, ResidentImage], name: str) -> None:
    del images[name]
    assert violations(tiny, images) == (f"{name}: not read back",)


def test_a_tensor_that_is_no_resident_is_refused(tiny: Checkpoint, images: dict[str, ResidentImage]) -> None:
    routed = "model.layers.0.mlp.experts.1.up_proj.weight"
    for name in (routed, "model.layers.0.self_attn.qkv"):
        images[name] = ResidentImage(name, "F8_E4M3", tiny.raw(routed).copy())
    assert violations(tiny, images) == (
        f"{routed}: no resident tensor of the checkpoint has this name",
        "model.layers.0.self_attn.qkv: no resident tensor of the checkpoint has this name",
    )


def test_a_tensor_read_back_twice_is_found_even_where_both_are_right(
    tiny: Checkpoint, images: dict[str, ResidentImage]
) -> None:
    images["again"] = replace(images[NORM], data=images[NORM].data.copy())
    assert violations(tiny, images) == (f"{NORM}: read back twice",)


def test_two_tensors_of_one_shape_swapped_are_both_found(tiny: Checkpoint, images: dict[str, ResidentImage]) -> None:
    first, second = images[NORM], images[OTHER_NORM]
    images[NORM], images[OTHER_NORM] = replace(first, data=second.data), replace(second, data=first.data)
    assert [v.split(":")[0] for v in violations(tiny, images)] == [OTHER_NORM, NORM]


@pytest.mark.parametrize(
    "change",
    [lambda a: a[:-1], lambda a: a[:0], lambda a: np.append(a, a[-1:]), lambda a: a[None], lambda a: a.view(np.int8)],
    ids=["short", "empty", "long", "another shape", "another type"],
)
def test_bytes_of_another_size_shape_or_type_are_found_and_never_broadcast(
    tiny: Checkpoint, images: dict[str, ResidentImage], change: Any
) -> None:
    images[WEIGHT] = replace(images[WEIGHT], data=change(images[WEIGHT].data))
    [violation] = violations(tiny, images)
    assert violation.endswith(f"against {tiny.raw(WEIGHT).nbytes}")


@pytest.mark.parametrize(("name", "held"), [(NORM, "F16"), (WEIGHT, "BF16"), (WEIGHT, "F32"), (GRID, "BF16"), (NORM, "")])
def test_a_dtype_that_is_no_exact_change_of_the_stored_one_is_a_finding_and_not_compared(
    tiny: Checkpoint, images: dict[str, ResidentImage], name: str, held: str
) -> None:
    images[name] = replace(images[name], dtype=held)
    [violation] = violations(tiny, images)
    assert violation.startswith(f"{name}: held as {held}, which ")


def test_the_checkpoint_s_own_file_is_not_the_device_s_bytes(tiny: Checkpoint, images: dict[str, ResidentImage]) -> None:
    again = Checkpoint.open(tiny.folder)  # another map of the same file
    maps = {NORM: tiny.raw(NORM), WEIGHT: again.raw(WEIGHT)[:], GRID: np.asarray(again.raw(GRID).data)}
    for name, data in maps.items():
        images[name] = replace(images[name], data=data)
    wrong = "the read-back is a map of a file, not the device's bytes"
    assert sorted(violations(tiny, images)) == sorted(f"{name}: {wrong}" for name in maps)


def test_images_that_share_memory_are_refused_whatever_they_hold(tiny: Checkpoint, images: dict[str, ResidentImage]) -> None:
    images[OTHER_NORM] = replace(images[OTHER_NORM], data=images[NORM].data)
    shared = [v.split(":")[0] for v in violations(tiny, images) if "shares memory with another tensor's" in v]
    assert len(shared) == 1
    assert shared[0] in (NORM, OTHER_NORM)


def test_one_byte_in_common_is_shared_memory(tiny: Checkpoint, images: dict[str, ResidentImage]) -> None:
    first, second = images[OTHER_NORM].data, images[NORM].data
    both = np.concatenate([first, second])
    images[OTHER_NORM] = replace(images[OTHER_NORM], data=both[: first.size])
    images[NORM] = replace(images[NORM], data=both[first.size :])
    assert violations(tiny, images) == ()  # neighbours
    images[NORM] = replace(images[NORM], data=both[first.size - 1 : -1])
    assert sum("shares memory" in violation for violation in violations(tiny, images)) == 1


def test_a_buffer_may_serve_for_one_read_after_the_other(tiny: Checkpoint, images: dict[str, ResidentImage]) -> None:
    """On the real card a read lands in pinned host memory; what counts is what it holds while it is looked at."""
    buffer = np.empty(max(image.data.size for image in images.values()), np.uint8)

    def read() -> Iterator[ResidentImage]:
        for image in images.values():
            landed = buffer[: image.data.size]
            landed[:] = image.data
            yield replace(image, data=landed)
            del landed

    assert audit_residents(tiny, read()).violations == ()


def test_past_a_hundred_violations_the_rest_is_counted(tiny: Checkpoint) -> None:
    surplus = [ResidentImage(f"no {i}", "F32", np.zeros(4, np.uint8)) for i in range(130)]
    found = audit_residents(tiny, surplus).violations
    assert len(found) == 101
    assert found[-1] == f"and {30 + len(resident_plan(tiny.config))} more"


def test_a_subject_that_shows_nothing_lacks_everything(tiny: Checkpoint) -> None:
    evidence = audit_residents(tiny, [])
    assert (evidence.readbacks, evidence.kinds) == (1, ())
    assert evidence.violations


def test_its_controls_behave_on_a_tiny_and_on_the_mini_checkpoint(tiny: Checkpoint, checkpoint: Checkpoint) -> None:
    for each in (tiny, checkpoint):
        results = resident_controls.resident_controls(each)
        assert [r.expected for r in results] == ["pass", *["fire"] * len(resident_controls.FAULTS)]
        assert all(r.behaved for r in results), results


@pytest.mark.parametrize(
    ("method", "noticed"),
    [
        ("_compare", {"flipped byte", "tensors swapped", "a byte short"}),
        ("_check_memory", {"checkpoint's own memory", "shared memory"}),
        ("_report", set(resident_controls.FAULTS)),
    ],
)
def test_an_auditor_that_stopped_looking_is_found_by_its_controls(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch, method: str, noticed: set[str]
) -> None:
    import oracle.judge.resident_audit as resident_audit

    monkeypatch.setattr(resident_audit._ResidentAuditor, method, lambda *_: None)
    missed = {r.name.removeprefix("residents ") for r in resident_controls.resident_controls(tiny) if not r.behaved}
    assert missed == noticed
