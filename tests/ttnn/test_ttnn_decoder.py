"""The decoder itself on ttnn's mock device: every call that it makes is accepted, and a step repeats itself.

The mock device reads back zeros, which the decoder's own verification of fills would refuse. So here a tensor that was last
written by the host is read back from a copy that this test keeps; what ops make stays zeros. No value means anything.
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
from tt_impl.device.protocol import DType, HostArray, Layout, Tensor
from tt_impl.device.sim.layout import pack, unpack
from tt_impl.device.ttnn.acceptance import transfers_seen
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.expert_layout import CheckpointExperts
from tt_impl.settings import default_settings
from tt_impl.subject import FACTORY, TtSubject


class MirroredRead:
    """A read of the mock device whose bytes are replaced by those that the host had written, if it had."""

    def __init__(self, read: Any, tensor: Tensor, written: Any) -> None:
        self._read, self._written = read, written
        self._as: tuple[tuple[int, ...], DType, Layout] = (tensor.shape, tensor.dtype, tensor.layout)

    @property
    def settled(self) -> bool:
        return self._read.settled

    @property
    def event(self) -> int:
        return self._read.event

    def bytes(self) -> Any:
        found = self._read.bytes()
        if self._written is not None:
            found[:] = self._written
        return found

    def array(self) -> HostArray:
        return unpack(self.bytes(), *self._as)


class Mirroring(TtnnDevice):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._written: dict[tuple[int, int], Any] = {}

    def copy_host_to_device_tensor(self, array: HostArray, tensor: Tensor, **queue: Any) -> None:
        super().copy_host_to_device_tensor(array, tensor, **queue)
        self._written[tensor.identity, tensor.generation] = pack(array, tensor.layout, tensor.dtype)

    def copy_device_to_host_tensor(self, tensor: Tensor, *arguments: Any, **named: Any) -> Any:
        read = super().copy_device_to_host_tensor(tensor, *arguments, **named)
        return MirroredRead(read, tensor, self._written.get((tensor.identity, tensor.generation)))


class Choosing(Mirroring):
    """Whose top k are said to be the first columns: the mock device's zeros are no choice."""

    def copy_device_to_host_tensor(self, tensor: Tensor, *arguments: Any, **named: Any) -> Any:
        read = super().copy_device_to_host_tensor(tensor, *arguments, **named)
        if tensor.label != "topk":
            return read
        return MirroredRead(read, tensor, pack(np.arange(tensor.shape[1], dtype=np.uint32)[None], tensor.layout, tensor.dtype))


def decoder_on(device: TtnnDevice, **levers: Any) -> Decoder:
    checkpoint = Checkpoint.open(mini_checkpoint())
    settings = replace(default_settings(checkpoint.config, DType.BFLOAT16), **levers)
    return Decoder(device, checkpoint.config, checkpoint, CheckpointExperts(checkpoint), settings)


def test_the_decoder_steps_and_its_second_step_compiles_nothing(device: TtnnDevice) -> None:
    decoder = decoder_on(mirroring := Mirroring(device.ttnn, device._mesh, command_queues=2, is_mock=True))
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
    decoder = decoder_on(mirroring := Mirroring(device.ttnn, device._mesh, command_queues=2, is_mock=True), users=4)
    programs = []
    for tokens in ([3, 4, None, 5], [None, 3, 9, 2]):
        shown = decoder.step_users(tokens)
        assert [step and step.token for step in shown] == tokens
        programs.append(mirroring.program_cache_entries())
    assert programs[0] == programs[1]
    assert decoder.stats()["companion_steps"] == 4


def test_a_router_on_the_device_is_accepted_and_the_mock_devices_zeros_are_no_choice(device: TtnnDevice) -> None:
    with pytest.raises(DeviceFault, match="1 of 1 experts chosen more than once, first 0") as caught:
        decoder_on(Mirroring(device.ttnn, device._mesh, command_queues=2, is_mock=True), topk="device").step(3)
    assert caught.value.kind == "router-ids"
    decoder = decoder_on(choosing := Choosing(device.ttnn, device._mesh, command_queues=2, is_mock=True), topk="device")
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
    decoder = decoder_on(mirroring := Mirroring(device.ttnn, device._mesh, command_queues=2, is_mock=True))
    decoder.step(3)
    before = decoder.stats()
    with transfers_seen(mirroring) as seen:
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

    def mirroring(**_: Any) -> Mirroring:
        return Mirroring(device.ttnn, device._mesh, command_queues=1, is_mock=True)

    monkeypatch.setattr(TtnnDevice, "open", mirroring)
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
