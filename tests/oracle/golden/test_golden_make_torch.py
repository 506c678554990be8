"""Making a golden: what is stored is what the reference computed, and whatever could not be judged by is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import CHAT, PROMPTS, TEXT, Made

from goldens import mini_checkpoint
from oracle.errors import CheckpointError, GoldenError, UsageError
from oracle.golden import make
from oracle.golden.compare import Comparison
from oracle.golden.evidence import PromptEvidence, PromptProbes
from oracle.golden.format import load_golden, write_golden
from oracle.golden.passes import TruthPass, compare_arm, truth_pass
from oracle.golden.recipe import PromptSpec
from oracle.golden.sketch import sketch
from oracle.kolibri1.arms import ARMS, floor_arms
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.kolibri1.synthetic import write_synthetic
from oracle.kolibri1.tokenizer import open_tokenizer


def test_a_golden_holds_what_the_reference_computes(made: Made, checkpoint: Checkpoint) -> None:
    golden, reference = made.golden, Reference(checkpoint)
    assert [p.name for p in golden.prompts] == ["p0", "p1", "p2"]
    assert golden.document.checkpoint_digest == checkpoint.digest()
    for spec, prompt in zip(PROMPTS, golden.prompts, strict=True):
        assert prompt.prompt_ids == spec.ids
        assert len(prompt.generated) == 20
        got = reference.forward(list(prompt.fed), reference.new_cache())
        logits = got.logits.numpy()
        assert np.array_equal(prompt.argmax, logits.argmax(1))
        assert prompt.generated == tuple(logits.argmax(1)[len(prompt.prompt_ids) - 1 :].tolist())
        stored = np.take_along_axis(logits, prompt.top_ids.astype(np.int64), 1)
        assert np.abs(stored - prompt.top_logits).max() < 2e-6 * np.abs(logits).max()
        assert np.allclose(prompt.logsumexp, torch.logsumexp(got.logits.double(), 1).numpy(), rtol=1e-6)
        assert np.array_equal(prompt.expert_ids, got.expert_ids.numpy())
        assert np.allclose(prompt.router_gap, got.router_gap.numpy(), atol=1e-5)
        assert np.allclose(prompt.sketch, sketch(got.residual.numpy()), atol=1e-4)


def test_probes_are_full_values_at_the_places_they_name(made: Made, checkpoint: Checkpoint) -> None:
    golden, reference = made.golden, Reference(checkpoint)
    probes = golden.probes
    expected = [(i, p) for i, e in enumerate(golden.prompts) for p in (len(e.prompt_ids) - 1, len(e.fed) - 1)]
    assert list(zip(probes.prompts.tolist(), probes.positions.tolist(), strict=True)) == expected
    passes = [reference.forward(list(p.fed), reference.new_cache()) for p in golden.prompts]
    for row, (prompt, position) in enumerate(expected):
        assert np.allclose(probes.hidden[row], passes[prompt].residual[position].numpy(), atol=1e-4)
        assert np.allclose(probes.router_logits[row], passes[prompt].router_logits[position].numpy(), atol=1e-4)
    # The shortest prompt that outgrows the window of 9 has 1 + 20 - 1 positions.
    assert golden.document.probe_prompt == "p2"
    assert np.allclose(probes.layer_inputs, passes[2].layer_inputs.numpy(), atol=1e-4)


def test_every_class_is_calibrated_on_its_own_arms(made: Made, checkpoint: Checkpoint) -> None:
    golden = made.golden
    for name, calibration in golden.document.classes.items():
        assert calibration.arms == tuple(a.name for a in floor_arms(name)) == golden.document.recipe.floor_arms[name]
        assert calibration.positions == golden.positions
        assert sum(calibration.bins.positions) == golden.positions * len(calibration.arms)
    assert set(golden.document.classes) == {"fp32", "bf16", "w8a8", "fp8-kv"}
    assert golden.document.classes["fp32"].limits.sketch_slope < 1e-4 < golden.document.classes["bf16"].limits.sketch_slope
    assert golden.document.sensitivity.hidden == ()


def test_prompt_names_that_look_like_parts_of_arm_names_change_no_number(made: Made, checkpoint: Checkpoint) -> None:
    """Arm `bfloat16` on prompt `once-x`, and arm `bfloat16-once` on prompt `x`, are two results."""
    names = ("x", "once-x", "per-expert-x")
    specs = [spec.model_copy(update={"name": name}) for spec, name in zip(PROMPTS, names, strict=True)]
    golden, _ = make.make_golden(make.plan(checkpoint, specs))
    for name, calibration in golden.document.classes.items():
        before = made.golden.document.classes[name]
        named = {"prompt_floors": True, "held_out": {"__all__": {"worst_prompt"}}}
        assert calibration.model_dump(exclude=named) == before.model_dump(exclude=named)
        assert list(calibration.prompt_floors.values()) == list(before.prompt_floors.values())


def test_an_arm_is_compared_by_its_own_pass(made: Made, checkpoint: Checkpoint) -> None:
    prompt = made.golden.prompts[0]
    probes = made.golden.probes_of(prompt.name)
    measured = {name: compare_arm(Reference(checkpoint, ARMS[name]), prompt, probes) for name in ("float32", "bfloat16")}
    for name, least, bound in (("float32", 0.0, 0.0), ("bfloat16", 1e-4, 0.1)):
        weights, logits = measured[name].weight_error, measured[name].router_logit_error
        assert weights is not None
        assert logits is not None
        assert logits.shape == (2, 3)
        assert least <= weights.max() <= bound
        assert logits.max() <= bound
    assert measured["float32"].kl.max() < 1e-9
    assert measured["bfloat16"].kl.max() > 1e-9
    assert len(measured["bfloat16"].kl) == len(prompt.fed)


@pytest.mark.parametrize("arm", ["float64", "bfloat16"])
def test_another_arm_can_be_the_truth_and_is_named(made: Made, checkpoint: Checkpoint, arm: str) -> None:
    job = make.plan(checkpoint, PROMPTS, ARMS[arm])
    numeric_class = ARMS[arm].numeric_class
    assert job.recipe.truth == arm
    assert job.recipe.floor_arms[numeric_class] == tuple(a.name for a in floor_arms(numeric_class, ARMS[arm]))
    assert arm not in job.recipe.floor_arms[numeric_class]
    assert set(floor_arms("fp32", ARMS["float64"])) - set(floor_arms("fp32")) == {ARMS["float32"]}
    assert job.digests()["recipe"] != make.plan(checkpoint, PROMPTS).digests()["recipe"]


def test_the_same_inputs_give_the_same_bytes_and_they_read_back(made: Made, folder: Path, tmp_path: Path) -> None:
    again = make.make_golden(make.plan(Checkpoint.open(folder), PROMPTS))
    assert again[1] == made.packed
    assert again[0].document == made.golden.document
    write_golden(tmp_path / "golden", *again)
    read = load_golden(tmp_path / "golden")
    assert read.document == made.golden.document
    assert np.array_equal(read.prompts[2].top_logits, made.golden.prompts[2].top_logits)


def test_progress_reaches_its_end(checkpoint: Checkpoint) -> None:
    seen: list[tuple[str, int, int]] = []
    golden, _ = make.make_golden(make.plan(checkpoint, PROMPTS), progress=lambda *step: seen.append(step))
    passes = {"truth": 1, **{f"floor {name}": len(floor_arms(name)) for name in make.CLASSES}}
    of = golden.positions * sum(passes.values()) + len(golden.probes.layer_inputs)
    assert {step[2] for step in seen} == {of}
    done = [step[1] for step in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, of)
    for what, count in passes.items():
        mine = [step[1] for step in seen if step[0] == what]
        assert max(mine) - min(mine) == golden.positions * count


def test_no_prompts_give_no_golden(checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match="an empty prompt list gives no golden; pass at least one prompt"):
        make.plan(checkpoint, [])


@pytest.mark.parametrize("bad", [96, -1, 10**12])
def test_an_id_outside_the_vocabulary_is_refused_with_its_prompt(checkpoint: Checkpoint, bad: int) -> None:
    prompts = [PROMPTS[0], PromptSpec(name="bad", ids=(3, bad), new_tokens=20)]
    with pytest.raises(UsageError, match=f"prompt bad: id {bad} is outside the vocabulary of 96; check the tokenizer"):
        make.plan(checkpoint, prompts)


def test_a_prompt_that_outgrows_the_context_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match="prompt p0: 7 ids and 506 new ones exceed the context of 512; ask for fewer"):
        make.plan(checkpoint, [PROMPTS[0].model_copy(update={"new_tokens": 506})])


def test_text_without_a_tokenizer_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        make.plan(checkpoint, [PromptSpec(name="text", text="Hallo", new_tokens=4)])


def chain(reference: Reference, prompt: Sequence[int], new_tokens: int, stop: frozenset[int]) -> PromptEvidence:
    return truth_pass(reference, "chain", None, prompt, new_tokens, stop).evidence


def test_a_chain_ends_with_the_first_id_it_is_to_stop_at_and_is_the_same_until_there(made: Made) -> None:
    prompt, reference = made.golden.prompts[0], Reference(made.checkpoint)
    stop = prompt.generated[6]
    end = prompt.generated.index(stop) + 1
    stopped = chain(reference, prompt.prompt_ids, 20, frozenset({stop, 95}))
    assert stopped.generated == prompt.generated[:end]
    assert len(stopped.top_ids) == len(prompt.prompt_ids) + end - 1
    assert chain(reference, prompt.prompt_ids, end - 1, frozenset({stop})).generated == prompt.generated[: end - 1]
    first = prompt.generated[0]
    assert chain(reference, prompt.prompt_ids, 20, frozenset({first})).generated == (first,)


OPENED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("stop_at_eos", [False, True])
def test_a_chat_is_stored_as_it_was_rendered_and_stops_where_that_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stop_at_eos: bool
) -> None:
    """The mini ends its answer with the end of a turn (id 509) and goes on with another text."""
    monkeypatch.setattr(make, "CLASSES", ())  # two prompts give no floor
    mini = Checkpoint.open(mini_checkpoint())
    write_golden(tmp_path / "golden", *make.make_golden(make.plan(mini, [CHAT, TEXT], stop_at_eos=stop_at_eos)))
    golden = load_golden(tmp_path / "golden")
    chat, text = golden.prompts
    assert str(chat.text).endswith("<|im_start|>user\nWas ist die Hauptstadt von Spanien?<|im_end|>\n" + OPENED)
    assert chat.prompt_ids == open_tokenizer(mini_checkpoint())(str(chat.text))
    assert (text.text, text.prompt_ids) == (TEXT.text, open_tokenizer(mini_checkpoint())(str(TEXT.text)))
    recipe = golden.document.recipe
    assert recipe.prompts == (CHAT, TEXT)
    assert (recipe.stop_at_eos, recipe.eos_ids) == ((True, (504, 509)) if stop_at_eos else (False, ()))
    assert len(chat.generated) == 10 if stop_at_eos else 16
    assert chat.generated.index(509) == 9


def answering(patch: pytest.MonkeyPatch, chain: Callable[[int], Sequence[int]]) -> None:
    """Let the truth generate `chain(prompt number)` in place of its own ids."""
    honest, calls = make.truth_pass, iter(range(100))

    def truth_pass(*arguments: Any) -> TruthPass:
        truth = honest(*arguments)
        return replace(truth, evidence=replace(truth.evidence, generated=tuple(chain(next(calls)))))

    patch.setattr(make, "truth_pass", truth_pass)


@pytest.mark.parametrize("period", [1, 2, 12])
def test_a_chain_of_short_period_is_refused(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, period: int) -> None:
    pattern = list(range(30, 30 + period))
    answering(monkeypatch, lambda _: (pattern * 24)[:24])
    with pytest.raises(GoldenError, match=f"prompt p0: its chain has period {period} .*; choose another prompt"):
        make.make_golden(make.plan(checkpoint, PROMPTS))


def test_a_model_that_repeats_itself_is_refused(tmp_path: Path) -> None:
    """Without new ids at the input the model stays where it is: an embedding of equal rows gives a constant chain."""
    opened = Checkpoint.open(write_synthetic(tmp_path / "still", seed=1))
    honest = opened.row
    opened.row = lambda name, index: honest(name, 0)  # type: ignore[method-assign]
    with pytest.raises(GoldenError, match="its chain has period 1 and can show no index fault"):
        make.make_golden(make.plan(opened, PROMPTS[:1]))


def test_chains_that_would_hide_a_swap_are_refused(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda _: list(range(20)))
    with pytest.raises(
        GoldenError,
        match=r"would not expose p0: answered as p1 \(0 of 20 ids\) \(6 such faults\); change the prompts",
    ):
        make.make_golden(make.plan(checkpoint, PROMPTS))


def test_an_arm_that_does_not_pass_the_others_floor_is_refused(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = make.compare_arm

    def compare_arm(reference: Reference, prompt: PromptEvidence, probes: PromptProbes, tick: Any = None) -> Comparison:
        measured = honest(reference, prompt, probes, tick)
        if reference.arm.name != "bfloat16-kept":
            return measured
        assert measured.sketch_dot is not None
        return replace(measured, sketch_dot=measured.sketch_dot * 0.9)

    monkeypatch.setattr(make, "compare_arm", compare_arm)
    with pytest.raises(GoldenError, match="class bf16: arm bfloat16-kept does not pass the floor of the other arms"):
        make.make_golden(make.plan(checkpoint, PROMPTS))
