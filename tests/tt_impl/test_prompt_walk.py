"""A prompt is walked token by token, so one that needs more fills than a step may make is decoded and not refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oracle.errors import DeviceFault
from oracle.kolibri1.checkpoint import Checkpoint
from tt_impl.decode import Decoder


def test_a_prompt_beyond_a_step_s_bound_is_walked_and_each_step_keeps_it(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder], tokens: list[int]
) -> None:
    bound = tiny.config.num_hidden_layers * tiny.config.num_experts_per_tok
    decoder = open_decoder(slots_per_layer=tiny.config.num_experts_per_tok)
    fills = [0]
    for token in tokens:
        decoder.step(token)
        fills.append(decoder.stats()["fills"])
    assert fills[-1] > 2 * bound
    assert max(np.diff(fills)) == np.diff(fills)[0] == bound, "the first step, from cold slots, needs all that it may fill"


def test_a_step_that_were_fed_a_whole_prompt_would_be_refused_and_told_to_walk(
    tiny: Checkpoint, open_decoder: Callable[..., Decoder]
) -> None:
    """The bound itself: what two tokens choose in every layer is more than a step of one may fill."""
    decoder = open_decoder(slots_per_layer=tiny.config.num_experts)
    pool = decoder._pool
    pool.begin_step()
    pool.make_resident(0, range(6))
    pool.release(0)
    with pytest.raises(DeviceFault, match="6 fills where 3 are left of the step's; walk the prompt token by token"):
        pool.make_resident(1, range(6))
