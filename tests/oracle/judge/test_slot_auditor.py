"""The slot auditor: each way in which an expert's bytes, or a use of them, can be wrong is a violation of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracle.judge.slot_audit import SlotAuditor
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, SCALE_SUFFIX, expert_weight
from oracle.subjects.protocol import VerifiedFill
from oracle.subjects.run import SlotEvidence

LAYER, EXPERT, SLOT = 2, 5, 3
Fill = Callable[..., VerifiedFill]


@pytest.fixture
def auditor(checkpoint: Checkpoint) -> SlotAuditor:
    return SlotAuditor(checkpoint)


@pytest.fixture
def fill(checkpoint: Checkpoint) -> Fill:
    """An honest fill of one projection, with fields replaced."""

    def build(projection: str, expert: int = EXPERT, **changes: Any) -> VerifiedFill:
        name = expert_weight(LAYER, expert, projection)
        image = np.concatenate([checkpoint.raw(name), checkpoint.raw(name + SCALE_SUFFIX)])
        honest = VerifiedFill(LAYER, expert, projection, SLOT, 1, image, image.copy(), event=10)
        return replace(honest, **changes)

    return build


def fill_all(auditor: SlotAuditor, fill: Fill, **changes: Any) -> None:
    for projection in EXPERT_PROJECTIONS:
        auditor.verified(fill(projection, **changes))


def use(auditor: SlotAuditor, *, expert: int = EXPERT, slot: int = SLOT, generation: int = 1, event: int = 11) -> None:
    auditor.used(LAYER, expert, slot, generation, event)


def only_violation(auditor: SlotAuditor) -> str:
    [violation] = auditor.evidence().violations
    return violation


def test_an_honest_fill_used_after_it_was_verified_is_no_violation(auditor: SlotAuditor, fill: Fill) -> None:
    fill_all(auditor, fill)
    use(auditor)
    use(auditor, event=12)
    size = sum(fill(p).read_back.nbytes for p in EXPERT_PROJECTIONS)
    assert auditor.evidence() == SlotEvidence(1, size, size, uses=2, expert_uses=((2, 5, 2),))


@pytest.mark.parametrize("part", ["first weight", "last weight", "first scale", "last scale"])
@pytest.mark.parametrize("projection", EXPERT_PROJECTIONS)
def test_one_flipped_device_byte_is_found_in_every_projection_and_in_its_scales(
    auditor: SlotAuditor, fill: Fill, checkpoint: Checkpoint, projection: str, part: str
) -> None:
    weights = checkpoint.raw(expert_weight(LAYER, EXPERT, projection)).nbytes
    spoiled = fill(projection)
    at = {"first weight": 0, "last weight": weights - 1, "first scale": weights, "last scale": spoiled.read_back.nbytes - 1}
    spoiled.read_back[at[part]] ^= 1
    auditor.verified(spoiled)
    against_shadow, against_checkpoint = auditor.evidence().violations
    where = f"layer {LAYER} expert {EXPERT} {projection} slot {SLOT} generation 1: 1 of {spoiled.read_back.size} device bytes"
    assert against_shadow.startswith(f"{where} differ from the shadow, first at byte {at[part]} ")
    assert against_checkpoint.startswith(f"{where} differ from the checkpoint, first at byte {at[part]} ")


def test_shadow_and_device_corrupted_alike_are_found_by_the_checkpoint_s_bytes(auditor: SlotAuditor, fill: Fill) -> None:
    shadow = fill("up_proj").shadow.copy()
    shadow[100] ^= 0x40
    auditor.verified(fill("up_proj", shadow=shadow, read_back=shadow.copy()))
    assert "differ from the checkpoint, first at byte 100" in only_violation(auditor)


def test_a_shadow_that_is_not_what_the_device_holds_is_found(auditor: SlotAuditor, fill: Fill) -> None:
    shadow = fill("up_proj").shadow.copy()
    shadow[100] ^= 0x40
    auditor.verified(fill("up_proj", shadow=shadow))
    assert "differ from the shadow, first at byte 100" in only_violation(auditor)


def test_another_expert_s_bytes_whole_are_found_in_every_projection(auditor: SlotAuditor, fill: Fill) -> None:
    for projection in EXPERT_PROJECTIONS:
        auditor.verified(fill(projection, expert=EXPERT + 1))  # honest on its own
        other = fill(projection, expert=EXPERT + 1)
        auditor.verified(fill(projection, slot=SLOT + 1, shadow=other.shadow, read_back=other.read_back))
    violations = auditor.evidence().violations
    assert len(violations) == len(EXPERT_PROJECTIONS)
    assert all(f"expert {EXPERT} " in v and "differ from the checkpoint" in v for v in violations)


def test_gate_and_up_exchanged_are_found(auditor: SlotAuditor, fill: Fill) -> None:
    gate, up = fill("gate_proj"), fill("up_proj")
    auditor.verified(replace(gate, projection="up_proj"))
    auditor.verified(replace(up, projection="gate_proj"))
    assert sum("differ from the checkpoint" in v for v in auditor.evidence().violations) == 2


@pytest.mark.parametrize(
    "views",
    [
        lambda buffer, size: (buffer[:size], buffer[:size]),
        lambda buffer, size: (buffer[:size], buffer[1 : size + 1]),
        lambda buffer, size: (buffer[:size], buffer[size - 1 : 2 * size - 1]),
        lambda buffer, size: (buffer[:size], buffer[size - 1 :: -1]),
    ],
    ids=["the same", "one byte on", "one byte in common", "backwards"],
)
def test_images_that_share_memory_are_refused_whatever_they_hold(
    auditor: SlotAuditor, fill: Fill, views: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
) -> None:
    image = fill("up_proj").shadow
    buffer = np.zeros(2 * image.size, dtype=np.uint8)
    buffer[: image.size] = image
    shadow, read_back = views(buffer, image.size)
    auditor.verified(fill("up_proj", shadow=shadow, read_back=read_back))
    assert "share memory" in auditor.evidence().violations[0]


def test_neighbours_in_one_buffer_do_not_share_memory(auditor: SlotAuditor, fill: Fill) -> None:
    image = fill("up_proj").shadow
    buffer = np.concatenate([image, image])
    auditor.verified(fill("up_proj", shadow=buffer[: image.size], read_back=buffer[image.size :]))
    assert auditor.evidence().violations == ()


@pytest.mark.parametrize("missing", EXPERT_PROJECTIONS)
def test_use_before_a_projection_was_verified_names_it(auditor: SlotAuditor, fill: Fill, missing: str) -> None:
    for projection in EXPERT_PROJECTIONS:
        if projection != missing:
            auditor.verified(fill(projection))
    use(auditor)
    assert only_violation(auditor).endswith(f"used before {missing} was verified")
    assert auditor.evidence().fills == 0


def test_use_without_any_verification_is_found(auditor: SlotAuditor) -> None:
    use(auditor)
    assert "used without any verified fill" in only_violation(auditor)


@pytest.mark.parametrize(("event", "late"), [(0, True), (9, True), (10, False), (11, False)])
def test_use_before_the_event_that_settled_the_read_back_is_found(
    auditor: SlotAuditor, fill: Fill, event: int, late: bool
) -> None:
    fill_all(auditor, fill)
    use(auditor, event=event)
    found = [v for v in auditor.evidence().violations if v.endswith(f"used at event {event}, verified only at event 10")]
    assert len(found) == late
    assert len(auditor.evidence().violations) == late


def test_one_projection_that_settled_late_makes_the_use_early(auditor: SlotAuditor, fill: Fill) -> None:
    for projection in EXPERT_PROJECTIONS:
        auditor.verified(fill(projection, event=20 if projection == "down_proj" else 10))
    use(auditor, event=15)
    assert "used at event 15, verified only at event 20" in only_violation(auditor)


@pytest.mark.parametrize("used", [1, 3])
def test_use_of_a_generation_other_than_the_verified_one_is_found(auditor: SlotAuditor, fill: Fill, used: int) -> None:
    fill_all(auditor, fill)
    fill_all(auditor, fill, generation=2)
    use(auditor, generation=2)
    use(auditor, generation=used)
    assert f"generation {used}: used without any verified fill" in only_violation(auditor)


def test_use_of_the_next_generation_while_only_part_of_it_is_verified_is_found(auditor: SlotAuditor, fill: Fill) -> None:
    fill_all(auditor, fill)
    auditor.verified(fill("gate_proj", generation=2))
    use(auditor, generation=2)
    assert "used before up_proj was verified" in only_violation(auditor)


def test_use_of_the_old_expert_after_its_slot_was_refilled_is_found(auditor: SlotAuditor, fill: Fill) -> None:
    fill_all(auditor, fill)
    fill_all(auditor, fill, expert=EXPERT + 1, generation=2)
    use(auditor, expert=EXPERT, generation=2)
    assert only_violation(auditor).endswith(f"used as expert {EXPERT}, but the slot was verified as expert {EXPERT + 1}")


def test_use_of_another_slot_is_found(auditor: SlotAuditor, fill: Fill) -> None:
    fill_all(auditor, fill)
    use(auditor, slot=SLOT + 1)
    assert "used without any verified fill" in only_violation(auditor)


def test_the_same_slot_number_of_another_layer_is_another_slot(auditor: SlotAuditor, fill: Fill) -> None:
    fill_all(auditor, fill)
    auditor.used(LAYER + 1, EXPERT, SLOT, 1, 11)
    assert "used without any verified fill" in only_violation(auditor)


def test_a_projection_verified_twice_is_found(auditor: SlotAuditor, fill: Fill) -> None:
    fill_all(auditor, fill)
    auditor.verified(fill("gate_proj"))
    assert "verified twice" in only_violation(auditor)


def test_a_fill_of_an_older_generation_is_found(auditor: SlotAuditor, fill: Fill) -> None:
    fill_all(auditor, fill, generation=2)
    auditor.verified(fill("gate_proj", generation=1))
    assert only_violation(auditor).endswith(f"the slot holds expert {EXPERT} of generation 2")


def test_two_experts_in_one_generation_of_a_slot_are_found(auditor: SlotAuditor, fill: Fill) -> None:
    auditor.verified(fill("gate_proj"))
    auditor.verified(fill("up_proj", expert=EXPERT + 1))
    assert only_violation(auditor).endswith(f"the slot holds expert {EXPERT} of generation 1")


@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 0)])
def test_images_short_of_bytes_are_found(auditor: SlotAuditor, fill: Fill, cut: slice) -> None:
    honest = fill("down_proj")
    auditor.verified(fill("down_proj", shadow=honest.shadow[cut], read_back=honest.read_back[cut]))
    assert f"against {honest.shadow.nbytes} of the checkpoint" in only_violation(auditor)


def test_images_of_other_types_are_found_and_not_compared_by_value(auditor: SlotAuditor, fill: Fill) -> None:
    honest = fill("down_proj")
    auditor.verified(fill("down_proj", read_back=honest.read_back.astype(np.float32)))
    assert all("bytes of float32 against" in v for v in auditor.evidence().violations)
    assert len(auditor.evidence().violations) == 2


def test_a_projection_that_does_not_exist_is_found(auditor: SlotAuditor, fill: Fill) -> None:
    auditor.verified(replace(fill("down_proj"), projection="gate_up_proj"))
    assert re.search("gate_up_proj .* no such .*projection", only_violation(auditor))


@pytest.mark.parametrize("place", [{"expert": 999}, {"layer": 99}, {"expert": -1}])
def test_a_fill_for_an_expert_that_the_checkpoint_does_not_have_is_the_subject_s_fault(
    auditor: SlotAuditor, fill: Fill, place: dict[str, int]
) -> None:
    auditor.verified(replace(fill("down_proj"), **place))
    assert auditor.evidence().violations


def test_past_a_hundred_violations_the_rest_is_counted(auditor: SlotAuditor) -> None:
    for _ in range(130):
        use(auditor)
    violations = auditor.evidence().violations
    assert len(violations) == 101
    assert violations[-1] == "and 30 more"
    assert auditor.evidence().uses == 130
