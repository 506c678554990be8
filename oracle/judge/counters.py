"""Gate `counters`: are the subject's step statistics those of the device's own event log, and do they move where they must?

Compared exactly, over the whole session, counters added up and of levels the largest (`oracle.subjects.levels`): counters of
`stats()` with `device.NAME`, which the device counted itself; with each other; and with what the judge knows from the golden,
the checkpoint and the experts that the run shows. `RULES` is the list. A counter that a rule needs and the run does not state
is incomplete. Counters of prompts that ended early are not compared.

Rules are bookkeeping, so there is nothing to calibrate. A swap counter that read the table after its entry was gone stayed at
0 for weeks: here it must account for every expert that was filled and no longer has a slot. It cannot see a counter of the
device that is wrong itself, nor one that two faults move alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from oracle.judge.gate import Case, Finding, Judgement, not_held, shows
from oracle.judge.slots import PASSES
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, SCALE_SUFFIX, expert_weight
from oracle.subjects.run import PromptRun, Run

Counts = Mapping[str, int]


@dataclass(frozen=True)
class Known:
    """What the judge counts itself.

    Attributes:
        steps: of both passes over the answered prompts.
        layers: of the checkpoint.
        expert_bytes: one routed expert's fp8 bytes and grids.
        uses: experts used, by the ids that the run shows.
        distinct: (layer, expert) pairs used, counted once a prompt: slots are cold when a prompt begins.
    """

    steps: int
    layers: int
    expert_bytes: int
    uses: int
    distinct: int


@dataclass(frozen=True)
class Rule:
    """What must hold of the counters named.

    Attributes:
        says: the rule in words; part of the gate's definition.
        needs: the counters.
        holds: of them and what the judge knows.
        or_zero: counters of the device that it looks at too, 0 where the run does not state them: ops that never ran.
    """

    says: str
    needs: tuple[str, ...]
    holds: Callable[[Counts, Known], bool]
    or_zero: tuple[str, ...] = ()


def _same(first: str, second: str) -> Rule:
    return Rule(f"{first} = {second}", (first, second), lambda c, _: c[first] == c[second])


def _same_if_ever(own: str, device: str) -> Rule:
    """As `_same`; a device that never came to it does not state it."""
    return Rule(f"{own} = {device}", (own,), lambda c, _: c[own] == c[device], or_zero=(device,))


def _moves(name: str) -> Rule:
    return Rule(f"{name} > 0", (name,), lambda c, _: c[name] > 0)


RULES: tuple[Rule, ...] = (
    Rule("steps are two for every position", ("steps",), lambda c, k: c["steps"] == k.steps),
    Rule("a judged sequence has no companions", ("companion_steps",), lambda c, _: c["companion_steps"] == 0),
    Rule("expert_uses are those of the ids shown", ("expert_uses",), lambda c, k: c["expert_uses"] == k.uses),
    _same("round_trips", "device.round_trips"),
    _same("drains", "device.synchronizes"),
    _same("bytes_written", "device.bytes_written"),
    _same("bytes_read", "device.bytes_read"),
    _same("fills", "slot_misses"),
    Rule(
        "one router read a layer and one of logits a step, rereads and bias reads are the device's blocking reads",
        ("steps", "rereads", "bias_reads", "device.blocking_reads"),
        lambda c, k: (k.layers + 1) * c["steps"] + c["rereads"] + c["bias_reads"] == c["device.blocking_reads"],
    ),
    _same_if_ever("device_topks", "device.op.topk"),
    Rule(
        "the device chooses the experts of every layer and step, or of none",
        ("device_topks", "steps"),
        lambda c, k: c["device_topks"] in (0, k.layers * c["steps"]),
    ),
    _same_if_ever("captures", "device.traces_captured"),
    _same_if_ever("replays", "device.traces_executed"),
    Rule(
        "what is captured is replayed, and nothing else",
        ("captures", "replays"),
        lambda c, _: c["replays"] >= c["captures"] and (c["replays"] == 0) == (c["captures"] == 0),
    ),
    Rule(
        "slot hits and misses are the uses",
        ("slot_hits", "slot_misses", "expert_uses"),
        lambda c, _: c["slot_hits"] + c["slot_misses"] == c["expert_uses"],
    ),
    Rule(
        "memo hits and misses are the uses",
        ("memo_hits", "memo_misses", "expert_uses"),
        lambda c, _: c["memo_hits"] + c["memo_misses"] == c["expert_uses"],
    ),
    Rule(
        "staged_bytes are an expert's for every fill",
        ("fills", "staged_bytes"),
        lambda c, k: c["staged_bytes"] == c["fills"] * k.expert_bytes,
    ),
    Rule(
        "verified_bytes are an expert's for every fill that is not trusted",
        ("fills", "trusted_fills", "verified_bytes"),
        lambda c, k: c["verified_bytes"] == (c["fills"] - c["trusted_fills"]) * k.expert_bytes,
    ),
    Rule(
        "every expert used was verified once: trusted_fills are none of the first ones",
        ("fills", "trusted_fills"),
        lambda c, k: 0 <= c["trusted_fills"] <= c["fills"] - k.distinct,
    ),
    Rule(
        "each drain is behind a fill of its own, which it verifies, or none is",
        ("drains", "single_drains", "fills", "trusted_fills"),
        lambda c, _: c["single_drains"] == 0 or c["single_drains"] == c["drains"] == c["fills"] - c["trusted_fills"],
    ),
    Rule(
        "early and on-demand drains are among the drains",
        ("drains", "early_drains", "on_demand_drains"),
        lambda c, _: 0 <= c["early_drains"] + c["on_demand_drains"] <= c["drains"],
    ),
    Rule("fills are at least the experts used", ("fills",), lambda c, k: c["fills"] >= k.distinct),
    Rule(
        "slot_swaps account for every fill beyond the experts used",
        ("fills", "slot_swaps"),
        lambda c, k: 0 < c["fills"] - c["slot_swaps"] <= k.distinct,
    ),
    Rule(
        "the policy lru names every expert that is evicted, or none",
        ("slot_swaps", "lru_swaps"),
        lambda c, _: c["lru_swaps"] in (0, c["slot_swaps"]),
    ),
    Rule(
        "memos made are not fewer than those dropped",
        ("memo_misses", "memo_evictions", "memo_releases"),
        lambda c, _: c["memo_misses"] >= c["memo_evictions"] + c["memo_releases"],
    ),
    Rule(
        "device memory grows by the memos held, what traces hold, and nothing else",
        ("memory_before", "memory_after", "memo_bytes", "trace_bytes"),
        lambda c, _: c["memory_after"] - c["memory_before"] - c["trace_bytes"] == c["memo_bytes"] > 0,
    ),
    Rule("nor did it after any step", ("memory_leaked",), lambda c, _: c["memory_leaked"] == 0),
    Rule(
        "memos are never held beyond their peak",
        ("memo_bytes", "memo_bytes_peak"),
        lambda c, _: c["memo_bytes"] <= c["memo_bytes_peak"],
    ),
    Rule(
        "slots' content changed, so the epoch was reset",
        ("epoch_resets", "slot_swaps"),
        lambda c, _: c["epoch_resets"] > 0 or c["slot_swaps"] == 0,
    ),
    *(_moves(name) for name in ("drains", "round_trips", "memo_hits", "memo_misses", "device.ops")),
)


class CountersGate:
    name = "counters"
    definition = {"version": 2, "metric": "counters", "statistic": "rules", "rules": tuple(rule.says for rule in RULES)}
    blind_to = "a counter of the device that is wrong itself, and two counters that one fault moves alike"
    needs_alignment = False

    def holds(self, run: Run) -> bool:
        return any(name.startswith("device.") for name in run.stats) and shows(run, "expert_ids")

    def judge(self, case: Case) -> Judgement:
        if not self.holds(case.run):
            return not_held("counters of the device beside the subject's, or does not show which experts it used")
        if case.run.faults:
            return Judgement(0, (Finding("prompts ended in faults, so counters are of parts of them", verdict="incomplete"),))
        counts, known = case.run.stats, known_of(case)
        findings, compared = [], 0
        for rule in RULES:
            if missing := [name for name in rule.needs if name not in counts]:
                what = ", ".join(missing)
                findings.append(Finding(f"the subject does not count {what}", allowed=rule.says, verdict="incomplete"))
                continue
            compared += 1
            seen = {**dict.fromkeys(rule.or_zero, 0), **counts}
            if not rule.holds(seen, known):
                worst = ", ".join(f"{name} {seen[name]}" for name in (*rule.needs, *rule.or_zero))
                findings.append(Finding("counters contradict the device or each other", worst=worst, allowed=rule.says))
        return Judgement(compared, tuple(findings), {name: counts[name] for name in sorted(counts)})

    def honest(self, case: Case) -> Case:
        """The perfect subject has no device; its run with counters of a small one that obeys every rule."""
        known = known_of(case)
        fills = known.distinct + 1
        counts = {
            "steps": known.steps,
            "companion_steps": 0,
            "expert_uses": known.uses,
            "fills": fills,
            "slot_misses": fills,
            "slot_hits": known.uses - fills,
            "slot_swaps": 2,
            "lru_swaps": 0,
            "memo_misses": 5,
            "memo_hits": known.uses - 5,
            "memo_evictions": 1,
            "memo_releases": 1,
            "memo_bytes": 3,
            "memo_bytes_peak": 3,
            "memory_before": 10,
            "memory_after": 18,
            "memory_leaked": 0,
            "staged_bytes": fills * known.expert_bytes,
            "verified_bytes": fills * known.expert_bytes,
            "trusted_fills": 0,
            "early_drains": 0,
            "single_drains": 0,
            "on_demand_drains": 0,
            "epoch_resets": 1,
            "rereads": 1,
            "bias_reads": 1,
            "device_topks": 0,
            "captures": 1,
            "replays": 2,
            "trace_bytes": 5,
            "device.traces_captured": 1,
            "device.traces_executed": 2,
            "device.blocking_reads": (known.layers + 1) * known.steps + 2,
            "device.ops": 1,
        }
        for name, device in (("drains", "synchronizes"), ("round_trips", "round_trips")):
            counts |= {name: 3, f"device.{device}": 3}
        for name in ("bytes_written", "bytes_read"):
            counts |= {name: 4, f"device.{name}": 4}
        return case.with_run(stats=counts)

    def plants(self, case: Case) -> dict[str, Case]:
        """Each rule broken, by the counter that it is about."""
        counts, known = case.run.stats, known_of(case)

        def off(*changed: str, by: int = 1) -> Case:
            return case.with_run(stats={**counts, **{name: counts[name] + by for name in changed}})

        def at(**values: int) -> Case:
            return case.with_run(stats={**counts, **{name.replace("__", "."): value for name, value in values.items()}})

        return {
            "a step too many": off("steps"),
            "a companion in the steps": off("companion_steps"),
            "a use too many": off("expert_uses"),
            "a round trip not counted": off("device.round_trips"),
            "a drain not counted": off("device.synchronizes"),
            "a byte written not counted": off("device.bytes_written"),
            "a byte read not counted": off("device.bytes_read"),
            "a fill not counted": off("slot_misses"),
            "a blocking read not counted": off("device.blocking_reads"),
            "a choice of the device not counted": at(device__op__topk=counts["device_topks"] + 1),
            "a choice of the device in one layer alone": at(device_topks=1, device__op__topk=1),
            "a capture not counted": at(
                captures=counts["captures"] + 1, replays=counts["replays"] + 1, device__traces_executed=counts["replays"] + 1
            ),
            "a replay not counted": at(captures=1, device__traces_captured=1, replays=2, device__traces_executed=3),
            "a capture never replayed": at(captures=1, device__traces_captured=1, replays=0, device__traces_executed=0),
            "a trace that holds more": off("trace_bytes"),
            "slot hits lost": off("slot_hits", by=-1),
            "memo hits lost": off("memo_hits", by=-1),
            "a staged byte too many": off("staged_bytes"),
            "a fill verified in part": off("verified_bytes", by=-1),
            "an expert never verified": at(
                trusted_fills=counts["fills"] - known.distinct + 1, verified_bytes=(known.distinct - 1) * known.expert_bytes
            ),
            "drains behind a fill and others": at(single_drains=1),
            "one drain for many fills called single": at(single_drains=counts["drains"]),
            "a swap of the policy lru among others": at(lru_swaps=1),
            "more verified than staged": at(verified_bytes=counts["staged_bytes"] + 1),
            "more early drains than drains": at(early_drains=counts["drains"] + 1),
            "fewer fills than experts": at(
                fills=known.distinct - 1,
                slot_misses=known.distinct - 1,
                slot_hits=known.uses - known.distinct + 1,
                staged_bytes=(known.distinct - 1) * known.expert_bytes,
            ),
            "swaps never counted": at(slot_swaps=0),
            "every fill swapped": at(slot_swaps=counts["fills"]),
            "more memos dropped than made": at(memo_releases=counts["memo_misses"]),
            "device memory that grows": off("memory_after"),
            "device memory that grew in between": at(memory_leaked=32),
            "memos that hold nothing": at(memory_after=counts["memory_before"] + counts["trace_bytes"], memo_bytes=0),
            "memos held beyond their peak": at(memo_bytes_peak=counts["memo_bytes"] - 1),
            "an epoch never reset": at(epoch_resets=0),
            "drains at 0": at(drains=0, device__synchronizes=0),
            "round trips at 0": at(round_trips=0, device__round_trips=0),
            "memos never hit": at(memo_hits=0, memo_misses=known.uses),
            "memos never missed": at(memo_hits=known.uses, memo_misses=0, memo_evictions=0, memo_releases=0),
            "no op ran": at(device__ops=0),
        }


def known_of(case: Case) -> Known:
    """What the judge counts itself in the run and its checkpoint."""
    config = case.checkpoint.config
    runs = [run for _, run in case.answered()]
    used = [ids for run in runs for ids in (run.expert_ids, run.free_expert_ids) if ids is not None]
    names = [expert_weight(0, 0, projection) for projection in EXPERT_PROJECTIONS]
    return Known(
        steps=PASSES * sum(len(prompt.fed) for prompt, _ in case.answered()),
        layers=config.num_hidden_layers,
        expert_bytes=sum(case.checkpoint.raw(part).nbytes for name in names for part in (name, name + SCALE_SUFFIX)),
        uses=sum(ids.size for ids in used),
        distinct=sum(_distinct(run, config.num_experts) for run in runs),
    )


def _distinct(run: PromptRun, experts: int) -> int:
    """(layer, expert) pairs that a prompt used in either pass."""
    shown = [ids for ids in (run.expert_ids, run.free_expert_ids) if ids is not None]
    if not shown:
        return 0
    ids = np.concatenate(shown)
    return len(np.unique(ids + experts * np.arange(ids.shape[1])[:, None]))
