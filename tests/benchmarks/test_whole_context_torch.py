"""What `benchmarks/whole_context.py` runs to 4,096 positions holds at 64, and would not with a ring that is one block short."""

from __future__ import annotations

from pathlib import Path

import pytest
import whole_context

import tt_impl.attention.kv_cache
from tt_impl.plans.kv_plan import layer_blocks


@pytest.mark.slow
def test_a_sequence_to_its_end_is_the_reference_s_and_one_more_is_refused(tmp_path: Path) -> None:
    found = whole_context.compare(tmp_path, 64)
    assert (found.worst < whole_context.TOLERANCE / 10, found.near_ties) == (True, 0)
    assert found.refused == (
        "position 64 does not fit in a KV cache of 64 positions; use a shorter prompt or raise max_positions"
    )


@pytest.mark.slow
def test_a_ring_one_block_short_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tt_impl.attention.kv_cache, "layer_blocks", lambda *given, **named: max(1, layer_blocks(*given, **named) - 1)
    )
    assert whole_context.compare(tmp_path, 64).worst > whole_context.TOLERANCE
