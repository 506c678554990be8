"""The KV cache: a sliding layer holds window - 1 positions in bounded memory, and holds the right ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.errors import CheckpointError
from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.kv_cache import LayerCache
from oracle.kolibri1.reference import Reference

IDS = torch.arange(40).tolist()


@pytest.mark.parametrize("arm", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [[1] * 40, [40], [7, 33]], ids=str)
def test_a_sliding_layer_keeps_one_window_less_one_and_a_full_layer_everything(
    tiny: Checkpoint, sizes: list[int], arm: str
) -> None:
    reference = Reference(tiny, ARMS[arm])
    cache, start = reference.new_cache(), 0
    for size in sizes:
        reference.forward(IDS[start : start + size], cache)
        start += size
        assert cache.length == start
        for layer, kept in enumerate(cache.layers):
            held = min(start, 8) if tiny.config.is_sliding(layer) else start
            assert kept.keys.shape == kept.values.shape == (2, held, 32)
            assert kept.first == start - held


@pytest.mark.parametrize(("step", "left"), [("attend", 1), ("attend", 2), ("product", 4), ("product", 9)])
def test_a_pass_that_breaks_off_leaves_the_cache_as_it_was(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch, step: str, left: int
) -> None:
    """In an attention or a router, after one layer or two have taken keys; the same cache then serves again."""
    reference = Reference(tiny)
    cache, untouched = reference.new_cache(), reference.new_cache()
    for same in (cache, untouched):
        reference.forward(IDS[:12], same)
    honest = getattr(reference.m, step)

    def breaking(*arguments: object) -> torch.Tensor:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return honest(*arguments)

    monkeypatch.setattr(reference.m, step, breaking)
    with pytest.raises(KeyboardInterrupt):
        reference.forward(IDS[12:30], cache)
    monkeypatch.undo()
    assert cache.length == 12
    assert torch.equal(reference.forward(IDS[12:], cache).logits, reference.forward(IDS[12:], untouched).logits)


def test_a_damaged_head_leaves_the_cache_as_it_was(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference(tiny)
    cache = reference.new_cache()
    honest = reference.m.product

    def damaged(x: torch.Tensor, name: str) -> torch.Tensor:
        if name == "lm_head.weight":
            raise CheckpointError(name)
        return honest(x, name)

    monkeypatch.setattr(reference.m, "product", damaged)
    with pytest.raises(CheckpointError):
        reference.forward(IDS, cache)
    assert cache.length == 0


def numbered(first: int, count: int) -> torch.Tensor:
    """[2, count, 3]: every number names its head, position and column."""
    positions = torch.arange(first, first + count, dtype=torch.float64)[None, :, None]
    return positions * 8 + torch.arange(2)[:, None, None] * 4 + torch.arange(3)


@settings(max_examples=60, deadline=None)
@given(
    window=st.one_of(st.none(), st.integers(1, 70)),
    sizes=st.lists(st.one_of(st.integers(1, 5), st.integers(1, 400)), min_size=1, max_size=60),
)
def test_the_cache_is_a_list_of_positions_cut_to_the_window(window: int | None, sizes: list[int]) -> None:
    cache, end, largest = LayerCache(2, 3, window, torch.float64), 0, 0
    for size in sizes:
        cache.append(numbered(end, size), -numbered(end, size))
        before = 0 if window is None else max(0, end - (window - 1))
        assert cache.first == before
        assert torch.equal(cache.keys, numbered(before, end + size - before))
        assert torch.equal(cache.values, -numbered(before, end + size - before))
        end, largest = end + size, max(largest, size)
        cache.forget()
        after = 0 if window is None else max(0, end - (window - 1))
        assert cache.first == after
        assert torch.equal(cache.keys, numbered(after, end - after))
        assert torch.equal(cache.values, -numbered(after, end - after))
        room = 2 * end if window is None else 2 * window + largest
        assert cache._buffers.shape[2] <= max(64, room)


def test_thousands_of_decode_steps_take_no_more_than_two_windows() -> None:
    cache = LayerCache(2, 3, 513, torch.float32)
    seen = set()
    for position in range(5000):
        cache.append(torch.full((2, 1, 3), float(position)), torch.zeros(2, 1, 3))
        cache.forget()
        seen.add(cache._buffers.untyped_storage().nbytes())
    assert max(seen) <= 2 * 2 * (2 * 513) * 3 * 4
    assert cache.keys[0, :, 0].tolist() == list(range(5000 - 512, 5000))


def test_nbytes_counts_what_is_allocated(tiny: Checkpoint) -> None:
    reference = Reference(tiny)
    cache = reference.new_cache()
    assert cache.nbytes() == 0
    reference.forward(IDS, cache)
    assert cache.nbytes() == sum(layer._buffers.untyped_storage().nbytes() for layer in cache.layers)
    assert cache.nbytes() >= 3 * 2 * 2 * 40 * 32 * 4
