"""The decoder's counters: what does not add up over prompts, memory that leaks, and that the page tells of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

import oracle.judge.session as session
from goldens import mini_checkpoint
from oracle.judge.counters import RULES
from oracle.judge.jobs import PromptJob, PromptOutcome
from oracle.judge.session import SessionOptions, record_session
from oracle.subjects.levels import StatesLevels, over_prompts
from oracle.subjects.protocol import SubjectIdentity
from tt_impl.decode import Decoder
from tt_impl.device.passing import Passing
from tt_impl.device.protocol import Device, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.device.sim.event_log import EventLog
from tt_impl.stats import LEVELS, StepStats
from tt_impl.subject import FACTORY

ROOT = Path(__file__).parents[2]
TILE_OF_EIGHT_BANKS = 8 * 32 * 32 * 4
"""One tile of float32: each bank of DRAM takes as much as the fullest."""


def test_counts_add_up_over_prompts_and_of_levels_the_largest_is_kept() -> None:
    prompts = [{"steps": 3, "peak": 70}, {"steps": 4, "peak": 50, "fills": 1}, {"peak": 60}]
    assert over_prompts(prompts, {"peak"}) == {"fills": 1, "peak": 70, "steps": 7}
    assert over_prompts([], {"peak"}) == {}


def test_the_subject_says_which_of_its_counters_are_levels() -> None:
    assert isinstance(FACTORY, StatesLevels)
    memory = {"trace_bytes", "kv_bytes", "small_blocks", "memory_before", "memory_after", "memory_leaked"}
    assert FACTORY.levels == LEVELS == {"memo_bytes", "memo_bytes_peak"} | memory


def test_a_session_adds_counters_up_and_keeps_the_largest_of_the_subject_s_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = mini_checkpoint()
    options = SessionOptions(folder, folder / "golden", prompts=("copying", "two-ids"), only="counters")

    def outcomes(jobs: Sequence[PromptJob], *_: Any) -> list[PromptOutcome]:
        identity = SubjectIdentity("tt", "bf16", "bf16", ())
        counted = [{"fills": at, "memo_bytes_peak": 100 - at, "device.writes": 1} for at, _ in enumerate(jobs)]
        return [PromptOutcome(job, identity, None, None, None, stats) for job, stats in zip(jobs, counted, strict=True)]

    monkeypatch.setattr(session, "run_jobs", outcomes)
    stats = record_session(options).run.stats
    first = 100 - stats["memo_bytes_peak"]
    assert stats == {"fills": first + first + 1, "memo_bytes_peak": 100 - first, "device.writes": 2}


def test_memory_is_what_the_device_says_before_the_first_step_and_after_the_last(
    open_decoder: Callable[..., Decoder], tokens: list[int]
) -> None:
    device = SimDevice()
    decoder = open_decoder(device=device)
    assert decoder.stats()["memory_before"] == device.get_memory_view().allocated_bytes > 0
    for token in tokens[:3]:
        decoder.step(token)
        assert decoder.stats()["memory_after"] == device.get_memory_view().allocated_bytes


class FreesLate(Passing):
    """Frees the first tensor called `expert_weights` when the second one is to be freed, or never."""

    def __init__(self, device: Device, *, never: bool) -> None:
        super().__init__(device)
        self._never = never
        self._seen: list[Tensor] = []

    def deallocate(self, tensor: Tensor) -> None:
        if tensor.label == "expert_weights":
            self._seen.append(tensor)
            if len(self._seen) == 1:
                return
            if len(self._seen) == 2 + LAYERS and not self._never:
                self._device.deallocate(self._seen[0])
        self._device.deallocate(tensor)


LAYERS = 3
"""Of the tiny checkpoint: the first tensor outlives its step, and is freed late in the second."""


@pytest.mark.parametrize(("never", "off_at_the_end"), [(True, TILE_OF_EIGHT_BANKS), (False, 0)])
def test_a_tensor_that_outlives_its_step_is_seen_also_if_it_is_freed_before_the_end(
    open_decoder: Callable[..., Decoder], tokens: list[int], never: bool, off_at_the_end: int
) -> None:
    decoder = open_decoder(device=FreesLate(cast(Device, SimDevice()), never=never))
    for token in tokens[:2]:
        decoder.step(token)
    stats = decoder.stats()
    assert stats["memory_after"] - stats["memory_before"] - stats["memo_bytes"] == off_at_the_end
    assert stats["memory_leaked"] == TILE_OF_EIGHT_BANKS
    broken = [rule.says for rule in RULES if "memory_leaked" in rule.needs and stats["memory_leaked"] != 0]
    assert broken == ["nor did it after any step"]


ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)


def counter_table() -> dict[str, tuple[str, str, str]]:
    """What moves each, what the device says of it, and the test that pins it, by the name of the counter."""
    page = (ROOT / "docs/arms.md").read_text("utf-8")
    table = page[page.index("| counter |") :].split("\n\n")[0]
    return {
        name: (moved, device, pin) for names, moved, device, pin in ROW.findall(table) for name in re.findall(r"\w+", names)
    }


def test_the_page_has_every_counter_once_in_their_order() -> None:
    assert list(counter_table()) == [field.name for field in fields(StepStats)]


def test_what_the_page_calls_the_devices_counters_are_such() -> None:
    known = set(re.findall(r"`([\w.]+)`", EventLog.__doc__ or "")) | {"op.topk", "get_memory_view"}
    named = {name for _, device, _ in counter_table().values() for name in re.findall(r"device's `([\w.]+)`", device)}
    assert named >= {"round_trips", "synchronizes", "bytes_read", "bytes_written", "op.topk", "blocking_reads"}
    assert named <= known


def test_the_page_names_for_each_counter_a_test_that_there_is_and_that_speaks_of_it() -> None:
    for name, (_, _, pins) in counter_table().items():
        found = re.findall(r"`(test_\w+)\.py::(test_\w+)`", pins)
        assert found, name
        for module, function in found:
            [file] = (ROOT / "tests/tt_impl").rglob(f"{module}.py")
            source = file.read_text("utf-8")
            assert f"def {function}(" in source, (name, function)
            assert name in source, (name, module)
