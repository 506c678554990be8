"""Arms: their names, that a lever moves nothing but transfers and caching, and that each shows that it took effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from oracle.errors import SubjectError
from oracle.judge.slot_audit import SlotAuditor
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import ParsesArms, StepEvidence, SubjectRequest
from oracle.subjects.registry import canonical_arm, check_request
from oracle.subjects.repeats import StatesEffects, effects_of
from tt_impl.arms import ARMS, BASES, LEVERS, Arm, choice_of, parse_arm
from tt_impl.decode import Decoder
from tt_impl.device.sim import SimDevice
from tt_impl.experts.layout import CheckpointExperts, ExpertLayout
from tt_impl.settings import default_settings
from tt_impl.subject import FACTORY

TOKENS = (5, 17, 80, 3, 3, 41, 66, 90, 12, 7, 7, 59)
Open = Callable[..., Decoder]
SINGLES = [name for name, arm in ARMS.items() if len(arm.levers) == 1]
PAIRS = [name for name, arm in ARMS.items() if len(arm.levers) == 2]


def test_the_arms_are_every_base_alone_with_every_lever_and_with_every_pair() -> None:
    assert list(ARMS)[:2] == ["bf16", "bf16,drain=fill"]
    assert list(BASES) == ["bf16", "exact"]
    others = [len(lever.others) for lever in LEVERS]
    pairs = sum(a * b for at, a in enumerate(others) for b in others[at + 1 :])
    assert len(ARMS) == 2 * (1 + sum(others) + pairs) == 74
    assert {name: ARMS[name].numeric_class for name in ARMS} == FACTORY.arms
    assert all(parse_arm(name) == arm for name, arm in ARMS.items())


def test_a_name_means_the_same_in_any_order_and_with_defaults_said() -> None:
    for words in permutations(["exact", "drain=fill", "policy=lru", "bias=cached"]):
        assert parse_arm(", ".join(words)).name == "exact,drain=fill,policy=lru"
    assert canonical_arm("tt", "dequant=reread,bf16") == "bf16,dequant=reread"
    assert canonical_arm("tt", None) is None
    assert canonical_arm("perfect", "fp32") == "fp32"
    assert isinstance(FACTORY, ParsesArms)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fast", "its base is 'fast'"),
        ("", "its base is ''"),
        ("drain=fill", "its base is missing"),
        ("bf16,exact", "its base is 'bf16' and 'exact'"),
        ("bf16,drian=fill", "there is no lever 'drian'"),
        ("bf16,drain=never", "lever 'drain' has no value 'never'"),
        ("bf16,drain=fill,drain=layer", "lever 'drain' is set twice"),
        ("bf16,drain=fill,bias=fetched,policy=lru", "it has 3 levers off their default"),
    ],
)
def test_what_is_no_arm_is_refused_in_one_line_that_lists_what_there_is(name: str, why: str) -> None:
    with pytest.raises(SubjectError) as caught:
        parse_arm(name)
    listing = "; an arm is bf16 or exact, then up to 2 of " + ", ".join(
        f"{lever.name}={'|'.join([lever.default.value, *(c.value for c in lever.others)])}" for lever in LEVERS
    )
    assert str(caught.value) == f"subject tt has no arm {name!r}: {why}{listing}"


def test_the_subject_opens_an_arm_by_any_spelling_and_says_its_canonical_name(tiny_folder) -> None:
    subject = FACTORY.open(SubjectRequest(tiny_folder, arm="policy=lru,exact,drain=fill"))
    assert (subject.identity.arm, subject.identity.numeric_class) == ("exact,drain=fill,policy=lru", "fp32")
    check_request("tt", FACTORY, SubjectRequest(tiny_folder, arm=subject.identity.arm))


def test_a_lever_is_a_setting_whose_default_comes_first(tiny: Checkpoint) -> None:
    settings = default_settings(tiny.config, BASES["bf16"][0])
    for lever in LEVERS:
        assert getattr(settings, lever.name) == lever.default.value
        for choice in lever.others:
            assert getattr(Arm("bf16", ((lever.name, choice.value),)).settings(tiny.config), lever.name) == choice.value
            assert choice.changes
            assert choice.moves
            assert choice.shows


def test_the_page_describes_every_lever_in_its_own_words() -> None:
    page = (Path(__file__).parents[2] / "docs/arms.md").read_text("utf-8")
    for lever in LEVERS:
        for choice in lever.others:
            default = f"`{lever.default.value}`: {lever.default.changes}"
            moves = ", ".join(f"`{name}`" for name in choice.moves)
            assert f"| `{lever.name}` | {default} | `{choice.value}` | {choice.changes} | {moves} | {choice.shows} |\n" in page
            idles = f"beside `{lever.name}={choice.value}` the lever `{choice.idles}` idles" if choice.idles else ""
            assert idles in page.replace("\n", " ")
            unseen = f"**`{lever.name}={choice.value}` no longer sees** {choice.unseen}." if choice.unseen else ""
            assert unseen in page.replace("\n", " ")
    assert all(f"| `{name}` " in page for name in (*SINGLES[: len(SINGLES) // 2], "bf16", "exact"))


@dataclass(frozen=True)
class Walked:
    evidence: bytes
    stats: Mapping[str, int]


def evidence_bytes(step: StepEvidence) -> bytes:
    return b"".join(np.asarray(getattr(step, field.name)).tobytes() for field in fields(step) if field.name != "sketch")


@pytest.fixture(scope="module")
def walk(tiny: Checkpoint) -> Callable[[str], Walked]:
    """An arm over a dozen tokens, with 4 slots for a step's 3 experts and 10 memos for 12 slots: both churn, and both hit."""

    @cache
    def run(name: str) -> Walked:
        settings = ARMS[name].settings(tiny.config)
        memos = 10 * ExpertLayout.of(tiny.config).memo_bytes(settings.activation)
        settings = replace(settings, slots_per_layer=4, memo_bytes=memos)
        decoder = Decoder(SimDevice(), tiny.config, tiny, CheckpointExperts(tiny), settings)
        evidence = b"".join(evidence_bytes(decoder.step(token)) for token in TOKENS)
        return Walked(evidence, decoder.stats())

    return run


def took_effect(base: Walked, arm: Walked, lever: str, value: str, layers: int) -> bool:
    """Whether the arm's counters show the lever: its `Choice.moves`, and its `Choice.shows` in numbers."""
    before, after = (Counter(walked.stats) for walked in (base, arm))
    moved = {name: after[name] > 0 for name in choice_of(lever, value).moves}
    assert len(set(moved.values())) == 1, "all of them, or none"
    shown = {
        "drain=fill": after["drains"] * EXPERT == after["verified_bytes"],
        "dequant=reread": after["rereads"] == after["memo_misses"] > 0,
        "verify=first": 0 < after["verified_bytes"] < after["staged_bytes"],
        "bias=fetched": after["bias_reads"] == after["steps"] * layers > 0,
        "policy=lru": after["fills"] != before["fills"] and after["slot_swaps"] != before["slot_swaps"],
        "topk=device": after["device_topks"] == after["device.op.topk"] == after["steps"] * layers > 0,
        "block=16": after["kv_bytes"] > before["kv_bytes"] > 0,
        "dispatch=captured": after["replays"] == (layers + 1) * (after["steps"] - 1) > after["captures"] == layers + 1,
    }[f"{lever}={value}"]
    assert shown == all(moved.values()), (lever, moved)
    return shown


EXPERT = 3 * (64 * 64 + 2 * 2 * 4)


def agrees_with_the_device(stats: Mapping[str, int], layers: int) -> bool:
    """Every counter that the device counts too, and those that follow from others, in any arm."""
    own = stats["steps"] * (layers + 1)
    return (
        stats["drains"] == stats.get("device.synchronizes", 0)
        and stats["round_trips"]
        == stats["device.round_trips"]
        == own + stats["drains"] + stats["rereads"] + stats["bias_reads"]
        and stats["device.blocking_reads"] == own + stats["rereads"] + stats["bias_reads"]
        and stats["bytes_written"] == stats["device.bytes_written"]
        and stats["bytes_read"] == stats["device.bytes_read"]
        and stats["memory_after"] - stats["memory_before"] - stats["trace_bytes"] == stats["memo_bytes"] > 0
        and stats["staged_bytes"] == stats["fills"] * EXPERT
        and stats["fills"] == stats["slot_misses"]
        and stats["verified_bytes"] == (stats["fills"] - stats["trusted_fills"]) * EXPERT
        and stats["single_drains"] in (0, stats["drains"])
        and stats["lru_swaps"] in (0, stats["slot_swaps"])
        and stats["device_topks"] == stats.get("device.op.topk", 0)
        and stats["captures"] == stats.get("device.traces_captured", 0)
        and stats["replays"] == stats.get("device.traces_executed", 0)
    )


def check_arm(walk: Callable[[str], Walked], name: str, layers: int) -> None:
    base, arm = walk(ARMS[name].base), walk(name)
    assert arm.evidence == base.evidence
    assert agrees_with_the_device(arm.stats, layers), arm.stats
    for lever, value in ARMS[name].levers:
        if lever in ARMS[name].idle:
            [other] = [word for word in ARMS[name].levers if word[0] != lever]
            assert arm.stats == walk(Arm(ARMS[name].base, (other,)).name).stats
        else:
            assert took_effect(base, arm, lever, value, layers), (lever, arm.stats)
        assert not took_effect(base, base, lever, value, layers), lever
    assert arm.stats["memo_hits"] > 0


@pytest.mark.parametrize("name", SINGLES)
def test_a_lever_changes_no_bit_of_the_evidence_and_shows_in_the_counters(walk, tiny: Checkpoint, name: str) -> None:
    check_arm(walk, name, tiny.config.num_hidden_layers)


@pytest.mark.parametrize("name", SINGLES)
def test_the_subject_says_which_counters_an_arm_moves_and_they_are_0_in_its_base(walk, name: str) -> None:
    assert isinstance(FACTORY, StatesEffects)
    base, named = ARMS[name].base, FACTORY.effects(name)
    assert FACTORY.effects(base) == ()
    assert effects_of(FACTORY, name, walk(base).stats) == tuple((counter, 0) for counter in named)
    moved = effects_of(FACTORY, name, walk(name).stats)
    assert moved
    assert all(value > 0 for _, value in moved)


def test_no_two_levers_move_the_same_counter_and_a_pair_moves_what_both_do_but_for_one_that_idles() -> None:
    moves = [name for lever in LEVERS for choice in lever.others for name in choice.moves]
    assert len(moves) == len(set(moves)) == 8
    assert FACTORY.effects("policy=lru,bf16,drain=fill") == ("single_drains", "lru_swaps")
    assert FACTORY.effects("exact,bias=fetched,topk=device") == ("device_topks",)


def test_a_bias_that_the_device_adds_is_not_fetched(walk, tiny: Checkpoint) -> None:
    assert {name: arm.idle for name, arm in ARMS.items() if arm.idle} == {
        f"{base},bias=fetched,topk=device": {"bias"} for base in BASES
    }
    check_arm(walk, "bf16,bias=fetched,topk=device", tiny.config.num_hidden_layers)
    assert walk("bf16,bias=fetched,topk=device").stats["bias_reads"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_of_levers_changes_no_bit_of_the_evidence_and_both_show_or_one_idles(walk, tiny: Checkpoint, name: str) -> None:
    check_arm(walk, name, tiny.config.num_hidden_layers)


def test_with_verify_first_the_judge_sees_each_use_that_nobody_verified(
    open_decoder: Open, tiny: Checkpoint, tokens: list[int]
) -> None:
    """The gate `slots` is red by design there: nobody may take a fill for compared that was not."""
    found = {}
    for verify in ("always", "first"):
        auditor = SlotAuditor(tiny)
        decoder = open_decoder(slots_per_layer=4, verify=verify, observer=auditor)
        for token in tokens[:12]:
            decoder.step(token)
        found[verify] = auditor.evidence(), decoder.stats()
    evidence, stats = found["always"]
    assert (evidence.violations, evidence.fills) == ((), stats["fills"])
    evidence, stats = found["first"]
    assert "used without any verified fill of that generation" in evidence.violations[0]
    assert evidence.fills * EXPERT == evidence.verified_bytes == stats["verified_bytes"] < stats["staged_bytes"]
    assert evidence.uses == stats["expert_uses"]
