"""Passes over prompts: bounded, the same in any cut, and with a golden's routing in place of an arm's own."""

from __future__ import annotations

import numpy as np
import pytest
from making import Made

from oracle.golden import passes
from oracle.golden.passes import compare_arm, forced_routing, truth_pass
from oracle.kolibri1 import reference as module
from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.reference import Reference


def test_the_goldens_routing_forced_on_its_own_arm_gives_the_goldens_bits(made: Made) -> None:
    reference = Reference(made.checkpoint)
    for prompt in made.golden.prompts:
        got = reference.forward(prompt.fed, reference.new_cache(), routing=forced_routing(prompt))
        stored = np.take_along_axis(got.logits.numpy(), prompt.top_ids.astype(np.int64), 1)
        assert np.array_equal(stored, prompt.top_logits)
        assert np.array_equal(got.expert_ids.numpy(), prompt.expert_ids)


def test_forced_routing_takes_another_arms_router_noise_out_of_the_comparison(made: Made) -> None:
    reference = Reference(made.checkpoint, ARMS["w8a8"])
    own, forced = [], []
    for prompt in made.golden.prompts:
        own.append(reference.forward(prompt.fed, reference.new_cache()))
        forced.append(reference.forward(prompt.fed, reference.new_cache(), routing=forced_routing(prompt)))
        assert np.array_equal(forced[-1].expert_ids.numpy(), prompt.expert_ids)
        assert np.array_equal(forced[-1].expert_weights.numpy(), prompt.expert_weights)
    differ = [not np.array_equal(o.expert_ids.numpy(), p.expert_ids) for o, p in zip(own, made.golden.prompts, strict=True)]
    assert any(differ)  # else there was no noise to take out

    def off(parts: list[module.Forward]) -> float:
        errors = [
            np.abs(np.take_along_axis(f.logits.numpy(), p.top_ids.astype(np.int64), 1) - p.top_logits).mean()
            for f, p in zip(parts, made.golden.prompts, strict=True)
        ]
        return float(np.mean(errors))

    assert off(forced) < off(own)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_a_pass_in_small_chunks_gives_what_one_in_large_ones_gives(
    made: Made, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Reference.stream
    monkeypatch.setattr(Reference, "stream", lambda self, ids, cache, **rest: honest(self, ids, cache, chunk=chunk, **rest))
    prompt = made.golden.prompts[0]
    reference = Reference(made.checkpoint)
    again = truth_pass(reference, prompt.name, None, prompt.prompt_ids, len(prompt.generated))
    assert again.evidence.generated == prompt.generated
    for name in ("top_ids", "top_logits", "expert_ids", "expert_weights", "router_gap"):
        assert np.array_equal(getattr(again.evidence, name), getattr(prompt, name)), name
    assert again.probe_positions.tolist() == [len(prompt.prompt_ids) - 1, len(prompt.fed) - 1]
    comparison = compare_arm(reference, prompt, made.golden.probes_of(prompt.name))
    assert comparison.weight_error is not None
    assert comparison.router_logit_error is not None
    assert (comparison.weight_error.max(), comparison.router_logit_error.max()) == (0, 0)
    assert not comparison.flip.any()
    assert comparison.logit_error.max() == 0


def test_no_pass_holds_more_than_a_chunk_of_logits(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    honest = passes._rows

    def rows(part: module.Forward) -> dict[str, np.ndarray]:
        alive.append(len(part))
        return honest(part)

    monkeypatch.setattr(passes, "_rows", rows)
    ids = np.random.default_rng(3).integers(0, 96, 400).tolist()
    made_of = truth_pass(Reference(made.checkpoint), "long", None, ids, 3)
    assert max(alive) == module.CHUNK < len(ids)
    assert len(made_of.evidence.top_ids) == len(ids) + 2
