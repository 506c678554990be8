"""The acceptance report: what it covers, what it says, and that it can say no."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from ttnn_process import RunsPython

from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.kolibri1.config import Kolibri1Config, read_config
from oracle.kolibri1.release import RELEASE_CONFIG
from tt_impl.device.protocol import Device, Tensor
from tt_impl.device.sim.device import SimDevice
from tt_impl.device.ttnn.acceptance import CAVEAT, DECODER, PROTOCOL, StepAccepted, accept_decoder, accept_step
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.device.ttnn.plan import accept_memory
from tt_impl.device.ttnn.step import DecodeStep, Recorder

MINI = read_config(mini_checkpoint())
RELEASE = Kolibri1Config.model_validate(RELEASE_CONFIG)
OPS = {name for name in vars(Device) if not name.startswith("_")} - {
    *("event_number", "event_counts", "get_memory_view", "close", "allocate_tensor_on_device", "deallocate"),
    *("copy_host_to_device_tensor", "copy_device_to_host_tensor", "record_event", "wait_for_event", "event_synchronize"),
    *("synchronize_device", "begin_trace_capture", "end_trace_capture", "execute_trace", "release_trace"),
    *("record_ops", "recorded_ops", "captures", "forget_captures"),
}
"""Of the protocol."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, run: RunsPython) -> tuple[Any, str]:
    """The command's own, from a process of its own: its JSON and its text."""
    file = tmp_path_factory.mktemp("acceptance") / "acceptance.json"
    done = run("-m", "tt_impl.device.ttnn.acceptance", "--json", str(file), mock=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(file.read_text(encoding="utf-8")), done.stdout


def test_every_op_of_the_protocol_is_accepted_in_both_geometries(report: Any) -> None:
    document, _ = report
    assert [geometry["name"] for geometry in document["geometries"]] == ["mini", "release"]
    for geometry in document["geometries"]:
        calls = [call for step in geometry["steps"] for call in step["ops"]]
        assert {call["op"] for call in calls} == OPS
        assert {call["outcome"] for call in calls} == {"accepted"}
        assert all(step["refusals"] == [] for step in geometry["steps"])
    assert document["accepted"] is True


def test_the_release_geometry_is_the_models(report: Any) -> None:
    calls = {
        json.dumps([call["op"], *call["operands"]]) for step in report[0]["geometries"][1]["steps"] for call in step["ops"]
    }
    for op, *operands in (
        ("embedding", "uint32 row_major [1, 1]", "bfloat16 row_major [128000, 2560]"),
        ("linear", "bfloat16 tile [1, 2560]", "bfloat16 tile [7168, 2560]"),
        ("add", "float32 tile [1, 384]", "float32 tile [1, 384]"),
        ("topk", "float32 tile [1, 384]"),
        ("gather", "float32 tile [1, 384]", "uint32 tile [1, 6]"),
        ("nlp_concat_heads_decode", "bfloat16 tile [1, 48, 128]"),
    ):
        assert json.dumps([op, *operands]) in calls


def test_the_decoder_s_own_step_is_in_the_report_beside_all_ops_for_one_user_and_for_four(report: Any) -> None:
    """With a layer of each kind: six networks of two products in each, and none of what only other decoders ask for."""
    for geometry in report[0]["geometries"]:
        assert [(step["what"], step["users"]) for step in geometry["steps"]] == [(DECODER, 1), (PROTOCOL, 1), (PROTOCOL, 4)]
        calls = geometry["steps"][0]["ops"]
        sent = {op: sum(call["calls"] for call in calls if call["op"] == op) for op in {call["op"] for call in calls}}
        assert sent["linear"] == 3 * (1 + 2 * (3 + 2 * 7))
        assert sent["rotary_embedding_hf"] == 3 * 2
        assert not sent.keys() & {"silu", "mul", "argmax", "paged_fill_cache"}


def test_a_second_step_compiles_nothing_and_ttnn_sees_no_transfer_of_its_own(report: Any) -> None:
    """The decoder writes an id, its position for RoPE, for full layers and for rings, and each layer's routing weights; it
    reads what it shows, and the logits."""
    transfers = {DECODER: {"reads": 2 + 2 * 2, "writes": 4 + 2}, PROTOCOL: {"reads": 5, "writes": 2}}
    for geometry in report[0]["geometries"]:
        for step in geometry["steps"]:
            assert len(set(step["programs"])) == 1
            assert step["programs"][0] > 20
            assert step["transfers"]["asked"] == step["transfers"]["seen"] == transfers[step["what"]]


def test_the_release_does_not_fit_and_the_card_says_how_much_was_left(report: Any) -> None:
    mini, release = (geometry["memory"] for geometry in report[0]["geometries"])
    assert (mini["experts"], mini["slots"], mini["refusal"]) == (80, 80, "")
    assert release["experts"] == 19_200
    left = release["total_bytes"] - release["taken_bytes"]
    assert 0.99 < release["slots"] * release["slot_bytes"] / left <= 1.0
    assert 0.99 < release["copies"] * 2 * 3 * 512 * 2560 / left <= 1.0
    assert release["refusal"].startswith("out-of-memory: allocate_tensor_on_device slot: Out of Memory")


def test_nothing_is_called_passed_and_the_compiler_is_named(report: Any) -> None:
    document, text = report
    assert document["accelerator"]["compiler"] == "placeholder: not a compiler"
    assert text.strip().endswith(CAVEAT)
    for said in (text.replace(CAVEAT, ""), json.dumps(document).replace(CAVEAT, "")):
        assert "pass" not in said.lower()


def test_without_the_mock_device_it_does_not_run(run: RunsPython) -> None:
    done = run("-m", "tt_impl.device.ttnn.acceptance", mock=False)
    assert done.returncode == 2
    assert "TT_METAL_MOCK_CLUSTER_DESC_PATH is not set" in done.stdout


class ReadsByItself(TtnnDevice):
    """An op that looks at its operand on the host, as no op may."""

    def swiglu(self, x: Tensor) -> Any:
        self.ttnn.from_device(self._live(x, "swiglu").value)
        return super().swiglu(x)


class CompilesAlways(TtnnDevice):
    """A step whose program depends on a number that changes, as a position baked into one would."""

    scale = 1.0

    def paged_scaled_dot_product_attention_decode(self, *operands: Any, **named: Any) -> Any:
        self.scale += 1.0
        return super().paged_scaled_dot_product_attention_decode(*operands, **(named | {"scale": self.scale}))


@pytest.mark.parametrize("accepted", [accept_decoder, partial(accept_step, users=1)], ids=["decoder", "every op"])
@pytest.mark.parametrize(
    ("planted", "said"), [(ReadsByItself, "transfers asked for"), (CompilesAlways, "a later step compiled")]
)
def test_a_hidden_read_and_a_program_for_each_step_are_not_accepted(
    device: TtnnDevice, planted: type[TtnnDevice], said: str, accepted: Callable[..., StepAccepted]
) -> None:
    """Planted in a second view of the same mock device."""
    refusals = accepted(planted(device.ttnn, device._mesh, command_queues=2, is_mock=True), MINI).refusals
    assert len(refusals) == 1
    assert said in refusals[0]


def test_a_refused_op_is_in_the_report_and_ends_the_step(device: TtnnDevice) -> None:
    odd = MINI.model_copy(update={"head_dim": 96, "num_attention_heads": 8})
    for step in (accept_step(device, odd, 1), accept_decoder(device, odd)):
        assert len(step.refusals) == 1
        assert "rotary_embedding_hf" in step.refusals[0]
        assert "must be either 32 (single tile) or divisible by 64" in step.refusals[0]


def test_too_small_a_card_is_a_fault_and_not_a_count() -> None:
    with pytest.raises(DeviceFault, match="out-of-memory"):
        accept_memory(SimDevice(), RELEASE)


@pytest.mark.parametrize("users", [1, 4])
def test_the_simulated_card_gives_results_of_ttnns_shapes(device: TtnnDevice, users: int) -> None:
    calls = []
    for opened in (device, SimDevice()):
        recorder: Any = Recorder(opened)
        step = DecodeStep(recorder, MINI, users=users)
        step.run(0)
        step.close()
        calls.append(recorder.calls)
    assert calls[0] == calls[1]
