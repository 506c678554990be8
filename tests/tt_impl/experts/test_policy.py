"""Each policy against a naive model that works everything out anew from the whole history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tt_impl.experts.epoch import content_fingerprint
from tt_impl.experts.policy import HOTNESS_DECAY, POLICIES, Hotness, LeastRecentlyUsed
from tt_impl.experts.slots import SlotTable

LAYER = 2
History = Sequence[Sequence[int]]
Model = Callable[[History, int], float]


def heat(history: History, expert: int) -> float:
    """What is left of an expert's touches, by the recurrence, from the first call on."""
    value = 0.0
    for asked in history:
        value = value * HOTNESS_DECAY + (expert in asked)
    return value


def last_touch(history: History, expert: int) -> float:
    flat = [asked for call in history for asked in call]
    return max((at for at, asked in enumerate(flat) if asked == expert), default=-1)


MODELS: Mapping[str, Model] = {"hotness": heat, "lru": last_touch}

experts = st.integers(0, 8)


class PolicyMachine(RuleBasedStateMachine):
    """A table beside lists: `slots` of (expert, generation), and the history of all touches."""

    name: str

    @initialize(capacity=st.integers(3, 5))
    def open(self, capacity: int) -> None:
        self.evicted: list[tuple[int, int, int]] = []
        self.table = SlotTable(LAYER, capacity, POLICIES[self.name](), lambda *args: self.evicted.append(args))
        self.slots: list[tuple[int | None, int]] = [(None, 0)] * capacity
        self.history: list[list[int]] = []
        self.needed: set[int] = set()
        self.seen: dict[frozenset, int] = {}

    @rule(asked=st.lists(experts, min_size=1, max_size=3))
    def step(self, asked: list[int]) -> None:
        self.needed = set()
        self.table.release()
        self.ask(asked)

    @rule(expert=experts)
    def on_demand(self, expert: int) -> None:
        if len(self.needed | {expert}) <= len(self.slots):
            self.ask([expert])

    def ask(self, asked: list[int]) -> None:
        wanted = list(dict.fromkeys(asked))
        self.needed |= set(wanted)
        self.history.append(wanted)
        fetches, gone = [], []
        for expert in wanted:
            if expert in [held for held, _ in self.slots]:
                continue
            free = [at for at, (held, _) in enumerate(self.slots) if held is None]
            idle = [at for at, (held, _) in enumerate(self.slots) if held is not None and held not in self.needed]
            at = free[0] if free else min(idle, key=self.value)
            held, generation = self.slots[at]
            if held is not None:
                gone.append((LAYER, held, at))
            self.slots[at] = (expert, generation + 1)
            fetches.append((expert, at))
        self.evicted.clear()
        assert [(fetch.expert, fetch.slot) for fetch in self.table.touch(asked)] == fetches
        assert self.evicted == gone
        for expert, at in fetches:
            self.table.stage(at, expert)
            self.table.verify(at)
        for expert in asked:
            held = self.table.use(expert)
            assert (held.expert, held.generation) == self.slots[held.index]

    def value(self, at: int) -> tuple[float, int]:
        expert = self.slots[at][0]
        assert expert is not None
        return MODELS[self.name](self.history, expert), at

    @invariant()
    def the_fingerprint_tells_contents_apart(self) -> None:
        if not hasattr(self, "table"):
            return
        content = frozenset((at, held, generation) for at, (held, generation) in enumerate(self.slots) if held is not None)
        other = SlotTable(LAYER + 1, 1, LeastRecentlyUsed(), lambda *_: None)
        other.touch([4])
        other.stage(0, 4)
        found = content_fingerprint([self.table, other])
        assert found == content_fingerprint([other, self.table]) == self.seen.setdefault(content, found)
        assert len(set(self.seen.values())) == len(self.seen)
        assert content_fingerprint([self.table]) != found


class HotnessMachine(PolicyMachine):
    name = "hotness"


class LeastRecentlyUsedMachine(PolicyMachine):
    name = "lru"


_BOUNDED = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestHotness = HotnessMachine.TestCase
TestLeastRecentlyUsed = LeastRecentlyUsedMachine.TestCase
TestHotness.settings = TestLeastRecentlyUsed.settings = _BOUNDED


def test_each_policy_has_a_model() -> None:
    assert set(MODELS) == set(POLICIES)


def test_of_equally_hot_experts_the_lowest_slot_goes() -> None:
    policy = Hotness()
    policy.touch([7, 3, 5])
    assert policy.victim({2: 7, 0: 5, 1: 3}) == 0


def test_an_older_touch_counts_less_and_many_count_more_than_a_recent_one() -> None:
    policy = Hotness()
    for asked in ([1], [1], [2], [3]):
        policy.touch(asked)
    assert policy.victim({0: 1, 1: 2, 2: 3}) == 1
    for _ in range(12):
        policy.touch([3])
    assert policy.victim({0: 1, 2: 3}) == 0


def test_an_expert_keeps_its_heat_while_it_is_out() -> None:
    policy = Hotness()
    for asked in ([1], [1], [1], [2], [2], [1]):
        policy.touch(asked)
    assert policy.victim({0: 1, 1: 2}) == 1
