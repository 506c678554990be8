"""Compute a golden anew: is what it stores what its arm computes here? Needs torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from oracle.errors import UsageError
from oracle.golden.format import Golden
from oracle.golden.passes import layer_inputs, truth_pass
from oracle.golden.recomputation import Recomputation, compare_recomputed, environment_differences, near, same_bits
from oracle.kolibri1.arms import arm_named
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference


def recompute(golden: Golden, checkpoint: Checkpoint, progress: Callable[[int, int], None] | None = None) -> Recomputation:
    """Run the golden's own arm over its prompts.

    Raises:
        UsageError: another checkpoint than the golden's, or an arm that this version has not.
    """
    if checkpoint.digest() != golden.document.checkpoint_digest:
        raise UsageError(
            f"{checkpoint.folder} is not the golden's checkpoint ({checkpoint.digest()}, the golden names "
            f"{golden.document.checkpoint_digest}); pass --checkpoint"
        )
    torch.set_num_threads(1)
    recipe = golden.document.recipe
    reference = Reference(checkpoint, arm_named(recipe.truth))
    probed = next(p for p in golden.prompts if p.name == golden.document.probe_prompt)
    done, of = 0, golden.positions + len(probed.fed)

    def tick(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, of)

    prompts = []
    for index, stored in enumerate(golden.prompts):
        computed = truth_pass(reference, stored.name, stored.text, stored.prompt_ids, len(stored.generated), tick=tick)
        at = golden.probes.prompts == index
        probes = {
            "probe_positions": (golden.probes.positions[at], computed.probe_positions),
            "probe_hidden": (golden.probes.hidden[at], computed.probe_hidden),
            "probe_router_logits": (golden.probes.router_logits[at], computed.probe_router_logits),
        }
        prompts.append(compare_recomputed(stored, computed.evidence, probes))
    inputs = layer_inputs(reference, probed.fed, tick)
    differ = next(p.sets_differ for p in prompts if p.prompt == probed.name)
    return Recomputation(
        environment_differences(recipe.versions),
        tuple(prompts),
        probes=same_bits(inputs, golden.probes.layer_inputs),
        probes_near=bool(differ) or near(golden.probes.layer_inputs, inputs),
    )
