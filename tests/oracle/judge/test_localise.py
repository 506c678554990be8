"""Which layer is off: the spoiled one and no other, in both modes; and nothing is said of a run that is not aligned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from judge_cases import answer, changed, flipped, mini_golden, widest, with_prompt
from rich.console import Console

import oracle.judge.isolation as isolation
import oracle.judge.session as session
from goldens import mini_checkpoint
from oracle.errors import DeviceFault, SubjectError
from oracle.golden.format import Golden
from oracle.golden.sketch import sketch_signs
from oracle.judge.gate import Case
from oracle.judge.gates import GATE_NAMES
from oracle.judge.isolation import IsolationJob, run_isolation
from oracle.judge.localise import Isolated, Localisation, accumulate, compare_layers
from oracle.judge.session import Recorded, SessionOptions, judge_recorded, localised
from oracle.judge.verdict import Report
from oracle.report.terminal import print_report
from oracle.serialization import canonical_json
from oracle.subjects.protocol import Float32, IsolatesLayers, NumericClass, SubjectIdentity, SubjectRequest
from oracle.subjects.run import PromptRun

LAYERS = range(5)


@pytest.fixture(scope="module")
def few(case: Case) -> Case:
    """Three prompts, the probe prompt among them: whole sessions are judged here."""
    kept = {case.golden.document.probe_prompt, *(p.name for p in case.golden.prompts[:2])}
    prompts = tuple(p for p in case.golden.prompts if p.name in kept)
    runs = {p.name: case.run.prompts[p.name] for p in prompts}
    return replace(case, golden=replace(case.golden, prompts=prompts), run=replace(case.run, prompts=runs))


def judged(few: Case, spoiled: Case) -> Report:
    recorded = Recorded(few.golden, few.checkpoint, spoiled.run, few.run, True, ())
    return judge_recorded(recorded, GATE_NAMES, partial=False)


def scaled_from(layer: int, factor: float) -> Any:
    def scale(run: PromptRun) -> PromptRun:
        assert run.sketch is not None
        sketch = run.sketch.copy()
        sketch[:, layer:] *= np.float32(factor)
        return replace(run, sketch=sketch)

    return scale


@pytest.mark.parametrize("layer", LAYERS)
def test_accumulated_names_the_first_layer_and_the_first_position_there(case: Case, layer: int) -> None:
    found = accumulate(case.with_prompts(scaled_from(layer, 1.2)))
    assert found is not None
    assert [measure.off for measure in found.layers] == [at >= layer for at in LAYERS]
    assert found.place == f"{case.golden.prompts[0].name}[0]"
    assert found.sentence.startswith(f"the residual stream is off from layer {layer} on (median 0.2, limit ")
    assert found.sentence.endswith(f", for the first time at {found.place}")


def test_a_stream_that_is_a_little_short_everywhere_has_a_slope_and_no_first_position(case: Case) -> None:
    found = accumulate(case.with_prompts(scaled_from(3, 0.995)))
    assert found is not None
    assert found.place is None
    assert found.sentence.startswith("the residual stream is off from layer 3 on (slope -0.005, limit 0.000")
    assert "first time" not in found.sentence


def test_the_first_position_is_the_first_beyond_the_limit_in_the_golden_s_order(case: Case) -> None:
    late = scaled_from(2, 1.2)
    prompts = {name: late(run) for name, run in case.run.prompts.items()}
    first = case.golden.prompts[0].name
    honest, off = case.run.prompts[first].sketch, prompts[first].sketch
    assert honest is not None
    assert off is not None
    prompts[first] = replace(prompts[first], sketch=np.concatenate([honest[:7], off[7:]]))
    found = accumulate(case.with_run(prompts=prompts))
    assert found is not None
    assert found.place == f"{first}[7]"


def test_a_stream_within_its_limits_sends_the_reader_after_the_last_layer(few: Case) -> None:
    prompt, position = widest(few)
    report = judged(few, flipped(few, prompt, position))
    assert report.localisation is not None
    assert report.localisation.accumulated is not None
    assert not any(layer.off for layer in report.localisation.accumulated.layers)
    assert report.localisation.accumulated.sentence.endswith("look after the last layer (final norm, head)")


def test_nothing_is_localised_in_a_green_run_nor_in_one_that_is_not_aligned(few: Case) -> None:
    assert judged(few, few).localisation is None
    prompt = few.golden.prompts[0]
    off = few.with_prompts(scaled_from(1, 1.2))
    assert judged(few, off).localisation is not None
    late = with_prompt(off, prompt, positions=answer(off, prompt).positions + 1)
    assert judged(few, late).localisation is None
    assert judged(few, late).to_json()["localisation"] is None


def test_a_gate_of_other_things_asks_for_no_layer(few: Case) -> None:
    prompt = few.golden.prompts[0]
    chain = answer(few, prompt).free_generated
    report = judged(few, with_prompt(few, prompt, free_generated=changed(chain, -1, int(chain[-1]) ^ 1)))
    assert report.verdict == "fail"
    assert report.localisation is None


def honest_outputs(golden: Golden) -> list[Float32]:
    """What each layer would give: the golden's next input, and after the last layer a vector that has the stored sketch."""
    prompt = next(p for p in golden.prompts if p.name == golden.document.probe_prompt)
    inputs = golden.probes.layer_inputs
    signs = sketch_signs(inputs.shape[2])
    last = np.linalg.solve(signs @ signs.T, prompt.sketch[:, -1].astype(np.float64).T).T @ signs
    return [*(inputs[:, layer + 1].copy() for layer in LAYERS[:-1]), last.astype(np.float32)]


class Layered:
    """A subject that answers for its layers from the golden, spoiled at one; it must be fed the golden's own inputs."""

    def __init__(self, golden: Golden, spoil: Mapping[int, Any]) -> None:
        self.identity = SubjectIdentity("layered", "bf16", "bf16", ())
        self.closed = False
        self._inputs, self._outputs, self._spoil = golden.probes.layer_inputs, honest_outputs(golden), spoil

    def layer(self, layer: int, inputs: Float32) -> Float32:
        assert inputs.dtype == np.float32
        assert np.array_equal(inputs, self._inputs[:, layer])
        return self._spoil.get(layer, lambda honest: honest)(self._outputs[layer])

    def close(self) -> None:
        self.closed = True


def isolated(monkeypatch: pytest.MonkeyPatch, subject: Any) -> Isolated | None:
    """The job done in this process, on that subject."""

    class Factory:
        def open(self, request: SubjectRequest, observer: Any = None) -> Any:
            if isinstance(subject, Exception):
                raise subject
            return subject

    monkeypatch.setattr(isolation, "subject_factory", lambda _name: Factory())
    return run_isolation(IsolationJob("layered", SubjectRequest(mini_checkpoint()), mini_golden()))


def fault(_: Float32) -> Float32:
    raise DeviceFault("slot-verification", "byte 3")


def crash(_: Float32) -> Float32:
    raise IndexError("no such tile")


@pytest.mark.parametrize("layer", LAYERS)
def test_isolated_names_the_layer_that_was_spoiled_and_no_other(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    subject = Layered(golden, {layer: lambda honest: honest * np.float32(1.03)})
    found = isolated(monkeypatch, subject)
    assert found is not None
    assert subject.closed
    assert [measure.layer for measure in found.layers if measure.off] == [layer]
    others = ", ".join(str(other) for other in LAYERS if other != layer)
    assert found.sentence.startswith(f"layer {layer} alone is off (median 0.03, limit 0.0")
    assert found.sentence.endswith(f"; layers {others} are within limits given the golden's input")


@pytest.mark.parametrize("numeric_class", ["fp32", "bf16", "w8a8", "fp8-kv"])
def test_isolated_names_no_layer_of_an_honest_subject(golden: Golden, numeric_class: NumericClass) -> None:
    limits = golden.document.classes[numeric_class].limits
    found = compare_layers(golden, honest_outputs(golden), limits)
    assert not any(layer.off for layer in found.layers)
    assert found.sentence.startswith("no layer is off given the golden's input: look before the first")
    assert found.prompt == golden.document.probe_prompt


@pytest.mark.parametrize("layer", [0, 4])
def test_an_error_at_few_positions_a_slope_and_numbers_that_are_none_are_seen_each(golden: Golden, layer: int) -> None:
    limits = golden.document.classes["bf16"].limits

    def spoiled(change: Any) -> str:
        outputs = honest_outputs(golden)
        outputs[layer] = change(outputs[layer])
        return compare_layers(golden, outputs, limits).sentence

    def shaken(honest: Float32) -> Float32:
        return np.concatenate([honest[:-6], honest[-6:] * np.float32(1.5)])

    def short(honest: Float32) -> Float32:
        return honest * np.float32(0.9945)

    def broken(honest: Float32) -> Float32:
        return changed(honest, ([2, 3], 7), (np.nan, np.inf))

    assert spoiled(shaken).startswith(f"layer {layer} alone is off (p90 0.5, limit ")
    assert spoiled(short).startswith(f"layer {layer} alone is off (slope -0.0055, limit 0.00")
    assert spoiled(broken).startswith(f"layer {layer} alone is off (2 NaN or infinite numbers); layers ")


def test_several_and_all_layers_off_are_listed_each_with_its_measure(golden: Golden) -> None:
    limits = golden.document.classes["bf16"].limits
    outputs = honest_outputs(golden)
    four = [output * np.float32(1.1) for output in outputs[:-1]]
    sentence = compare_layers(golden, [*four, outputs[-1]], limits).sentence
    assert [f"layer {layer} is off (median 0.1, limit " in sentence for layer in LAYERS] == [True] * 4 + [False]
    assert sentence.endswith("; layer 4 is within limits given the golden's input")
    assert "every layer is" in compare_layers(golden, [output * np.float32(1.1) for output in outputs], limits).sentence


def test_a_layer_a_little_short_is_named_by_its_slope_where_its_distance_hides_in_the_floor(golden: Golden) -> None:
    limits = golden.document.classes["bf16"].limits_for([golden.document.probe_prompt])
    outputs = honest_outputs(golden)
    outputs[2] = outputs[2] * np.float32(0.996)
    found = compare_layers(golden, outputs, limits)
    assert [layer.layer for layer in found.layers if layer.off] == [2]
    assert found.layers[2].median < found.layers[2].median_limit
    assert found.layers[2].p90 < found.layers[2].p90_limit
    assert found.layers[2].slope_limit == limits.sketch_slope


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ({3: fault}, "slot-verification: byte 3"),
        ({0: crash}, "subject-crashed: IndexError in crash (test_localise.py"),
        ({2: lambda honest: honest[:-1]}, "evidence: layer 2 gave [38, 256] for inputs [39, 256]"),
        ({2: lambda honest: honest[0]}, "evidence: layer 2 gave [256] for inputs [39, 256]"),
    ],
)
def test_a_subject_that_fails_there_is_said_to_and_the_verdict_stands(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, subject: Any, said: str
) -> None:
    layered = Layered(golden, subject)
    found = isolated(monkeypatch, layered)
    assert found is not None
    assert found.layers == ()
    assert found.sentence.startswith(f"the layers could not be run alone: {said}")
    assert layered.closed


def test_a_subject_that_cannot_be_opened_again_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    found = isolated(monkeypatch, SubjectError("no card any more"))
    assert found is not None
    assert "no card any more" in found.sentence


def test_a_subject_that_cannot_run_one_layer_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        closed = False

        def close(self) -> None:
            self.closed = True

    plain = Plain()
    assert isolated(monkeypatch, plain) is None
    assert plain.closed
    assert not isinstance(plain, IsolatesLayers)


def test_a_session_isolates_where_a_gate_of_numbers_is_red_and_never_for_a_replay(
    few: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[IsolationJob] = []
    answered = Isolated("copying", (), "a fault")
    monkeypatch.setattr(session, "isolate", lambda job: asked.append(job) or answered)
    options = SessionOptions(mini_checkpoint(), mini_golden(), "tt", arm="exact", device="sim")
    assert localised(options, judged(few, few)).localisation is None
    red = judged(few, few.with_prompts(scaled_from(1, 1.2)))
    replayed = localised(replace(options, replay=mini_golden()), red).localisation
    assert replayed is not None
    assert (replayed.isolated, asked) == (None, [])
    found = localised(options, red).localisation
    assert found is not None
    assert (found.isolated, found.accumulated) == (answered, replayed.accumulated)
    assert asked == [IsolationJob("tt", SubjectRequest(mini_checkpoint(), None, "sim", "exact"), mini_golden())]


def test_a_worker_that_dies_leaves_the_verdict_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = DeviceFault("worker-died", "a worker process died")
    monkeypatch.setattr(isolation, "work", lambda _, jobs, *__: iter([(0, jobs[0], fault)]))
    found = isolation.isolate(IsolationJob("tt", SubjectRequest(mini_checkpoint()), mini_golden()))
    assert found is not None
    assert found.sentence == "the layers could not be run alone: worker-died: a worker process died"


def test_both_modes_are_in_the_report_s_json_and_in_the_terminal(few: Case) -> None:
    red = judged(few, few.with_prompts(scaled_from(1, 1.2)))
    outputs = honest_outputs(few.golden)
    outputs[1] = changed(outputs[1], (0, 0), np.nan)
    limits = few.calibration.limits
    assert red.localisation is not None
    found = Localisation(red.localisation.accumulated, compare_layers(few.golden, outputs, limits))
    report = replace(red, localisation=found)
    entry = report.to_json()["localisation"]
    assert canonical_json(entry)
    assert found.accumulated is not None
    assert found.isolated is not None
    assert entry["accumulated"]["sentence"] == found.accumulated.sentence
    assert entry["isolated"]["sentence"] == found.isolated.sentence
    assert [row["off"] for row in entry["isolated"]["layers"]] == [False, True, False, False, False]
    assert entry["isolated"]["layers"][1]["non_finite"] == 1
    assert entry["accumulated"]["layers"][1]["median_limit"] == few.limits.sketch_median[1]
    out = StringIO()
    print_report(Console(file=out, width=120), report)
    assert f"accumulated: {found.accumulated.sentence}" in out.getvalue().splitlines()
    assert f"isolated: {found.isolated.sentence}" in out.getvalue().splitlines()
