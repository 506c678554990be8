"""The harness feeds what the golden says, then what the subject says, and records what was shown, not what was hoped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.golden.format import Golden
from oracle.golden.sketch import sketch
from oracle.judge.alignment import AlignmentGate
from oracle.judge.chain import ChainGate
from oracle.judge.gate import Case, Finding
from oracle.judge.logits import LogitsGate
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.harness import argmax_lowest_id, drive
from oracle.subjects.run import REQUIRED_ARRAYS, PromptRun, Run

Build = Callable[..., Any]


def judged(golden: Golden, run: PromptRun, subject: Any, gate: Any) -> list[Finding]:
    """What a gate finds in a run of the golden's first prompt."""
    whole = Run(subject.identity, golden.digest, {golden.prompts[0].name: run})
    case = Case(golden, whole, Checkpoint.open(mini_checkpoint()), golden.document.classes["bf16"])
    return [f for f in gate.judge(case).findings if f.where.startswith(f"{golden.prompts[0].name}[")]


def test_it_feeds_the_golden_s_ids_and_then_the_subject_s_own(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    subject = scripted()
    drive(subject, prompt)
    steps = [("step", token) for token in prompt.fed]
    assert subject.calls == [("reset", 0), ("start", 0), *steps, ("start", 0), *steps]


def test_the_free_run_is_fed_what_the_subject_chose_and_never_the_golden_s_ids(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[2]
    own = [(7 * i + 3) % 500 for i in range(len(prompt.fed) + 1)]
    subject = scripted(following=lambda fed: own[len(fed)])
    run = drive(subject, prompt)
    free = [token for name, token in subject.calls[2 + len(prompt.fed) :] if name == "step"]
    start = len(prompt.prompt_ids)
    assert free == [*prompt.prompt_ids, *own[start:]][: len(prompt.fed)]
    assert run.free_consumed.tolist() == free
    assert run.free_generated.tolist() == own[start:]
    assert len(run.free_generated) == len(prompt.generated)
    assert run.consumed.tolist() == list(prompt.fed)


def test_what_the_subject_says_of_itself_is_recorded_and_not_what_it_was_fed(golden: Golden, scripted: Build) -> None:
    """A subject that reads the wrong id, or counts positions from 1, is found by `alignment`."""
    prompt = golden.prompts[0]
    subject = scripted(change=lambda fed: {"token": fed[-1] + (len(fed) == 4), "position": len(fed)})
    run = drive(subject, prompt)
    assert run.consumed[3] == run.free_consumed[3] == prompt.fed[3] + 1
    assert run.positions.tolist() == list(range(1, len(prompt.fed) + 1))
    found = {f.headline: f.count for f in judged(golden, run, subject, AlignmentGate())}
    assert found["id consumed is not the golden's"] == found["id consumed in the free run is not the golden's"] == 1
    assert found["position computed is not the golden's"] == len(prompt.fed)


def test_a_subject_that_answers_the_second_time_otherwise_is_found(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    whole = [*prompt.prompt_ids, *prompt.generated]
    subject = scripted(following=lambda fed: whole[len(fed)])

    def unsteady(fed: list[int]) -> int:
        second_pass = sum(name == "start" for name, _ in subject.calls) == 2
        return whole[len(fed)] ^ int(second_pass and len(fed) == len(whole) - 1)

    subject._following = unsteady
    [finding] = judged(golden, drive(subject, prompt), subject, ChainGate())
    assert "not deterministic" in finding.headline
    assert finding.where == f"{prompt.name}[{len(prompt.fed) - 1}]"


def test_each_step_s_embedding_row_is_digested(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    run = drive(scripted(), prompt)
    expected = [hashlib.sha256(bytes([token % 256] * 8)).digest()[:16] for token in prompt.fed]
    assert [row.tobytes() for row in run.embedding_digest] == expected


def test_a_residual_stream_is_sketched_and_a_given_sketch_is_kept(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    layers = prompt.sketch.shape[1]
    rows = np.random.default_rng(3).normal(size=(len(prompt.fed), layers, 256)).astype(np.float32)
    by_residual = drive(scripted(change=lambda fed: {"residual": rows[len(fed) - 1]}), prompt)
    given = scripted(change=lambda fed: {"residual": None, "sketch": sketch(rows[len(fed) - 1])})
    for shown in (by_residual.sketch, drive(given, prompt).sketch):
        assert shown is not None
        assert np.array_equal(shown, sketch(rows))


OPTIONAL = {
    "residual": ("sketch", "residual stream or sketch"),
    "expert_weights": ("expert_weights", "expert weights"),
    "router_logits": ("router_logits", "router logits"),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_no_step_shows_is_absent_and_what_some_leave_out_is_a_device_fault(
    golden: Golden, scripted: Build, name: str
) -> None:
    """Never zeros in its place: they would be compared."""
    prompt = golden.prompts[0]
    probes = golden.probes_of(prompt.name).positions
    stored, what = OPTIONAL[name]
    shown = {"router_logits": np.ones((*prompt.router_gap.shape[1:], 16), np.float32)}
    assert getattr(drive(scripted(change=lambda fed: shown), prompt, probes), stored) is not None
    without = drive(scripted(change=lambda fed: {**shown, name: None}), prompt, probes)
    assert getattr(without, stored) is None
    assert stored not in without.held
    mixed = scripted(change=lambda fed: {**shown, **({name: None} if len(fed) == probes[1] + 1 else {})})
    with pytest.raises(DeviceFault, match=f"step {probes[1]} gave no {what}, other steps did") as caught:
        drive(mixed, prompt, probes)
    assert caught.value.kind == "evidence"


def test_a_subject_of_tokens_and_logits_alone_leaves_nothing_else_in_its_run(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    nothing = dict.fromkeys(("residual", "expert_ids", "expert_weights"))
    run = drive(scripted(change=lambda fed: nothing), prompt, golden.probes_of(prompt.name).positions)
    assert run.held == REQUIRED_ARRAYS


def test_experts_in_one_of_the_two_passes_only_are_a_device_fault(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    subject = scripted()

    def until(starts: int) -> Any:
        return lambda fed: {} if sum(n == "start" for n, _ in subject.calls) <= starts else {"expert_ids": None}

    subject._change = until(1)
    with pytest.raises(DeviceFault, match="one of the two passes shows expert ids and the other does not"):
        drive(subject, prompt)
    subject = scripted()
    subject._change = lambda fed: {"expert_ids": None} if sum(n == "start" for n, _ in subject.calls) <= 1 else {}
    with pytest.raises(DeviceFault, match="one of the two passes shows expert ids and the other does not"):
        drive(subject, prompt)
    subject = scripted()
    last = len(prompt.fed)
    subject._change = lambda fed: (
        {"expert_ids": None} if len(fed) == last and sum(n == "start" for n, _ in subject.calls) > 1 else {}
    )
    with pytest.raises(DeviceFault, match=f"step {last - 1} gave no expert ids in the free run, other steps did"):
        drive(subject, prompt)


def test_router_logits_are_kept_at_the_probes_alone_and_in_their_order(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    rows = np.random.default_rng(5).normal(size=(len(prompt.fed), 5, 16)).astype(np.float32)
    everywhere = scripted(change=lambda fed: {"router_logits": rows[len(fed) - 1]})
    assert drive(everywhere, prompt).router_logits is None
    kept = drive(everywhere, prompt, (9, 4)).router_logits
    assert kept is not None
    assert np.array_equal(kept, rows[[9, 4]])
    at_probes = scripted(change=lambda fed: {"router_logits": rows[len(fed) - 1] if len(fed) in (5, 10) else None})
    again = drive(at_probes, prompt, (9, 4)).router_logits
    assert again is not None
    assert np.array_equal(again, kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logits", np.zeros(500, np.float32)),
        ("expert_ids", np.zeros((5, 5), np.int32)),
        ("expert_weights", np.zeros((4, 6), np.float32)),
        ("residual", np.zeros((4, 256), np.float32)),
    ],
)
def test_arrays_whose_shape_changes_between_steps_are_a_device_fault(
    golden: Golden, scripted: Build, name: str, value: np.ndarray
) -> None:
    subject = scripted(change=lambda fed: {name: value} if len(fed) == 6 else {})
    with pytest.raises(DeviceFault, match="do not have one shape") as caught:
        drive(subject, golden.prompts[0])
    assert caught.value.kind == "evidence"


def test_logits_too_few_for_the_golden_s_ids_are_a_device_fault(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    size = int(prompt.top_ids.max())
    subject = scripted(following=lambda fed: 0, change=lambda fed: {"logits": np.zeros(size, np.float32)})
    with pytest.raises(DeviceFault, match=f"logits have {size} entries, the golden names id {size}"):
        drive(subject, prompt)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["logits", "expert_weights", "residual", "sketch"])
def test_non_finite_numbers_are_counted_at_their_position_and_stored_as_none(
    golden: Golden, scripted: Build, name: str, value: float
) -> None:
    prompt, at = golden.prompts[0], 9
    shapes = {"logits": (512,), "expert_weights": prompt.expert_weights.shape[1:], "residual": (5, 256), "sketch": (5, 32)}
    bad = np.ones(shapes[name], dtype=np.float32)
    bad.flat[3] = value
    subject = scripted(change=lambda fed: {name: bad} if len(fed) == at + 1 else {})
    run = drive(subject, prompt)
    assert np.flatnonzero(run.non_finite).tolist() == [at]
    assert run.non_finite[at] == (32 if name == "residual" else 1)  # a residual's number reaches all of its sketch
    for stored in (run.logits_at_golden, run.top_logits, run.logsumexp, run.expert_weights, run.sketch):
        assert stored is not None
        assert np.isfinite(stored).all()
    assert "NaN or infinite numbers" in [f.headline for f in judged(golden, run, subject, LogitsGate())]


def test_exact_ties_go_to_the_lowest_id_in_both_passes(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    tied = np.zeros(512, dtype=np.float32)
    tied[[400, 33, 101]] = 5
    run = drive(scripted(change=lambda fed: {"logits": tied}), prompt)
    assert set(run.argmax.tolist()) == set(run.free_generated.tolist()) == {33}
    assert run.top_ids[0, :3].tolist() == [33, 101, 400]
    assert run.top_ids[0, 3:].tolist() == [i for i in range(512) if i not in (33, 101, 400)][: prompt.top_ids.shape[1] - 3]


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([1, 3, 3, 2], 1),
        ([np.nan, -2, -1, -1], 2),
        ([np.nan, np.nan, -np.inf, -5], 3),
        ([0.0, -0.0], 0),
        ([-0.0, 0.0], 0),
        ([1, np.inf, np.inf], 1),
    ],
)
def test_the_argmax_is_the_lowest_of_equal_ids_and_never_nan(logits: list[float], expected: int) -> None:
    assert argmax_lowest_id(np.array(logits, dtype=np.float32)) == expected


def test_logits_are_read_at_the_golden_s_ids_and_summed_over_all(golden: Golden, scripted: Build) -> None:
    prompt = golden.prompts[0]
    rows = np.random.default_rng(4).normal(size=(len(prompt.fed), 512)).astype(np.float32)
    run = drive(scripted(change=lambda fed: {"logits": rows[len(fed) - 1]}), prompt)
    positions = np.arange(len(prompt.fed))[:, None]
    assert np.array_equal(run.logits_at_golden, rows[positions, prompt.top_ids])
    assert np.array_equal(run.argmax, rows.argmax(axis=1))
    assert np.array_equal(run.top_logits, -np.sort(-rows, axis=1)[:, : prompt.top_ids.shape[1]])
    assert np.allclose(run.logsumexp, np.log(np.exp(rows.astype(np.float64)).sum(axis=1)), rtol=1e-12)


def test_a_subject_that_reuses_its_buffers_is_not_mistaken_for_one_that_repeats_itself(golden: Golden, scripted: Build) -> None:
    """A device writes each step's logits into one persistent host buffer."""
    prompt = golden.prompts[0]
    buffer = np.zeros(512, dtype=np.float32)

    def into_buffer(fed: list[int]) -> dict[str, np.ndarray]:
        buffer[:] = 0
        buffer[len(fed)] = 5
        return {"logits": buffer}

    run = drive(scripted(change=into_buffer), prompt)
    assert run.argmax.tolist() == list(range(1, len(prompt.fed) + 1))
