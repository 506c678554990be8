"""A fault plan behind the device's name: what it strikes, what the run says of it, and that a message replays it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from goldens import mini_checkpoint
from oracle.errors import DeviceFault, UsageError
from oracle.judge.jobs import PromptJob, run_job
from oracle.judge.ops import judge_ops
from oracle.judge.ops_plans import planned, plans
from oracle.subjects.protocol import SubjectRequest
from tt_impl.device.sim import Fault, FaultPlan, Flip, OnOp, OnWrite, Overwrite
from tt_impl.subject import FACTORY, TtSubject

SLOT = Fault("layer1.slot*", OnWrite(), Flip(offset=9, mask=4))
LINEAR = Fault("linear", OnOp("linear"), Overwrite(0, "c17f"))


def opened(folder: Path, device: str, plant: str | None = None) -> TtSubject:
    return FACTORY.open(SubjectRequest(folder, device=device, plant=plant))


def fault_of(subject: TtSubject, tokens: list[int]) -> str:
    with pytest.raises(DeviceFault) as caught:
        [subject.step(token) for token in tokens]
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "faults.json"
    path.write_text(FaultPlan((SLOT,)).to_json(), encoding="utf-8")
    return path


@pytest.mark.parametrize("schedule", ["", "lazy", "random:7"])
def test_a_plan_in_a_file_strikes_and_stands_in_the_identity_and_in_the_replay(
    tiny_folder: Path, tokens: list[int], file: Path, schedule: str
) -> None:
    subject = opened(tiny_folder, f"sim:{schedule}@{file}")
    assert subject.identity.device["kind"] == f"sim:{schedule}@{file}"
    assert FaultPlan.from_json(subject.identity.device["faults"]) == FaultPlan((SLOT,))
    message = fault_of(subject, tokens)
    assert "layer 1" in message
    assert "at offset 9" in message
    (again,) = re.findall(r"; `gate --device (sim:[^`]*)` replays it$", message)
    assert again == f"sim:{schedule or 'lazy'}@{file}"
    assert fault_of(opened(tiny_folder, again), tokens) == message


@pytest.mark.parametrize("schedule", ["lazy", "random:7"])
def test_what_the_message_of_a_plant_says_replays_it(
    tiny_folder: Path, tokens: list[int], tmp_path: Path, schedule: str
) -> None:
    message = fault_of(opened(tiny_folder, f"sim:{schedule}", "slot-byte"), tokens)
    (device, text) = re.findall(r"; `gate --device (sim:[^`]*)@FILE` with (.*) in FILE replays it$", message)[0]
    (tmp_path / "FILE").write_text(text, encoding="utf-8")
    replayed = fault_of(opened(tiny_folder, f"{device}@{tmp_path / 'FILE'}"), tokens)
    assert replayed.partition("; `gate")[0] == message.partition("; `gate")[0]


def test_a_plant_is_planted_beside_the_file_s_faults(tiny_folder: Path, tokens: list[int], file: Path) -> None:
    subject = opened(tiny_folder, f"sim:lazy@{file}", "resident-byte")
    faults = FaultPlan.from_json(subject.identity.device["faults"]).faults
    assert [fault.where for fault in faults] == ["layer1.slot*", "model.layers.1.self_attn.o_proj.weight"]
    assert "with " + subject.identity.device["faults"] in fault_of(subject, tokens)


def test_a_device_without_faults_says_so(tiny_folder: Path) -> None:
    assert opened(tiny_folder, "sim:eager").identity.device["faults"] == "none"


def test_a_session_s_job_takes_the_plan_and_its_run_carries_it(tmp_path: Path) -> None:
    path = tmp_path / "linear.json"
    path.write_text(FaultPlan((LINEAR,)).to_json(), encoding="utf-8")
    folder = mini_checkpoint()
    outcome = run_job(
        PromptJob("tt", SubjectRequest(folder, device=f"sim:lazy@{path}"), folder / "golden", "copying", ops=True)
    )
    assert outcome.identity.device["faults"] == FaultPlan((LINEAR,)).to_json()
    assert outcome.ops is not None
    assert {f.where for f in judge_ops(outcome.ops, planned(plans("bf16"))).findings} == {"linear qkv mini bfloat16"}


def test_one_plan_has_one_text() -> None:
    when, what = '{"kind": "op", "name": "linear"}', '{ "data":"c17f", "kind":"overwrite",  "offset":0}'
    loose = f'{{"faults": [{{"where": "linear", "what": {what}, "when": {when}}}]}}'
    assert FaultPlan.from_json(loose).to_json() == FaultPlan((LINEAR,)).to_json()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read as a fault plan: No such file or directory"),
        (b"[1, 2]", "not a fault plan"),
        (b"\xff\xfe", "codec can't decode"),
        (b" " * ((1 << 20) + 1), "has more than 1048576 bytes"),
        (b'{"faults": [{"where": "x", "when": {"kind": "op", "name": "add"}, "what": {"kind": "drop"}}]}', "only a transfer"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(tiny_folder: Path, tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        opened(tiny_folder, f"sim:lazy@{path}")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
