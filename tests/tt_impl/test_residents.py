"""Residents read back: what the device holds, in every layout and dtype, and not what the host once had."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oracle.errors import DeviceFault
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.inventory import inventory
from oracle.subjects.protocol import ShowsResidents, SubjectRequest
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.subject import FACTORY


def stored(tiny: Checkpoint, name: str, held: str) -> np.ndarray:
    raw = tiny.raw(name)
    if (tiny.spec(name).dtype, held) == ("BF16", "F32"):
        return raw.view(DType.BFLOAT16.host).astype(np.float32).view(np.uint8)
    assert held == tiny.spec(name).dtype
    return raw


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
def test_every_resident_is_read_back_once_with_the_checkpoint_s_bytes(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder], activation: DType
) -> None:
    images = list(open_decoder(activation).residents())
    expected = sorted(spec.name for spec in inventory(tiny.config) if ".mlp.experts." not in spec.name)
    assert sorted(image.name for image in images) == expected
    for image in images:
        assert image.data.dtype == np.uint8
        assert image.data.tobytes() == stored(tiny, image.name, image.dtype).tobytes(), image.name
    held = {image.name: image.dtype for image in images}
    plain = "BF16" if activation is DType.BFLOAT16 else "F32"
    assert held["model.norm.weight"] == held["lm_head.weight"] == held["model.layers.0.mlp.gate.weight"] == plain
    assert held["model.layers.0.moe.router.expert_bias"] == "F32"
    assert held["model.embed_tokens.weight"] == "BF16"
    assert held["model.layers.2.self_attn.q_proj.weight"] == "F8_E4M3"


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
def test_a_byte_changed_on_the_device_shows_wherever_it_is(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder], activation: DType
) -> None:
    device = SimDevice()
    decoder = open_decoder(activation, device=device)
    staged = decoder._residents.staged
    assert len(staged) == sum(".mlp.experts." not in spec.name for spec in inventory(tiny.config))
    list(decoder.residents())  # settles the staging
    for tensor in staged.values():
        device.poke(tensor, 0, bytes([device.copy_device_to_host_tensor(tensor, blocking=True).bytes()[0] ^ 4]))
    for image in decoder.residents():
        differs = np.flatnonzero(image.data != stored(tiny, image.name, image.dtype))
        assert differs.tolist() == [0], image.name


def test_it_can_be_read_again_after_decoding_and_after_a_reset(open_decoder: Callable[..., Decoder], tokens: list[int]) -> None:
    decoder = open_decoder()
    before = {image.name: image.data.tobytes() for image in decoder.residents()}
    for token in tokens:
        decoder.step(token)
    assert {image.name: image.data.tobytes() for image in decoder.residents()} == before
    decoder.reset()
    assert {image.name: image.data.tobytes() for image in decoder.residents()} == before


def test_a_closed_device_gives_nothing(open_decoder: Callable[..., Decoder]) -> None:
    decoder = open_decoder()
    decoder.close()
    with pytest.raises(DeviceFault, match="closed"):
        next(iter(decoder.residents()))


def test_the_subject_has_the_ability(tiny: Checkpoint) -> None:
    subject = FACTORY.open(SubjectRequest(tiny.folder))
    assert isinstance(subject, ShowsResidents)


@pytest.mark.parametrize("arm", ["bf16", "exact"])
@pytest.mark.parametrize(
    ("plant", "victim", "at"),
    [
        ("resident-byte", "model.layers.1.self_attn.o_proj.weight", 7),
        ("norm-byte-late", "model.layers.1.input_layernorm.weight", 0),
    ],
)
def test_a_planted_byte_is_the_only_one_that_differs_and_the_late_one_differs_late(
    tiny: Checkpoint, tokens: list[int], plant: str, victim: str, at: int, arm: str
) -> None:
    subject = FACTORY.open(SubjectRequest(tiny.folder, arm=arm, plant=plant))

    def differing() -> dict[str, list[int]]:
        found = {i.name: np.flatnonzero(i.data != stored(tiny, i.name, i.dtype)).tolist() for i in subject.residents()}
        return {name: places for name, places in found.items() if places}

    assert differing() == ({victim: [at]} if plant == "resident-byte" else {})
    for token in tokens[:3]:
        subject.step(token)
    assert differing() == {victim: [at]}
