"""The verdict of a session: fail over incomplete over pass, and no gate counts that was not seen to fire."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from judge_cases import (
    HOST_GATES,
    flipped,
    narrowest,
    outside_stored,
    widest,
    with_a_device,
    with_bands,
    with_choice,
    with_prompt,
    with_run,
)

import oracle.judge.ledger as ledger
import oracle.judge.verdict as verdict_module
from oracle.errors import GoldenError
from oracle.judge.control_result import ControlResult
from oracle.judge.controls import gate_controls
from oracle.judge.gate import Case, Finding, Gate, Judgement, gate_id
from oracle.judge.gates import GATE_NAMES, GATES
from oracle.judge.slot_audit import SlotAuditor
from oracle.judge.slot_controls import slot_controls
from oracle.judge.verdict import Report, judge_session
from oracle.serialization import canonical_json
from oracle.subjects.protocol import LibraryRecord

BY_NAME = {gate.name: gate for gate in GATES}
RUN_GATES = [gate.name for gate in GATES]
OF_A_DEVICE = ("operands", "census", "counters", "determinism", "capture")


def judged(case: Case, **changes: Any) -> Report:
    """The case's run, judged by every gate; controls by the perfect run of the module's case."""
    options = {"selected": GATE_NAMES, "perfect": case.run} | changes
    return judge_session(case.golden, case.checkpoint, case.run, **options)


def of(report: Report, gate: str) -> str:
    return next(result.verdict for result in report.gates if result.name == gate)


@pytest.fixture(scope="module")
def few(case: Case) -> Case:
    """The shortest prompts alone: whole sessions are judged here, many times."""
    prompts = tuple(sorted(case.golden.prompts, key=lambda p: len(p.fed))[:4])
    runs = {p.name: case.run.prompts[p.name] for p in prompts}
    return replace(case, golden=replace(case.golden, prompts=prompts), run=replace(case.run, prompts=runs))


@pytest.fixture(scope="module")
def streamed(few: Case) -> Case:
    """The perfect run as a subject with a device and slots would show it: every gate is required."""
    identity = replace(few.run.identity, required_gates=GATE_NAMES, device={"kind": "sim"})
    return with_a_device(with_run(few, identity=identity))


def test_the_perfect_subject_is_green_and_answers_no_gate_it_does_not_declare(few: Case) -> None:
    report = judged(few)
    assert (report.verdict, report.exit_code, report.partial) == ("pass", 0, False)
    assert {r.name: r.verdict for r in report.gates} == {
        name: "pass" if name in HOST_GATES else "not applicable" for name in GATE_NAMES
    }
    assert all(r.compared > 0 and r.controls for r in report.gates if r.name in HOST_GATES)


def test_a_subject_that_declares_every_gate_is_green_by_every_gate(streamed: Case, few: Case) -> None:
    report = judged(streamed, perfect=few.run)
    assert {r.verdict for r in report.gates} == {"pass"}
    assert all(c.behaved for r in report.gates for c in r.controls)


@pytest.mark.parametrize("compared", [0, 1000])
@pytest.mark.parametrize("name", RUN_GATES)
def test_a_gate_that_never_finds_anything_ends_the_session_red(
    streamed: Case, few: Case, monkeypatch: pytest.MonkeyPatch, name: str, compared: int
) -> None:
    monkeypatch.setattr(type(BY_NAME[name]), "judge", lambda _self, _case: Judgement(compared))
    report = judged(streamed, perfect=few.run)
    assert (report.verdict, report.exit_code) == ("fail", 1)
    misbehaved = {control.name for r in report.gates for control in r.controls if not control.behaved}
    planted = {control.name for r in report.gates if r.name == name for control in r.controls if control.expected == "fire"}
    assert {n for n in planted if n.startswith("planted")} <= misbehaved
    assert ("perfect" in misbehaved) == (compared == 0)


@pytest.mark.parametrize("name", RUN_GATES)
def test_a_gate_whose_comparison_is_inverted_ends_the_session_red(
    streamed: Case, few: Case, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    honest = type(BY_NAME[name]).judge

    def inverted(self: Gate, judged_case: Case) -> Judgement:
        found = honest(self, judged_case)  # type: ignore[arg-type]
        return Judgement(found.compared, () if found.verdict == "fail" else (Finding("inverted"),))

    monkeypatch.setattr(type(BY_NAME[name]), "judge", inverted)
    report = judged(streamed, perfect=few.run)
    assert report.verdict == "fail"
    assert of(report, "ledger") == "fail"


@pytest.mark.parametrize("name", RUN_GATES)
def test_a_gate_whose_planted_fault_is_none_ends_the_session_red(
    streamed: Case, few: Case, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(type(BY_NAME[name]), "plants", lambda _self, spared: {"nothing": spared})
    report = judged(streamed, perfect=few.run)
    assert (report.verdict, of(report, name), of(report, "ledger")) == ("fail", "pass", "fail")


@pytest.mark.parametrize("judgement", [Judgement(0), Judgement(9)])
def test_a_ledger_that_never_finds_anything_ends_the_session_not_green(
    few: Case, monkeypatch: pytest.MonkeyPatch, judgement: Judgement
) -> None:
    for module in (ledger, verdict_module):
        monkeypatch.setattr(module, "judge_ledger", lambda *_: judgement)
    assert judged(few).verdict == "fail"


def test_a_ledger_that_is_never_asked_for_controls_ends_the_session_not_green(
    few: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_module, "gate_controls", lambda *_: ())
    assert judged(few).verdict == "incomplete"


def test_a_fault_of_the_subject_s_own_device_that_went_uncaught_ends_the_session_red(streamed: Case, few: Case) -> None:
    missed = ControlResult("device slot-byte", "device-fault:slot-verification", "not caught")
    caught = replace(missed, seen=missed.expected)
    assert judged(streamed, perfect=few.run, device=(caught,)).verdict == "pass"
    assert judged(streamed, perfect=few.run, device=(missed,)).verdict == "fail"


def test_a_failure_outranks_what_is_incomplete_and_that_outranks_green(streamed: Case, few: Case) -> None:
    prompt, position = widest(few)
    no_slots = with_run(streamed, slots=None)
    red = flipped(no_slots, prompt, position)
    report = judged(no_slots, perfect=few.run)
    assert (report.verdict, report.exit_code, of(report, "slots")) == ("incomplete", 3, "incomplete")
    report = judged(red, perfect=few.run)
    assert (report.verdict, report.exit_code) == ("fail", 1)
    assert (of(report, "flips"), of(report, "slots"), of(report, "residual")) == ("fail", "incomplete", "pass")


def test_no_gate_speaks_of_a_run_that_is_not_aligned(few: Case) -> None:
    prompt = few.golden.prompts[0]
    run = few.run.prompts[prompt.name]
    late = with_prompt(few, prompt, positions=run.positions + 1, argmax=run.argmax[::-1].copy())
    report = judged(late, perfect=few.run)
    assert report.verdict == "fail"
    assert {name: of(report, name) for name in ("alignment", "chain", "flips", "logits", "residual")} == {
        "alignment": "fail",
        **dict.fromkeys(("chain", "flips", "logits", "residual"), "incomplete"),
    }
    assert report.flips == ()
    assert "not aligned" in next(r for r in report.gates if r.name == "flips").findings[0].headline


def test_a_missing_prompt_is_incomplete_and_a_faulted_one_is_a_failure(few: Case) -> None:
    gone = few.golden.prompts[0].name
    rest = {name: run for name, run in few.run.prompts.items() if name != gone}
    assert judged(with_run(few, prompts=rest), perfect=few.run).verdict == "incomplete"
    assert judged(with_run(few, prompts=rest, faults={gone: "hang: 1"}), perfect=few.run).verdict == "fail"
    assert judged(with_run(few, prompts={}), perfect=few.run).verdict == "incomplete"


def test_arrays_of_the_wrong_shape_are_a_verdict_and_no_traceback(few: Case) -> None:
    prompt = few.golden.prompts[0]
    for name in ("logits_at_golden", "sketch", "argmax", "free_generated", "embedding_digest"):
        short = with_prompt(few, prompt, **{name: getattr(few.run.prompts[prompt.name], name)[:-1]})
        assert judged(short, perfect=few.run).verdict == "fail"


def test_gates_left_out_by_the_user_make_a_partial_verdict_that_the_ledger_still_controls(few: Case) -> None:
    report = judged(few, selected=("flips",), partial=True)
    assert (report.verdict, report.partial) == ("pass", True)
    assert [r.name for r in report.gates] == ["flips", "ledger"]
    reasons = {entry.gate: (entry.ran, entry.reason) for entry in report.ledger}
    assert reasons.pop("flips") == reasons.pop("ledger") == (True, "")
    assert set(reasons) == set(GATE_NAMES) - {"flips", "ledger"}
    assert set(reasons.values()) == {(False, "narrowed by --only")}
    report = judged(few, selected=("slots",), partial=True)
    assert report.verdict != "pass"


def test_a_required_gate_that_this_version_does_not_know_is_incomplete(few: Case) -> None:
    identity = replace(few.run.identity, required_gates=(*HOST_GATES, "determinism"))
    assert judged(with_run(few, identity=identity), perfect=few.run).verdict == "incomplete"


@pytest.mark.parametrize("declared", [(), ("ledger",)])
def test_a_subject_that_declares_no_gate_is_not_green(few: Case, declared: tuple[str, ...]) -> None:
    identity = replace(few.run.identity, required_gates=declared)
    assert judged(with_run(few, identity=identity), perfect=few.run).verdict == "incomplete"


def test_a_subject_with_slots_and_no_device_identity_is_incomplete(streamed: Case, few: Case) -> None:
    anonymous = with_run(streamed, identity=replace(streamed.run.identity, device={}))
    assert judged(anonymous, perfect=few.run).verdict == "incomplete"


def test_a_harness_under_which_even_the_perfect_subject_fails_ends_red(few: Case) -> None:
    """As one that feeds shifted ids would: the gates' controls have nothing to stand on, and that is the finding."""
    fault = "unknown-prefix: no prompt of the golden begins with the 1 ids fed"
    broken = replace(few.run, prompts={}, faults={p.name: fault for p in few.golden.prompts})
    assert judged(few, perfect=broken).verdict == "fail"


def test_the_ledger_says_of_each_gate_why_it_compared_nothing(streamed: Case, few: Case) -> None:
    absent = "the subject does not declare it, and its evidence is not in the run"
    reasons = {entry.gate: entry.reason for entry in judged(few).ledger}
    unshown = ("staging", "slots", "ops", *OF_A_DEVICE)
    assert reasons == {name: absent if name in unshown else "" for name in GATE_NAMES}
    prompt = few.golden.prompts[0]
    late = with_prompt(streamed, prompt, positions=few.run.prompts[prompt.name].positions + 1)
    gone = dict.fromkeys(("residents", "ops", "operands", "census", "repeats", "captures"))
    report = judged(with_run(late, **gone), perfect=few.run)
    reasons = {entry.gate: entry.reason for entry in report.ledger if entry.reason}
    unaligned = "not compared: the run is not aligned with the golden"
    assert reasons == {
        **dict.fromkeys(("chain", "flips", "logits", "residual", "routing"), unaligned),
        "staging": "the run holds no read-back of resident operands",
        "ops": "the run holds no statistics of single ops",
        "operands": "the run holds no computing copies of fp8 weights",
        "census": "the run holds no record of ops",
        "determinism": "the run holds no repeats",
        "capture": "the run holds no record of captures",
    }


def test_a_device_fault_is_a_failure_even_where_the_user_asked_for_one_gate(few: Case) -> None:
    gone = few.golden.prompts[0].name
    rest = {name: run for name, run in few.run.prompts.items() if name != gone}
    faulted = with_run(few, prompts=rest, faults={gone: "hang: 1"})
    report = judged(faulted, perfect=few.run, selected=("golden",), partial=True)
    assert (report.verdict, of(report, "golden"), of(report, "ledger")) == ("fail", "pass", "fail")


def test_a_stale_library_makes_a_session_red_that_is_green_by_every_gate(streamed: Case, few: Case) -> None:
    stale = LibraryRecord("libnorm.so", built=1, newest_source=2)
    report = judged(with_run(streamed, identity=replace(streamed.run.identity, libraries=(stale,))), perfect=few.run)
    assert (report.verdict, of(report, "ledger")) == ("fail", "fail")
    assert {result.verdict for result in report.gates if result.name != "ledger"} == {"pass"}
    session = report.to_json()["session"]
    assert session["libraries"] == [{"name": "libnorm.so", "built": 1, "newest_source": 2, "stale": True}]


def test_the_report_says_how_much_of_the_golden_was_answered_and_on_what(streamed: Case, few: Case) -> None:
    gone = few.golden.prompts[0]
    rest = {name: run for name, run in streamed.run.prompts.items() if name != gone.name}
    session = judged(with_run(streamed, prompts=rest, faults={gone.name: "hang: 1"}), perfect=few.run).to_json()["session"]
    assert session["of"] == {"prompts": len(few.golden.prompts), "positions": few.golden.positions}
    answered = {"prompts": len(few.golden.prompts) - 1, "positions": few.golden.positions - len(gone.fed)}
    assert session["answered"] == answered
    assert (session["faults"], session["device"]) == ({gone.name: "hang: 1"}, {"kind": "sim"})
    assert session["counters"] == dict(streamed.run.stats)


def test_a_class_without_a_floor_is_refused_by_name(few: Case) -> None:
    document = few.golden.document
    classes = {name: floor for name, floor in document.classes.items() if name != "w8a8"}
    golden = replace(few.golden, document=document.model_copy(update={"classes": classes}))
    identity = replace(few.run.identity, numeric_class="w8a8")
    with pytest.raises(GoldenError, match=r"no floor for class w8a8; it has [a-z0-9, -]+: make one"):
        judged(with_run(replace(few, golden=golden), identity=identity))


def test_the_report_s_flips_and_signature_are_those_of_the_run(few: Case) -> None:
    prompt, position = narrowest(few)
    spoiled = flipped(few, prompt, position)
    report = judged(spoiled, perfect=few.run)
    assert [(f.prompt, f.position) for f in report.flips] == [(prompt.name, position)]
    assert report.flip_signature != judged(few).flip_signature


def test_the_json_report_holds_every_gate_s_findings_controls_and_blindness(few: Case) -> None:
    prompt, position = widest(few)
    document = judged(flipped(few, prompt, position), perfect=few.run).to_json()
    read = json.loads(canonical_json(document))
    assert (read["schema"], read["verdict"], read["golden"]["digest"]) == ("kolibri-gate/1", "fail", few.golden.digest)
    flips = next(g for g in read["gates"] if g["id"].startswith("flips@"))
    assert flips["verdict"] == "fail"
    assert f"at {prompt.name}[{position}]" in flips["findings"][0]["text"]
    assert [c["behaved"] for c in flips["controls"]] == [True] * 5
    assert flips["blind_to"] == BY_NAME["flips"].blind_to
    assert [entry["gate"] for entry in read["ledger"]] == list(GATE_NAMES)
    assert read["flips"][0]["label"] == "hard"


@pytest.mark.parametrize("gate", GATES, ids=RUN_GATES)
def test_each_gate_says_what_it_is_blind_to(gate: Gate) -> None:
    assert len(gate.blind_to.split()) >= 5


@pytest.mark.parametrize("gate", GATES, ids=RUN_GATES)
def test_a_gate_s_id_changes_with_each_part_of_its_definition(gate: Gate) -> None:
    assert {"version", "metric", "statistic"} <= gate.definition.keys()
    changes = [{**gate.definition, key: "other"} for key in gate.definition]
    ids = {gate_id(gate.name, definition) for definition in (gate.definition, *changes)}
    assert len(ids) == len(gate.definition) + 1
    assert all(i.startswith(f"{gate.name}@") for i in ids)


@pytest.mark.parametrize(
    ("name", "constant", "key"),
    [
        ("flips", "BAND_MULTIPLE", "band_multiple"),
        ("flips", "BUDGET_TAIL", "tail"),
        ("logits", "LIMIT_MULTIPLE", "multiple"),
        ("residual", "LIMIT_MULTIPLE", "multiple"),
        ("routing", "LIMIT_MULTIPLE", "multiple"),
        ("routing", "ROUTER_RESOLUTION", "router_resolution"),
        ("routing", "ROUTING_RESOLUTION", "resolution"),
        ("routing", "UNSEEN", "unseen"),
    ],
)
def test_the_multiples_a_gate_judges_by_are_in_its_definition(name: str, constant: str, key: str) -> None:
    import oracle.golden.calibration as calibration

    assert BY_NAME[name].definition[key] == getattr(calibration, constant)


def test_a_finding_s_text_has_the_worst_the_place_the_count_and_what_was_allowed() -> None:
    finding = Finding("too far", where="p[3]", worst="2 nats", allowed="1 nat", count=4, of=9)
    assert str(finding) == "too far (4 of 9, worst 2 nats, allowed 1 nat, at p[3])"


@pytest.mark.parametrize(
    "name",
    [g.name for g in GATES if g.name not in ("golden", "slots", "staging", *OF_A_DEVICE)],
)
def test_each_planted_finding_says_how_many_of_how_many_what_and_what_was_allowed(few: Case, name: str) -> None:
    gate = BY_NAME[name]
    finding = gate.judge(next(iter(gate.plants(few).values()))).findings[0]
    assert finding.worst
    assert finding.allowed
    assert finding.where
    assert 1 <= finding.count <= finding.of
    assert f"{finding.count} of {finding.of}" in str(finding)


@pytest.mark.parametrize("name", RUN_GATES)
@pytest.mark.parametrize("numeric_class", ["bf16", "fp32"])
def test_each_gate_s_controls_behave_in_every_class(case: Case, fp32_case: Case, name: str, numeric_class: str) -> None:
    results = gate_controls(BY_NAME[name], case if numeric_class == "bf16" else fp32_case)
    assert [(r.expected, r.seen) for r in results] == [("pass", "pass"), *[("fire", "fire")] * (len(results) - 1)]
    assert len(results) > 2


def test_the_auditor_s_controls_behave(few: Case) -> None:
    results = slot_controls(few.checkpoint)
    assert [r.expected for r in results] == ["pass", "fire", "fire", "fire", "fire", "fire"]
    assert all(r.behaved for r in results)


@pytest.mark.parametrize(
    ("method", "noticed"),
    [
        ("_compare", {"auditor flipped byte", "auditor copied shadow", "auditor wrong expert"}),
        ("used", {"auditor unverified use"}),
        (
            "_report",
            {f"auditor {f}" for f in ("flipped byte", "copied shadow", "wrong expert", "shared memory", "unverified use")},
        ),
    ],
)
def test_an_auditor_that_stopped_looking_is_found_by_its_controls(
    few: Case, monkeypatch: pytest.MonkeyPatch, method: str, noticed: set[str]
) -> None:
    monkeypatch.setattr(SlotAuditor, method, lambda *_args, **_kwargs: None)
    assert {r.name for r in slot_controls(few.checkpoint) if not r.behaved} == noticed


def test_a_token_outside_the_stored_ids_has_no_smallest_band_in_the_report(few: Case) -> None:
    prompt, position = narrowest(few)
    spoiled = with_choice(with_bands(few, regret=1e3), prompt, position, outside_stored(few, prompt, position))
    report = judged(spoiled, perfect=few.run)
    assert next(r for r in report.gates if r.name == "flips").measured["smallest band"] == "none"
