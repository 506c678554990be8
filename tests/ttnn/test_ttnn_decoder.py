"""The decoder itself on ttnn's mock device: every call that it makes is accepted, and a step repeats itself.

The mock device reads back zeros, which the decoder's own verification of fills would refuse. So here a tensor that was last
written by the host is read back from a copy of that (`Mirroring`); what ops make stays zeros. No value means anything.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import SubjectRequest
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType, Tensor
from tt_impl.device.sim.layout import pack
from tt_impl.device.ttnn.acceptance import transfers_seen
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.device.ttnn.mirroring import MirroredRead, Mirroring
from tt_impl.experts.layout import CheckpointExperts
from tt_impl.settings import default_settings
from tt_impl.subject import FACTORY, TtSubject


class Choosing(Mirroring):
    """Whose top k are said to be the first columns: the mock device's zeros are no choice."""

    def copy_device_to_host_tensor(self, tensor: Tensor, *arguments: Any, **named: Any) -> MirroredRead:
        read = super().copy_device_to_host_tensor(tensor, *arguments, **named)
        if tensor.label != "topk":
            return read
        return MirroredRead(read, tensor, pack(np.arange(tensor.shape[1], dtype=np.uint32)[None], tensor.layout, tensor.dtype))


def decoder_on(device: Any, **levers: Any) -> Decoder:
    checkpoint = Checkpoint.open(mini_checkpoint())
    settings = replace(default_settings(checkpoint.config, DType.BFLOAT16), **levers)
    return Decoder(device, checkpoint.config, checkpoint, CheckpointExperts(checkpoint), settings)


def test_the_decoder_steps_and_its_second_step_compiles_nothing(device: TtnnDevice) -> None:
    decoder = decoder_on(mirroring := Mirroring(device))
    programs, stats = [], []
    for token in (3, 5, 7):
        evidence = decoder.step(token)
        assert evidence.token == token
        programs.append(mirroring.program_cache_entries())
        stats.append(decoder.stats())
    assert len(set(programs)) == 1
    ops = [now["device.ops"] - before["device.ops"] for before, now in itertools.pairwise(stats)]
    assert ops[0] == ops[1] > 100
    assert stats[0]["fills"] == stats[2]["fills"] > 0, "the zeros of the mock device route every step alike"


def test_a_batched_step_is_accepted_with_users_that_idle(device: TtnnDevice) -> None:
    decoder = decoder_on(mirroring := Mirroring(device), users=4)
    programs = []
    for tokens in ([3, 4, None, 5], [None, 3, 9, 2]):
        shown = decoder.step_users(tokens)
        assert [step and step.token for step in shown] == tokens
        programs.append(mirroring.program_cache_entries())
    assert programs[0] == programs[1]
    assert decoder.stats()["companion_steps"] == 4


def test_a_router_on_the_device_is_accepted_and_the_mock_devices_zeros_are_no_choice(device: TtnnDevice) -> None:
    with pytest.raises(DeviceFault, match="1 of 1 experts chosen more than once, first 0") as caught:
        decoder_on(Mirroring(device), topk="device").step(3)
    assert caught.value.kind == "router-ids"
    decoder = decoder_on(choosing := Choosing(device), topk="device")
    programs = []
    for token in (3, 5):
        chosen = decoder.step(token).expert_ids
        assert chosen is not None
        assert chosen.tolist() == [list(range(6))] * 5
        programs.append(choosing.program_cache_entries())
    assert programs[0] == programs[1]
    stats = decoder.stats()
    assert stats["device_topks"] == stats["device.op.topk"] == stats["device.op.gather"] == 2 * 5


def test_the_decoder_refuses_the_mock_devices_zeros_by_itself(device: TtnnDevice) -> None:
    with pytest.raises(DeviceFault) as caught:
        decoder_on(device).step(3)
    assert caught.value.kind == "slot-verification"


def test_ttnn_is_told_of_no_transfer_that_the_decoder_did_not_ask_for(device: TtnnDevice) -> None:
    decoder = decoder_on(Mirroring(device))
    decoder.step(3)
    before = decoder.stats()
    with transfers_seen(device) as seen:
        decoder.step(5)
    after = decoder.stats()
    reads = ("device.blocking_reads", "device.non_blocking_reads")
    asked = {
        "reads": sum(after.get(name, 0) - before.get(name, 0) for name in reads),
        "writes": after["device.writes"] - before["device.writes"],
    }
    assert seen == asked
    layers = len(np.unique([name.split(".")[2] for name in decoder._residents.staged if name.startswith("model.layers.")]))
    assert asked["reads"] == 2 * layers + 2, "router logits and the tap of each layer, the embedding row, and the logits"


def opened(device: TtnnDevice, monkeypatch: pytest.MonkeyPatch, plant: str | None) -> TtSubject:
    """The subject as `gate --device ttnn` opens it, were this a card."""

    monkeypatch.setattr(TtnnDevice, "open", lambda **_: Mirroring(device))
    return FACTORY.open(SubjectRequest(mini_checkpoint(), device="ttnn", plant=plant))


def test_the_subject_opens_on_ttnn_and_says_on_what(device: TtnnDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = opened(device, monkeypatch, None)
    told = subject.identity.device
    assert (told["kind"], told["level"], told["dram_bytes"]) == ("ttnn", "mock", "34183576576")
    assert subject.step(3).position == 0


@pytest.mark.parametrize("plant", ["slot-byte", "missing-drain"])
def test_a_fault_planted_in_its_device_is_caught_as_it_says(
    device: TtnnDevice, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    subject = opened(device, monkeypatch, plant)
    with pytest.raises(DeviceFault) as caught:
        [subject.step(token) for token in (3, 5)]
    assert f"device-fault:{caught.value.kind}" == FACTORY.plants[plant]
