"""The decoder without weights sends to a device what the decoder with a checkpoint sends: acceptance looks at no copy of it."""

from __future__ import annotations

from typing import Any

import pytest

from goldens import mini_checkpoint
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.release import RELEASE_CONFIG
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim.device import SimDevice
from tt_impl.device.ttnn.mirroring import Mirroring
from tt_impl.device.ttnn.rehearsal import layers_of_each_kind, rehearsing_decoder
from tt_impl.device.ttnn.step import OpCall, Recorder
from tt_impl.experts.layout import CheckpointExperts
from tt_impl.settings import default_settings

CHECKPOINT = Checkpoint.open(mini_checkpoint())
RELEASE = Kolibri1Config.model_validate(RELEASE_CONFIG)


def calls_of(decoder: Decoder, recorder: Recorder) -> list[list[OpCall]]:
    """Of each of two steps."""
    steps = []
    for token in (3, 5):
        recorder.calls.clear()
        decoder.step(token)
        steps.append(list(recorder.calls))
    return steps


def decoder(device: Any) -> Decoder:
    settings = default_settings(CHECKPOINT.config, DType.BFLOAT16)
    return Decoder(device, CHECKPOINT.config, CHECKPOINT, CheckpointExperts(CHECKPOINT), settings)


def test_without_weights_every_call_is_that_of_the_decoder_with_its_checkpoint() -> None:
    own, rehearsed = Recorder(SimDevice()), Recorder(SimDevice())
    expected = calls_of(decoder(own), own)
    found = calls_of(rehearsing_decoder(rehearsed, CHECKPOINT.config), rehearsed)  # type: ignore[arg-type]
    assert found == expected
    assert len(expected[0]) > 100
    assert {call.op for call in expected[0]} >= {"linear", "rms_norm", "rotary_embedding_hf", "paged_update_cache"}


def test_one_layer_of_each_kind_sends_each_call_that_all_layers_send() -> None:
    every, few = Recorder(SimDevice()), Recorder(SimDevice())
    whole, cut = CHECKPOINT.config, layers_of_each_kind(CHECKPOINT.config)
    sent = [calls_of(rehearsing_decoder(r, c), r)[0] for r, c in ((every, whole), (few, cut))]  # type: ignore[arg-type]
    assert (whole.num_hidden_layers, cut.num_hidden_layers) == (5, 2)
    assert set(sent[0]) == set(sent[1])
    assert len(sent[0]) > len(sent[1])


@pytest.mark.parametrize("config", [CHECKPOINT.config, RELEASE], ids=["mini", "release"])
def test_the_kinds_keep_their_order_and_all_else_stays(config: Kolibri1Config) -> None:
    cut = layers_of_each_kind(config)
    assert cut.layer_types == ("sliding_attention", "full_attention")
    assert cut.model_dump(exclude={"num_hidden_layers", "layer_types"}) == config.model_dump(
        exclude={"num_hidden_layers", "layer_types"}
    )


def test_a_device_s_own_reads_are_replaced_only_by_what_the_host_wrote_last() -> None:
    device = SimDevice()
    mirroring: Any = Mirroring(device, withheld_bytes=4096)
    x = mirroring.allocate_tensor_on_device((32, 32), DType.FLOAT32, Layout.TILE, "x")
    large = mirroring.allocate_tensor_on_device((64, 64), DType.FLOAT32, Layout.TILE, "large")
    ones, more = (CHECKPOINT.raw("lm_head.weight")[:n].astype("float32") for n in (1024, 4096))
    mirroring.copy_host_to_device_tensor(ones.reshape(32, 32), x)
    mirroring.copy_host_to_device_tensor(more.reshape(64, 64), large)
    assert device.event_counts()["writes"] == 1, "a write of more is handed on"
    device.synchronize_device()
    device.poke(x, 0, b"\x00" * 4096)  # as a device that forgets; a poke is a change that the host has not made
    made = mirroring.copy_device_to_host_tensor(x, blocking=True).array()
    assert not made.any(), "what changed since is not the host's"
    mirroring.copy_host_to_device_tensor(ones.reshape(32, 32), x)
    assert mirroring.copy_device_to_host_tensor(x, blocking=True).array().tobytes() == ones.tobytes()
    mirroring.free_all()
    assert device.get_memory_view().allocated_bytes == 0
