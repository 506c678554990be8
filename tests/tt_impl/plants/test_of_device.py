"""Faults planted in the calls to a device: each is caught as the plant of its name says, on any device."""

from __future__ import annotations

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.judge.ops import judge_ops
from oracle.judge.ops_audit import audit_ops
from oracle.judge.ops_plans import planned, plans
from oracle.judge.resident_audit import audit_residents
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import read_config
from oracle.subjects.protocol import SubjectIdentity
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim.device import SimDevice
from tt_impl.experts.layout import CheckpointExperts
from tt_impl.plants.catalogue import PLANTS, Parts
from tt_impl.plants.of_captures import IN_CAPTURES
from tt_impl.plants.of_census import IN_USE
from tt_impl.plants.of_device import PLANTED
from tt_impl.plants.of_device import planted as planted_in
from tt_impl.run_ops import OpRunner
from tt_impl.settings import default_settings

LAYER = 1
CONFIG = read_config(mini_checkpoint())
IDENTITY = SubjectIdentity("tt", "bf16", "bf16", ("ops",), {"kind": "sim"})


def audited(plant: str | None) -> str:
    """`gate:ops` where the ops' audit finds one of them wrong; empty otherwise."""
    runner = OpRunner(planted_in(SimDevice(), plant, LAYER, CONFIG), IDENTITY)
    cases = plans("bf16")
    findings = judge_ops(audit_ops(runner, cases), planned(cases)).findings
    return "gate:ops" if findings else ""


def run(plant: str | None) -> str:
    """`device-fault:KIND` or `gate:staging` as a few steps, and the audit after them, found; empty when nothing did."""
    checkpoint = Checkpoint.open(mini_checkpoint())
    settings = default_settings(checkpoint.config, DType.BFLOAT16)
    device = planted_in(SimDevice(), plant, LAYER, CONFIG)
    try:
        decoder = Decoder(device, checkpoint.config, checkpoint, CheckpointExperts(checkpoint), settings)
        for token in (3, 5):
            decoder.step(token)
    except DeviceFault as fault:
        return f"device-fault:{fault.kind}"
    audited = audit_residents(checkpoint, decoder.residents())
    return "gate:staging" if audited.violations else ""


@pytest.mark.parametrize("plant", [name for name in PLANTED if not name.startswith("quirk-") and name != "memo-byte"])
def test_a_fault_in_the_calls_is_caught_as_its_plant_says(plant: str) -> None:
    assert run(plant) == PLANTS[plant].caught_by


@pytest.mark.parametrize("plant", [name for name in PLANTED if name.startswith("quirk-")])
def test_a_quirk_of_an_op_is_caught_as_its_plant_says(plant: str) -> None:
    assert audited(plant) == PLANTS[plant].caught_by


def test_a_flipped_write_is_flipped_once_for_each_tensor_that_matches() -> None:
    device = planted_in(SimDevice(), "memo-byte", LAYER, CONFIG)
    honest = np.arange(32, dtype=np.float32)[None]
    for label, expected in (("layer1.expert3.down", 1), ("layer1.expert3.up_gate", 0), ("layer0.expert3.down", 0)):
        tensor = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.ROW_MAJOR, label)
        for flipped in (expected, 0):
            device.copy_host_to_device_tensor(honest, tensor)
            read = device.copy_device_to_host_tensor(tensor, blocking=True).bytes()
            changed = np.flatnonzero(read != honest.view(np.uint8).reshape(-1))
            assert changed.tolist() == [4] * flipped, label


def test_without_a_plant_nothing_is_caught() -> None:
    assert run(None) == ""
    assert audited(None) == ""


def test_every_plant_that_lies_in_the_device_is_here() -> None:
    """The others change weights, experts or rules, and need no device of their own."""
    checkpoint = Checkpoint.open(mini_checkpoint())
    plain = Parts(checkpoint.config, checkpoint, CheckpointExperts(checkpoint))
    planted_parts = {name: plant.apply(plain) for name, plant in PLANTS.items()}
    in_the_device = {n for n, p in planted_parts.items() if p.faults or p.open_device is not plain.open_device}
    assert in_the_device == {*PLANTED, *IN_USE, *IN_CAPTURES}
