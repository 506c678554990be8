"""A bench: what is measured, in which order, and which disagreements are red."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_subjects import EffectiveFactory, FakeFactory, FakeSubject, KnowingFactory

from oracle.bench import session
from oracle.bench.document import BenchDocument
from oracle.bench.session import BenchOptions, run_bench
from oracle.errors import DeviceFault, SubjectError
from oracle.subjects.protocol import StepEvidence

Bench = Callable[..., BenchDocument]
SAME = {"plain": "a", "lean": "a", "wide": "b"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path, tmp_path: Path) -> Bench:
    def run(factory: FakeFactory, **options: Any) -> BenchDocument:
        monkeypatch.setattr("oracle.subjects.registry.subject_factory", lambda _: factory)
        monkeypatch.setattr(session, "subject_factory", lambda _: factory)
        monkeypatch.setattr("oracle.bench.machine._SECONDS", 0.01)
        given: dict[str, Any] = {"subject": "fake", "prompt_ids": 10, "steps": 4, "runs": 2} | options
        return run_bench(BenchOptions(tiny_folder, tmp_path / "no-golden", **given), lambda *_: None)

    return run


def twisted(**changes: Any) -> Callable[[FakeSubject], None]:
    def twist(subject: FakeSubject) -> None:
        for name, value in changes.items():
            setattr(subject, name, value)

    return twist


def test_runs_of_arms_take_turns_each_in_a_subject_of_its_own_and_warmed_up(bench: Bench) -> None:
    factory = FakeFactory()
    document = bench(factory, arms=("plain", "wide"), runs=3)
    assert document.settings.order == ("plain", "wide") * 3
    assert [line for line in factory.log if line.startswith("open")] == ["open plain", "open wide"] * 3
    assert factory.log.count("close") == 6
    one = factory.log[: factory.log.index("close")]
    assert one[1:9] == [f"step {token}" for token in document.prompt.ids[:8]]
    assert one[9:11] == ["reset", "model True"]
    assert one[11:] == [f"step {token}" for token in (*document.prompt.ids, *document.arms[0].chain[:-1])]


def test_the_chain_is_what_was_predicted_and_its_digest_is_of_the_serialization_stated(bench: Bench) -> None:
    arm = bench(FakeFactory()).arms[0]
    ids = (*[(7919 * i + 13) % 96 for i in range(10)],)
    chain = [(7 * ids[-1] + 9) % 96]
    for position in range(10, 14):
        chain.append((7 * chain[-1] + position) % 96)
    assert list(arm.chain) == chain
    text = "[" + ",".join(map(str, chain)) + "]\n"
    assert arm.chain_digest == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_the_logits_digest_is_of_every_step(bench: Bench) -> None:
    document = bench(FakeFactory())
    subject, whole = FakeSubject("", []), hashlib.sha256()
    for token in (*document.prompt.ids, *document.arms[0].chain[:-1]):
        whole.update(subject.step(token).logits.tobytes())
    assert document.arms[0].logits_digest == f"sha256:{whole.hexdigest()}"


def test_counts_and_modelled_time_are_of_each_stage_alone(bench: Bench) -> None:
    arm = bench(FakeFactory()).arms[0]
    assert arm.modelled_ms is not None
    for stage, steps in (("prefill", 10), ("decode", 4)):
        counts = arm.counts[stage]
        assert counts.steps == steps
        assert counts.total == {"device.ops": 9 * steps, "fills": 2 * steps, "never": 0, "steps": steps}
        assert counts.per_step == {"device.ops": 9, "fills": 2, "never": 0, "steps": 1}
        times = arm.modelled_ms[stage]
        assert times.parts == {"drain": pytest.approx(0.0005 * steps), "rest": pytest.approx(0.002 * steps)}
        assert times.total == pytest.approx(0.0025 * steps)
        assert times.per_step == pytest.approx(0.0025)
        assert times.causes["rest"] == {"wait": 0, "ops": pytest.approx(0.002 * steps)}
    assert (arm.memory.before, arm.memory.after) == (1000, 1014)


def test_wall_time_is_the_median_of_the_runs_with_its_spread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    factory, now = FakeFactory(), [0]
    honest_step, honest_stats = FakeSubject.step, FakeSubject.stats

    def step(subject: FakeSubject, token: int) -> StepEvidence:
        now[0] += (1 if subject.position < 9 else (3, 9, 4)[factory.opened - 1]) * 1_000_000
        return honest_step(subject, token)

    def stats(subject: FakeSubject) -> Mapping[str, int]:
        now[0] += 50_000_000  # is nobody's, as all that is not a step
        return honest_stats(subject)

    monkeypatch.setattr(FakeSubject, "step", step)
    monkeypatch.setattr(FakeSubject, "stats", stats)
    monkeypatch.setattr("oracle.bench.measure.time.perf_counter_ns", lambda: now[0])
    wall = bench(factory, runs=3).arms[0].wall_ms["decode"]
    assert wall.runs == (12, 36, 16)
    assert (wall.median, wall.least, wall.greatest, wall.spread) == (16, 12, 36, 1.5)
    assert (wall.per_step, wall.tokens_per_second) == (4, 250)


@pytest.mark.parametrize(
    ("changes", "kinds", "what"),
    [
        ({"skew": 1}, {"chain", "logits"}, r"id 0 of 5 is \d+ against \d+"),
        ({"whisper": 1e-6}, {"logits"}, r"logits sha256:\w+ against sha256:"),
        ({"fills": 3}, {"counts"}, r"decode fills 12 against 8, and 1 more"),
        ({"drain_ns": 501}, {"modelled time"}, r"decode drain wait ns 2,004 against 2,000, and 1 more"),
    ],
)
@pytest.mark.parametrize("nth", [2, 3])
def test_a_run_that_differs_from_the_first_is_red_by_name(
    bench: Bench, changes: dict[str, Any], kinds: set[str], what: str, nth: int
) -> None:
    document = bench(FakeFactory(twisted(**changes), nth), runs=3)
    assert document.verdict == "fail"
    assert {found.kind for found in document.differences} == kinds
    assert {found.where for found in document.differences} == {f"arm plain, run {nth} against run 1"}
    assert any(re.match(what, found.what) for found in document.differences)


def test_runs_that_agree_pass_and_say_what_was_compared(bench: Bench) -> None:
    document = bench(FakeFactory())
    assert (document.verdict, document.differences) == ("pass", ())
    assert document.compared == ("chain, logits, counts and modelled time of 2 runs of each arm",)
    assert bench(FakeFactory(), runs=1).compared == ("no runs: there is only one",)


def test_what_a_subject_does_not_show_is_not_said_to_be_compared(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSubject, "time_model", lambda _: None)
    assert bench(FakeFactory()).compared == ("chain, logits and counts of 2 runs of each arm",)
    monkeypatch.setattr(FakeSubject, "stats", lambda _: {})
    assert bench(FakeFactory()).compared == ("chain and logits of 2 runs of each arm",)


@pytest.mark.parametrize(("changes", "what"), [({"skew": 1}, "id 0 of 5 is "), ({"whisper": 1e-6}, "logits sha256:")])
def test_arms_of_one_arithmetic_that_compute_differently_are_red(bench: Bench, changes: dict[str, Any], what: str) -> None:
    factory = KnowingFactory(twisted(**changes), nth=3, bases=SAME)
    document = bench(factory, arms=("plain", "wide", "lean"), runs=1)
    (found,) = document.differences
    assert (document.verdict, found.kind, found.where) == ("fail", "arms", "arm lean against plain, both a")
    assert found.what.startswith(what)
    assert document.compared[1:] == ("chain and logits of 2 arms of arithmetic a", "not arms of different arithmetic")


def test_arms_of_another_arithmetic_may_differ_and_costs_may_always(bench: Bench) -> None:
    factory = KnowingFactory(twisted(skew=1), nth=2, bases=SAME)
    document = bench(factory, arms=("plain", "wide"), runs=1)
    assert document.verdict == "pass"
    assert document.compared == ("no runs: there is only one", "not arms of different arithmetic")
    factory = KnowingFactory(twisted(fills=7, drain_ns=1), nth=2, bases=SAME)
    document = bench(factory, arms=("plain", "lean"), runs=1)
    assert document.verdict == "pass"
    assert document.compared[1] == "chain and logits of 2 arms of arithmetic a"


def test_arms_of_a_subject_that_does_not_say_are_not_compared_and_that_is_said(bench: Bench) -> None:
    document = bench(FakeFactory(twisted(skew=1), nth=2), arms=("plain", "lean"), runs=1)
    assert document.verdict == "pass"
    assert document.compared[1] == "no arms: the subject does not say which compute the same"
    assert [arm.arithmetic for arm in document.arms] == [None, None]


def test_an_arm_that_moves_what_it_must_passes_and_one_that_does_not_is_red_in_one_line(bench: Bench) -> None:
    assert bench(EffectiveFactory(), arms=("plain", "lean")).verdict == "pass"
    document = bench(EffectiveFactory(), arms=("plain", "wide", "lean", "wide"))
    (found,) = document.differences
    assert (document.verdict, found.kind, found.where) == ("fail", "effect", "arm wide")
    assert found.what == "took no effect: never, unheard_of never moved"
    (found,) = bench(EffectiveFactory(twisted(fills=0), nth=1), arms=("lean",), runs=1).differences
    assert found.what == "took no effect: fills never moved"


def test_one_arm_twice_is_two_columns_and_is_compared(bench: Bench) -> None:
    document = bench(KnowingFactory(twisted(whisper=1e-6), nth=2, bases=SAME), arms=("plain", "plain"), runs=1)
    assert [arm.arm for arm in document.arms] == ["plain", "plain"]
    assert document.verdict == "fail"


def test_without_a_model_there_is_no_modelled_time_and_wall_time_is_the_subjects(bench: Bench) -> None:
    factory = FakeFactory(twisted(modelled=False), nth=1)
    document = bench(factory, runs=1)
    assert (document.model, document.arms[0].modelled_ms) == (None, None)
    assert document.wall_time_is == "the subject's own, on the device or host named"
    assert "model False" in factory.log
    assert bench(FakeFactory()).wall_time_is == "the simulation's, not the device's"


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"consumes": 1}, "evidence", "step 0 was fed id 13 and consumed id 14 at position 0"),
        ({"worst": float("nan")}, "non-finite", "step 0: 1 of 96 logits"),
    ],
)
def test_a_subject_that_is_plainly_wrong_is_a_fault_and_is_closed(
    bench: Bench, changes: dict[str, Any], kind: str, said: str
) -> None:
    factory = FakeFactory(twisted(**changes), nth=1)
    with pytest.raises(DeviceFault, match=said) as caught:
        bench(factory)
    assert caught.value.kind == kind
    assert factory.log[-1] == "close"


def test_an_arm_that_is_not_there_is_refused_before_anything_is_opened(bench: Bench) -> None:
    factory = FakeFactory()
    with pytest.raises(SubjectError, match="has no arm 'broad'"):
        bench(factory, arms=("plain", "broad"))
    assert factory.log == []
