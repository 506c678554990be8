"""The meta-test: a gate whose comparison is deleted, inverted or made with itself ends the session red or incomplete.

Whole sessions judge the perfect run, with all that a gate can ask for, so that nothing but a control can notice. What only
decides a message, or makes a gate stricter, is listed with its reason: a mutant that survives without one is a comparison
that no control looks at, and needs a plant in its gate.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from equivalent_mutants import EQUIVALENT
from judge_cases import mini_golden, with_a_device
from silencing import Silenced, silenced

import oracle.judge.controls as controls
import oracle.judge.gate as gate_module
import oracle.judge.ledger as ledger
import oracle.judge.ops_audit as ops_audit
import oracle.judge.ops_controls as ops_controls
import oracle.judge.routing as routing
import oracle.judge.shown_router as shown_router
import oracle.judge.verdict as verdict
from goldens import mini_checkpoint
from oracle.golden.compare import Comparison, compare
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import load_golden
from oracle.judge.gate import Case, Gate
from oracle.judge.gates import GATE_NAMES, GATES
from oracle.judge.jobs import PromptJob, run_job
from oracle.judge.ops import planned_evidence as planned_ops
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.run import PromptRun, Run

BY_NAME = {gate.name: gate for gate in GATES}
CLASSES = ("bf16", "fp32")


@pytest.fixture(scope="module")
def tiny_case(tiny_folder: Path, tiny_golden_folder: Path) -> Case:
    """The tiny golden: quick, and enough for what compares arrays alone."""
    return answered(tiny_folder, tiny_golden_folder)


@pytest.fixture(scope="module")
def mini_case() -> Case:
    """Prompts of texts and of a chat from the shipped golden: a model computed them, so its routers are consistent."""
    return answered(mini_checkpoint(), mini_golden(), ("copying", "coin-en", "chat-high"))


@pytest.fixture
def whole(request: pytest.FixtureRequest, name: str) -> Case:
    """What the gate `name` is tried on."""
    return request.getfixturevalue("mini_case" if name in ("golden", "routing") else "tiny_case")


def answered(checkpoint: Path, golden_folder: Path, names: Sequence[str] | None = None) -> Case:
    """The perfect subject's answers, with the evidence of an honest device beside them."""
    golden = load_golden(golden_folder)
    golden = replace(golden, prompts=tuple(p for p in golden.prompts if names is None or p.name in names))
    request = SubjectRequest(checkpoint, golden_folder)
    outcomes = [run_job(PromptJob("perfect", request, golden_folder, prompt.name)) for prompt in golden.prompts]
    identity = replace(outcomes[0].identity, required_gates=GATE_NAMES, device={"kind": "sim"})
    run = Run(identity, golden.digest, {outcome.job.prompt: outcome.run for outcome in outcomes if outcome.run is not None})
    case = Case(golden, run, Checkpoint.open(checkpoint), golden.document.classes["bf16"])
    return with_a_device(case)


def judged(whole: Case, gate: str, numeric_class: Any) -> verdict.Report:
    """A session that is narrowed to one gate; the ledger judges in each."""
    identity = replace(whole.run.identity, numeric_class=numeric_class, arm=numeric_class)
    run = replace(whole.run, identity=identity, ops=planned_ops(numeric_class))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a session of the command line: arithmetic on nonsense only warns
        return verdict.judge_session(whole.golden, whole.checkpoint, run, whole.run, selected=(gate,))


def green(whole: Case, gate: str) -> bool:
    """Whether sessions of every class stay green. One that is broken off by an error is not."""
    try:
        return all(judged(whole, gate, numeric_class).verdict == "pass" for numeric_class in CLASSES)
    except Exception:
        return False


@pytest.mark.parametrize("name", BY_NAME)
def test_an_honest_gate_is_green_in_every_class(whole: Case, name: str) -> None:
    for numeric_class in CLASSES:
        report = judged(whole, name, numeric_class)
        assert report.verdict == "pass", [str(finding) for gate in report.gates for finding in gate.findings]


@pytest.mark.parametrize("name", ["flips", "logits", "residual", "routing"])
def test_a_gate_that_compares_the_run_with_itself_is_not_green(whole: Case, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def with_itself(golden: PromptEvidence, run: PromptRun, probes: Any = None) -> Comparison:
        top_ids = golden.top_ids.copy()
        top_ids[:, 0] = run.argmax
        shown = {array: getattr(run, array) for array in ("logsumexp", "expert_ids", "expert_weights", "sketch")}
        if probes is not None and run.router_logits is not None:
            probes = replace(probes, router_logits=run.router_logits)
        return compare(replace(golden, top_ids=top_ids, top_logits=run.logits_at_golden, **shown), run, probes)

    monkeypatch.setattr(gate_module, "compare", with_itself)
    assert not green(whole, name)


def swap_gate(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[Silenced], None]:
    """Put the gate of a silenced module in its place, wherever sessions look for it."""

    def swap(mutant: Silenced) -> None:
        gate: Gate = mutant.names[type(BY_NAME[name]).__name__]()
        monkeypatch.setattr(verdict, "GATES", tuple(gate if each.name == name else each for each in GATES))
        if name == "alignment":
            monkeypatch.setattr(controls, "AlignmentGate", type(gate))

    return swap


def survivors(whole: Case, gate: str, module: ModuleType, roots: tuple[str, ...], swap: Callable[[Silenced], None]) -> set[str]:
    """Mutants of the module with which sessions of `gate` stay green."""
    found = set()
    for mutant in silenced(module, roots):
        swap(mutant)
        if green(whole, gate):
            found.add(mutant.key)
    return found


def expect(found: set[str], name: str) -> None:
    """Exactly the mutants that are listed survive: one more has no control, one fewer needs no reason any longer."""
    listed = EQUIVALENT.get(name, {}).keys()
    unlisted = sorted(key for key in found if not any(key.startswith(start) for start in listed))
    assert not unlisted, "no control notices: " + "; ".join(unlisted)
    needless = sorted(start for start in listed if not any(key.startswith(start) for key in found))
    assert not needless, "noticed, though listed: " + "; ".join(needless)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_no_condition_of_a_gate_can_be_silenced_unseen(whole: Case, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "golden" and find_spec("transformers") is None:
        pytest.skip("texts and chats are compared only where transformers is")
    module = inspect.getmodule(type(BY_NAME[name]))
    assert module is not None
    expect(survivors(whole, name, module, ("judge",), swap_gate(monkeypatch, name)), name)


@pytest.mark.slow
def test_no_condition_of_what_a_router_says_of_itself_can_be_silenced_unseen(
    mini_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap(mutant: Silenced) -> None:
        monkeypatch.setattr(routing, "judge_shown_router", mutant.names["judge_shown_router"])

    expect(survivors(mini_case, "routing", shown_router, ("judge_shown_router",), swap), "shown_router")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ledger"])
def test_no_condition_of_the_ledger_can_be_silenced_unseen(whole: Case, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def swap(mutant: Silenced) -> None:
        monkeypatch.setattr(verdict, "judge_ledger", mutant.names["judge_ledger"])
        monkeypatch.setattr(verdict, "ledger_controls", mutant.names["ledger_controls"])

    expect(survivors(whole, "slots", ledger, ("judge_ledger",), swap), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["measuring ops"])
def test_no_condition_of_what_measures_ops_can_be_silenced_unseen(
    whole: Case, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def swap(mutant: Silenced) -> None:
        monkeypatch.setattr(ops_controls, "measure", mutant.names["measure"])

    expect(survivors(whole, "ops", ops_audit, ("measure",), swap), name)


def test_every_listed_reason_is_a_sentence() -> None:
    assert all(len(reason.split()) > 3 for reasons in EQUIVALENT.values() for reason in reasons.values())
