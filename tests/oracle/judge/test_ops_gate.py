"""Gate `ops`: what it fires on, what measures for it, and that it runs without a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from judge_cases import mini_golden

import oracle.judge.session as session
from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.golden.format import load_golden
from oracle.judge import ops_exact
from oracle.judge.auditing import device_controls
from oracle.judge.gate import Case
from oracle.judge.jobs import PromptJob, PromptOutcome
from oracle.judge.ops import OpsGate, judge_ops, planned_evidence
from oracle.judge.ops_audit import audit_ops, measure, rounded_exactly
from oracle.judge.ops_cases import MINI
from oracle.judge.ops_controls import FAULTS, ops_controls
from oracle.judge.ops_plans import OpPlan, plans
from oracle.judge.session import SessionOptions, record_session, run_session
from oracle.judge.unfinished_session import unfinished_session
from oracle.subjects.ops import HostArray, OpsEvidence, OpStatistics, Parameter, array_dtype
from oracle.subjects.protocol import NumericClass, SubjectIdentity, SubjectRequest
from oracle.subjects.run import ResidentEvidence, load_run, save_run

GATE = OpsGate()
SMALL = {plan.name: plan for plan in plans("bf16", (MINI,))}
IDENTITY = SubjectIdentity("answers", "bf16", "bf16", ())
OPTIONS = SessionOptions(mini_checkpoint(), mini_golden(), only="ops", workers=1)


class Answers:
    """A device that answers from the judge's own cases, in the order they are asked."""

    identity = IDENTITY

    def __init__(self, planned: tuple[OpPlan, ...]) -> None:
        self.left = list(planned)

    def run_op(
        self, name: str, operands: Mapping[str, HostArray], parameters: Mapping[str, Parameter]
    ) -> tuple[HostArray, ...]:
        plan = self.left.pop(0)
        assert name == plan.op
        for array in operands.values():
            array.reshape(-1).view(np.uint8)[:] = 0  # what a device does to its operands does not reach the judge's
        return rounded_exactly(plan.case())

    def close(self) -> None: ...


def planned(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, SMALL[name].dtype) for name in names)


def headlines(evidence: OpsEvidence) -> list[str]:
    return [f.headline for f in judge_ops(evidence, planned(*(each.case for each in evidence.cases))).findings]


def test_each_plant_is_caught_by_what_it_is_planted_for(case: Case) -> None:
    assert GATE.judge(case.with_run(ops=planned_evidence("bf16"))).verdict == "pass"
    found = {name: [f.headline for f in GATE.judge(spoiled).findings] for name, spoiled in GATE.plants(case).items()}
    lean, off_plan = "errors lean to one side", "the ops that ran are not the plan's"
    assert all(len(each) == 1 for each in found.values())
    assert {name: each[0] for name, each in found.items()} == {
        "a bit off": "an op that computes nothing changed bits",
        "an error above the bound": "error above its bound",
        **dict.fromkeys(("all too large", "all too small", "a mean many standard errors off"), lean),
        **dict.fromkeys(("magnitudes too large", "magnitudes too small"), "errors of magnitudes lean to one side"),
        "one infinite element": "NaN or infinity where the true value is finite",
        "one constant row": "rows of one value, where the true ones have several",
        "on the bf16 grid": "all float32 results lie on the bf16 grid",
        "a fault": "the op gave no result to compare: planted: a fault",
        "another dtype": off_plan,
        "nothing compared": "nothing of the op was compared",
        **dict.fromkeys(("a case missing", "a case twice", "a case too many"), off_plan),
    }


def test_a_run_without_ops_compares_nothing(case: Case) -> None:
    assert GATE.judge(case.with_run(ops=None)).verdict == "incomplete"
    assert GATE.judge(case.with_run(ops=OpsEvidence())).verdict == "fail"


@pytest.mark.parametrize("numeric_class", ["bf16", "fp32", "w8a8", "fp8-kv"])
def test_the_plan_asks_every_op_at_both_widths(numeric_class: NumericClass) -> None:
    asked = plans(numeric_class)
    assert len({plan.name for plan in asked}) == len(asked)
    assert {plan.op for plan in asked} == {
        *("embedding", "typecast", "rms_norm", "linear", "matmul", "add", "mul", "silu", "sigmoid", "swiglu", "concat_rows"),
        *("topk", "gather", "argmax", "nlp_create_qkv_heads_decode", "nlp_concat_heads_decode", "rotary_embedding_hf"),
        *("paged_update_cache", "paged_fill_cache", "paged_scaled_dot_product_attention_decode"),
    }
    cases = {plan.name: plan.case().operands for plan in asked if " real " in plan.name and "linear" in plan.name}
    assert {operands["weight"].shape[1] for operands in cases.values()} == {2560, 6144, 512}
    (router,) = (operands for name, operands in cases.items() if "router" in name)
    assert router["weight"].shape == (384, 2560)


@pytest.mark.parametrize(("numeric_class", "own"), [("fp32", "float32"), ("bf16", "bfloat16"), ("w8a8", "bfloat16")])
def test_a_class_is_asked_in_the_dtype_of_its_activations_and_its_logits_in_float32(
    numeric_class: NumericClass, own: str
) -> None:
    """The embedding table is bfloat16 as stored, a cast has both dtypes, and routing weights (`a` of `matmul`) are float32."""
    asked = plans(numeric_class, (MINI,))
    names = {plan.name for plan in asked}
    assert {f"{op} mini float32" for op in OF_LOGITS} | {"embedding mini bfloat16", f"embedding mini {own}"} <= names
    for plan in asked:
        if plan.op not in ("embedding", "typecast", *OF_LOGITS):
            operands = plan.case().operands
            given = {operands[name].dtype.name for name in operands.keys() - {"a", "index", *PLACES}}
            assert given == {own}, plan.name


OF_LOGITS = ("add", "sigmoid", "topk", "gather", "argmax")
PLACES = ("ids", "page_table", "update_idxs_tensor", "cur_pos_tensor")


def test_evidence_of_another_class_is_not_the_plan_s(case: Case) -> None:
    assert case.run.identity.numeric_class == "bf16"
    [finding] = GATE.judge(case.with_run(ops=planned_evidence("fp32"))).findings
    assert finding.headline == "the ops that ran are not the plan's"


def test_a_device_that_answers_exactly_is_green_and_bits_are_never_a_matter_of_chance() -> None:
    evidence = audit_ops(Answers(tuple(SMALL.values())), SMALL.values())
    assert headlines(evidence) == []
    assert audit_ops(Answers(tuple(SMALL.values())), SMALL.values()) == evidence
    assert max(each.worst for each in evidence.cases) <= 1


def test_the_measuring_is_controlled_by_one_fault_of_each_kind() -> None:
    results = ops_controls()
    assert all(control.behaved for control in results)
    assert [control.expected for control in results] == ["pass"] * 2 + ["fire"] * len(FAULTS)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DeviceFault("bad-operand", "topk does not take x"), "bad-operand: topk does not take x"),
        (RuntimeError("TT_FATAL"), "subject-crashed: RuntimeError: TT_FATAL"),
    ],
)
def test_what_a_device_raises_is_that_op_s_fault_and_the_others_are_still_asked(error: Exception, text: str) -> None:
    class Refuses(Answers):
        def run_op(self, name, operands, parameters):
            results = super().run_op(name, operands, parameters)
            if name == "topk":
                raise error
            return results

    evidence = audit_ops(Refuses(tuple(SMALL.values())), SMALL.values())
    assert {each.fault for each in evidence.cases} == {"", text}
    assert [each.case for each in evidence.cases if each.fault] == ["topk mini bfloat16", "topk mini float32"]
    assert judge_ops(evidence, planned(*SMALL)).verdict == "fail"


@pytest.mark.parametrize("results", [None, 3, (None,), ([1.0],), (np.zeros(3),), (np.zeros((4, 16), np.float64),)])
def test_results_of_another_kind_are_a_fault(results) -> None:
    plan = SMALL["linear router mini float32"]
    assert measure(plan, plan.case(), results).fault.startswith("evidence: ")


def test_a_skipped_user_s_rows_are_not_looked_at_and_every_other_is() -> None:
    plan = SMALL["paged_scaled_dot_product_attention_decode window mini bfloat16"]
    case = plan.case()
    for user, red in ((0, True), (1, False), (2, True)):
        (result,) = rounded_exactly(case)
        result[user] = np.nan
        assert bool(headlines(OpsEvidence((measure(plan, case, (result,)),)))) == red


def test_a_device_that_did_not_open_or_hung_is_red() -> None:
    job = PromptJob("tt", SubjectRequest(mini_checkpoint()), mini_golden(), "p", ops=True)
    lost = PromptOutcome(job, IDENTITY, None, DeviceFault("timeout", "no answer"), None, {})
    evidence = session._ops_of(lost)
    judgement = judge_ops(evidence, planned(*SMALL))
    assert judgement.verdict == "fail"
    assert "timeout: no answer" in judgement.findings[0].headline


def test_a_planted_quirk_must_turn_the_ops_red_and_every_one_of_them_must_have_been_asked() -> None:
    job = PromptJob("tt", SubjectRequest(mini_checkpoint(), plant="quirk"), mini_golden(), "p", ops=True)
    honest = audit_ops(Answers(tuple(SMALL.values())), SMALL.values())
    bent = OpsEvidence((*honest.cases[:-1], replace(honest.cases[-1], worst=2.0)))
    for ops, seen in ((honest, "not caught"), (bent, "gate:ops"), (None, "not caught")):
        [result] = device_controls([(PromptOutcome(job, IDENTITY, None, None, None, {}, None, ops), "gate:ops")])
        assert (result.seen, result.behaved) == (seen, seen == "gate:ops")


def test_ops_alone_are_judged_without_a_prompt_and_replayed_to_the_same_document(tmp_path: Path) -> None:
    """On new silicon nothing else may work yet."""
    recorded = record_session(OPTIONS)
    assert not recorded.run.prompts
    report = session.judge_recorded(recorded, ("ops", "ledger"), partial=True)
    assert (report.verdict, report.partial) == ("pass", True)
    assert [gate.name for gate in report.gates] == ["ops", "ledger"]
    names = {control.name for control in report.gates[0].controls}
    assert {"perfect", "ops answered exactly", "device quirk-truncating"} <= names
    save_run(recorded.run, tmp_path / "run", control=recorded.perfect)
    assert load_run(tmp_path / "run").ops == recorded.run.ops
    replayed = run_session(replace(OPTIONS, replay=tmp_path / "run"))
    assert replayed.verdict == "pass"
    assert replayed.gates[0].measured == report.gates[0].measured
    spoiled = replace(recorded.run, ops=OpsEvidence(recorded.run.ops.cases[1:]))  # type: ignore[union-attr]
    save_run(spoiled, tmp_path / "spoiled", control=recorded.perfect)
    assert run_session(replace(OPTIONS, replay=tmp_path / "spoiled")).verdict == "fail"


# The judge's float64.


def test_an_ulp_is_the_distance_to_the_next_number() -> None:
    values = np.array([1.0, 1.5, 2.0, 3.99, 1e-39, 0.0, 1e38])
    for name in ("float32", "bfloat16"):
        dtype = array_dtype(name)
        stored = values.astype(np.float32).astype(dtype)
        bits = np.dtype(f"u{dtype.itemsize}")
        following = (stored.view(bits) + 1).view(dtype).astype(np.float64)
        assert ops_exact.ulp(stored.astype(np.float64), name).tolist() == (following - stored.astype(np.float64)).tolist()


def test_rounding_alone_is_within_the_limit_and_half_an_ulp_more_is_not() -> None:
    value = np.random.default_rng(1).normal(size=4000)
    exact = ops_exact.Exact(value, "bfloat16")
    stored = value.astype(array_dtype("bfloat16"))
    plan = SMALL["linear router mini float32"]
    question = replace(plan.case(), exact=(replace(exact, value=value.reshape(1, -1)),))
    assert measure(plan, question, (stored.reshape(1, -1),)).worst <= 1
    following = (stored.view(np.uint16) + 1).view(stored.dtype)
    assert measure(plan, question, (following.reshape(1, -1),)).worst > 1.9


def test_float64_attention_sees_the_window_its_own_position_and_its_group() -> None:
    rng = np.random.default_rng(2)
    q, k, v = rng.normal(size=(1, 4, 8)), rng.normal(size=(2, 7, 8)), rng.normal(size=(2, 7, 8))
    got = ops_exact.attention(q, [k], [v], 0.3, 3, "float32").value
    for head in range(4):
        weights = [math.exp(0.3 * sum(q[0, head] * k[head // 2, j])) for j in (4, 5, 6)]
        expected = sum(w * v[head // 2, j] for w, j in zip(weights, (4, 5, 6), strict=True)) / sum(weights)
        assert np.allclose(got[0, head], expected, rtol=1e-12)


def test_the_top_columns_fall_and_prefer_the_lowest() -> None:
    assert ops_exact.top_columns(np.array([[1.0, 3.0, 2.0, 3.0, 3.0]]), 4).tolist() == [[1, 3, 4, 2]]


def test_statistics_count_what_they_say() -> None:
    plan = SMALL["rms_norm q heads mini bfloat16"]
    case = plan.case()
    (right,) = rounded_exactly(case)
    wrong = right.copy()
    wrong[0, 0, 0], wrong[0, 1] = np.inf, 0
    found = measure(plan, case, (wrong,))
    assert (found.compared, found.non_finite, found.constant_rows) == (right.size, 1, 1)
    assert found == replace(found, case=plan.name, dtype="bfloat16", unequal=0, on_grid=0, fault="")
    assert isinstance(found, OpStatistics)


def test_an_unfinished_session_keeps_what_was_measured_of_ops_and_of_residents(tmp_path: Path) -> None:
    golden = load_golden(mini_golden())
    request = SubjectRequest(mini_checkpoint())
    ops = PromptJob("tt", request, mini_golden(), "copying", ops=True)
    measured = PromptOutcome(ops, IDENTITY, None, None, None, {}, None, planned_evidence("bf16"))
    prompt = replace(ops, ops=False)
    read = PromptOutcome(prompt, IDENTITY, None, None, None, {}, ResidentEvidence(1, (("head", 1, 2),)))
    with unfinished_session(tmp_path / "state", golden, ops, resume=False) as kept:
        for outcome in (measured, read):
            kept.put(outcome)
        assert (kept.get(ops), kept.get(prompt)) == (measured, read)
