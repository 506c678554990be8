"""Computing a golden anew: what it stores is what its arm computes, or the one thing that is not is named."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import Made

from oracle import cli
from oracle.errors import UsageError
from oracle.golden.format import Golden, assemble, write_golden
from oracle.golden.recomputation import BOUND
from oracle.golden.recompute import recompute
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.synthetic import write_synthetic

Change = Callable[[Golden], Golden]


def elsewhere(golden: Golden) -> Golden:
    """The same golden, made in another environment."""
    recipe = golden.document.recipe
    recipe = recipe.model_copy(update={"versions": {**recipe.versions, "numpy": "another"}})
    return replace(golden, document=golden.document.model_copy(update={"recipe": recipe}))


def with_first(golden: Golden, **changes: Any) -> Golden:
    return replace(golden, prompts=(replace(golden.prompts[0], **changes), *golden.prompts[1:]))


def moved_logits(by: float) -> Change:
    """Every stored logit of the first prompt moved by `by` times the largest."""

    def change(golden: Golden) -> Golden:
        logits = golden.prompts[0].top_logits
        return with_first(golden, top_logits=logits + np.float32(by * np.abs(logits).max()))

    return change


def one_bit(name: str) -> Change:
    def change(golden: Golden) -> Golden:
        values = getattr(golden.prompts[0], name).copy()
        values.reshape(-1).view(np.uint8)[0] ^= 1
        return with_first(golden, **{name: values})

    return change


def another_chain(golden: Golden) -> Golden:
    chain = golden.prompts[0].generated
    return with_first(golden, generated=(*chain[:9], (chain[9] + 1) % 96, *chain[10:]))


def other_ids(golden: Golden) -> Golden:
    """Right logits under wrong ids: each position names the ids of the next one."""
    return with_first(golden, top_ids=np.roll(golden.prompts[0].top_ids, 1, axis=0))


def test_a_golden_is_what_its_arm_computes_to_the_bit(made: Made) -> None:
    result = recompute(made.golden, made.checkpoint)
    assert result.passed
    assert result.bits_required
    assert result.failures == ()
    assert [p.prompt for p in result.prompts] == ["p0", "p1", "p2"]
    assert all(p.chain == p.generated == 20 and p.logit_error == 0 and not p.unequal for p in result.prompts)
    assert sum(p.positions for p in result.prompts) == made.golden.positions


def another_expert(golden: Golden) -> Golden:
    """One expert at one layer of the position whose router was surest there."""
    ids = golden.prompts[0].expert_ids.copy()
    position, layer = np.unravel_index(golden.prompts[0].router_gap.argmax(), golden.prompts[0].router_gap.shape)
    ids[position, layer, 0] = min(set(range(8)) - set(ids[position, layer].tolist()))
    return with_first(golden, expert_ids=ids)


def wrong(name: str) -> Change:
    """An array of the first prompt a tenth too large."""
    return lambda golden: with_first(golden, **{name: getattr(golden.prompts[0], name) * np.float32(1.1)})


def wrong_probes(**factors: int) -> Change:
    def change(golden: Golden) -> Golden:
        values = {name: getattr(golden.probes, name) * factor for name, factor in factors.items()}
        return replace(golden, probes=replace(golden.probes, **values))

    return change


def a_false_tie(golden: Golden) -> Golden:
    """Another expert, and a gap that would excuse it."""
    prompt = another_expert(golden).prompts[0]
    return with_first(golden, expert_ids=prompt.expert_ids, router_gap=prompt.router_gap * 0)


DIFFERENCES: dict[str, tuple[Change, str]] = {
    "a chain": (another_chain, "p0: the chain parts after 9 of 20 ids"),
    "logits": (moved_logits(1.5 * BOUND), r"p0: a logit is off by [23]\.\d+e-06 of the largest, allowed 2e-06"),
    "ids": (other_ids, "p0: a logit is off by .* of the largest"),
    "a false tie": (a_false_tie, "p0: 1 expert sets differ where the router's gap is no tie"),
    **{
        name: (wrong(name), f"p0: more than 1e-05 of the largest value off: {name}")
        for name in ("logsumexp", "expert_weights", "router_gap", "sketch")
    },
    "layer inputs": (wrong_probes(layer_inputs=0), "the probe prompt's layer inputs are more than 1e-05 of the largest"),
    "an expert set": (another_expert, "p0: 1 expert sets differ where the router's gap is no tie"),
}


@pytest.mark.parametrize("case", DIFFERENCES)
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_value_that_is_not_computed_fails_wherever_it_was_made(made: Made, case: str, place: str) -> None:
    change, message = DIFFERENCES[case]
    golden = change(made.golden if place == "here" else elsewhere(made.golden))
    result = recompute(golden, made.checkpoint)
    assert not result.passed
    assert len(result.failures) == 1
    assert re.fullmatch(message + ".*", result.failures[0])


@pytest.mark.parametrize("name", ["positions", "hidden", "router_logits"])
def test_probes_that_are_not_computed_fail_in_any_environment(made: Made, name: str) -> None:
    result = recompute(elsewhere(wrong_probes(**{name: 0})(made.golden)), made.checkpoint)
    assert f"probe_{name}" in result.failures[0]


def only_first(values: np.ndarray) -> np.ndarray:
    """The first probe a part in a million off."""
    return np.concatenate([values[:1] * np.float32(1 + 1e-6), values[1:]])


BITS = [
    *(one_bit(name) for name in ("top_logits", "logsumexp", "expert_weights", "router_gap", "sketch")),
    lambda golden: replace(golden, probes=replace(golden.probes, hidden=only_first(golden.probes.hidden))),
    lambda golden: replace(golden, probes=replace(golden.probes, layer_inputs=golden.probes.layer_inputs + np.float32(1e-7))),
]


@pytest.mark.parametrize("change", BITS)
def test_a_bit_fails_where_the_environment_is_the_same_and_only_there(made: Made, change: Change) -> None:
    here, there = recompute(change(made.golden), made.checkpoint), recompute(elsewhere(change(made.golden)), made.checkpoint)
    assert not here.passed
    assert len(here.failures) == 1
    assert "bits" in here.failures[0]
    assert there.passed
    assert there.environment == (("numpy", "another", np.__version__),)


def test_another_checkpoint_is_refused(made: Made, tmp_path: Path) -> None:
    other = Checkpoint.open(write_synthetic(tmp_path / "other", seed=99))
    with pytest.raises(UsageError, match=r"is not the golden's checkpoint .*; pass --checkpoint"):
        recompute(made.golden, other)


def verify(made: Made, golden: Path, patch: pytest.MonkeyPatch, *options: str) -> int:
    words = ["golden", "verify", "--checkpoint", str(made.folder), "--golden", str(golden), *options]
    patch.setattr(sys, "argv", ["kolibri-oracle", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_the_command_recomputes_when_asked_and_its_code_says_the_result(
    made: Made, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_golden(tmp_path / "good", made.golden, made.packed)
    assert verify(made, tmp_path / "good", monkeypatch, "--recompute", "--json", str(tmp_path / "good.json")) == 0
    assert "The golden is what its reference computes." in capfd.readouterr().out
    result = json.loads((tmp_path / "good.json").read_text())
    assert result["verdict"] == "pass"
    assert result["recomputed"]["passed"] is True

    document = made.golden.document
    moved = moved_logits(1.5 * BOUND)(made.golden)
    bad = assemble(
        recipe=document.recipe,
        checkpoint_digest=document.checkpoint_digest,
        prompts=moved.prompts,
        classes=document.classes,
        sensitivity=document.sensitivity,
        probe_prompt=document.probe_prompt,
        probes=moved.probes,
    )
    write_golden(tmp_path / "bad", *bad)
    assert verify(made, tmp_path / "bad", monkeypatch) == 0  # consistent in itself: only a recomputation can tell
    assert verify(made, tmp_path / "bad", monkeypatch, "--recompute", "--json", str(tmp_path / "bad.json")) == 1
    assert "FAIL p0: a logit is off by" in capfd.readouterr().out
    assert json.loads((tmp_path / "bad.json").read_text())["recomputed"]["passed"] is False
