"""Hostile runs of `tt`: whatever may differ without a chain being allowed to, drawn at random from a seed.

A draw is a queue schedule, 1 to 3 slots above what a token pins, a memo budget below, nearly at, at or above the working set
(a memo for every slot), an arm, 1 to 8 users and a prompt for each, on a tiny random checkpoint; of several users each idles
in about a quarter of the steps. Everyone's ids and logits must be, bit for bit, those of a decoder with room for everything
that has nobody else; then another checkpoint, loaded at the same device addresses, must give its own. Where the budget holds
the working set, a memo must be hit wherever its slot is; where it does not, memos must be evicted; and where one a layer is
missing, some must be hit too: a cache that never hits proves nothing, nor does one that never lets go. Exit code 1 if any draw
says otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from tables import print_table

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.synthetic import write_synthetic
from tt_impl.arms import ARMS
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice, schedule_named
from tt_impl.device.sim.memory import SimTensor
from tt_impl.experts.layout import CheckpointExperts, ExpertLayout
from tt_impl.settings import MAX_USERS, DecoderSettings

GENERATED = 8
IDLE = 0.25
PROMPTS = ((5, 17, 80, 3, 3, 41), (66, 90, 12, 7, 7, 59), (33, 28, 71, 2, 94, 50))
SCHEDULES = ("lazy", "eager", "random:{seed}", "reuse")

Room = Literal["below", "nearly", "at", "above"]
ROOMS: tuple[Room, ...] = ("below", "nearly", "at", "above")


@dataclass(frozen=True)
class Draw:
    """What one seed stands for, the same on every machine."""

    seed: int
    schedule: str
    slots_above: int
    room: Room
    arm: str
    prompt: tuple[int, ...]
    users: int

    @classmethod
    def of(cls, seed: int) -> Draw:
        rng = np.random.default_rng(seed)
        schedule, above, room, prompt = (int(rng.integers(n)) for n in (len(SCHEDULES), 3, len(ROOMS), len(PROMPTS)))
        arm = list(ARMS)[rng.integers(len(ARMS))]
        users = 1 + int(rng.integers(MAX_USERS))
        return cls(seed, SCHEDULES[schedule].format(seed=seed), 1 + above, ROOMS[room], arm, PROMPTS[prompt], users)

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Of each user: the first's, turned."""
        return [self.prompt[turn % len(self.prompt) :] + self.prompt[: turn % len(self.prompt)] for turn in range(self.users)]

    def settings(self, config: Kolibri1Config) -> DecoderSettings:
        settings = ARMS[self.arm].settings(config)
        slots = min(config.num_experts_per_tok + self.slots_above, config.num_experts)
        all_slots = slots * config.num_hidden_layers
        nearly = all_slots - config.num_hidden_layers
        memos = {"below": config.num_experts_per_tok - 1, "nearly": nearly, "at": all_slots, "above": 2 * all_slots}[self.room]
        return replace(
            settings,
            slots_per_layer=slots,
            memo_bytes=memos * ExpertLayout.of(config).memo_bytes(settings.activation),
            users=self.users,
        )


@dataclass
class Outcome:
    """A draw's counters, and what was wrong with it."""

    draw: Draw
    stats: dict[str, int]
    wrong: list[str] = field(default_factory=list)


class Reloadable(SimDevice):
    """A device that can be emptied and loaded anew."""

    def __init__(self, schedule: str) -> None:
        super().__init__(schedule=schedule_named(schedule))
        self.tensors: list[SimTensor] = []

    def allocate_tensor_on_device(self, shape: Sequence[int], dtype: DType, layout: Layout, label: str) -> SimTensor:
        tensor = super().allocate_tensor_on_device(shape, dtype, layout, label)
        self.tensors.append(tensor)
        return tensor

    def unload(self) -> dict[int, str]:
        """Free everything; returns what stood at which address when it was loaded."""
        standing = {tensor.buffer.address: tensor.label for tensor in self.tensors if tensor.is_allocated}
        for tensor in self.tensors:
            if tensor.is_allocated:
                self.deallocate(tensor)
        self.tensors.clear()
        return standing


def hostile_run(draw: Draw, first: Checkpoint, second: Checkpoint) -> Outcome:
    """One draw over `first`, then over `second`, of the same shapes, on the same device."""
    device = Reloadable(draw.schedule)
    settings = draw.settings(first.config)
    decoder = Decoder(device, first.config, first, CheckpointExperts(first), settings)
    found = walk(decoder, draw)
    outcome = Outcome(draw, dict(decoder.stats()))
    base = ARMS[draw.arm].base
    if found != [roomy(first, base, prompt) for prompt in draw.prompts]:
        outcome.wrong.append("ids or logits differ")
    outcome.wrong.extend(_counters(draw, outcome.stats))
    before = device.unload()
    reloaded = Decoder(device, second.config, second, CheckpointExperts(second), settings)
    again = walk(reloaded, draw)
    if again != [roomy(second, base, prompt) for prompt in draw.prompts]:
        outcome.wrong.append("ids or logits of the checkpoint loaded after it differ")
    if again == found:
        outcome.wrong.append("the other checkpoint gave the same logits")
    if not before.keys() & device.unload().keys():
        outcome.wrong.append("the other checkpoint did not get the same addresses")
    return outcome


@dataclass
class Walk:
    """One user's way through its prompt, then greedy: all ids and all logits so far, and the next id."""

    prompt: tuple[int, ...]
    token: int
    steps: int = 0
    shown: bytes = b""

    @property
    def done(self) -> bool:
        return self.steps == len(self.prompt) + GENERATED

    def take(self, logits: np.ndarray) -> None:
        self.shown += self.token.to_bytes(4, "little") + logits.tobytes()
        self.steps += 1
        self.token = self.prompt[self.steps] if self.steps < len(self.prompt) else int(logits.argmax())


def walk(decoder: Decoder, draw: Draw) -> list[bytes]:
    """What each user of a draw shows, to the end; who idles when follows from the seed."""
    walks = [Walk(prompt, prompt[0]) for prompt in draw.prompts]
    rng = np.random.default_rng(draw.seed)
    while not all(walk.done for walk in walks):
        idle = rng.random(draw.users) < IDLE if draw.users > 1 else np.zeros(1, bool)
        tokens = [None if walk.done or idles else walk.token for walk, idles in zip(walks, idle, strict=True)]
        if tokens.count(None) == len(tokens):
            continue
        for user, evidence in enumerate(decoder.step_users(tokens)):
            if evidence is not None:
                walks[user].take(evidence.logits)
    return [walk.shown for walk in walks]


@cache
def roomy(checkpoint: Checkpoint, base: str, prompt: tuple[int, ...]) -> bytes:
    """What one user shows, from a decoder of `base` with a slot and a memo for every expert."""
    config = checkpoint.config
    settings = ARMS[base].settings(config)
    memos = config.num_experts * config.num_hidden_layers * ExpertLayout.of(config).memo_bytes(settings.activation)
    settings = replace(settings, slots_per_layer=config.num_experts, memo_bytes=memos)
    decoder, walked = Decoder(SimDevice(), config, checkpoint, CheckpointExperts(checkpoint), settings), Walk(prompt, prompt[0])
    while not walked.done:
        walked.take(decoder.step(walked.token).logits)
    return walked.shown


def _counters(draw: Draw, stats: dict[str, int]) -> list[str]:
    """What is wrong with a draw's counters."""
    asked = {
        "all users decoded": stats["steps"] + stats["companion_steps"] == draw.users * (len(draw.prompt) + GENERATED),
        "experts swapped": stats["slot_swaps"] > 0,
        "the epoch moved": stats["epoch_resets"] > 0,
        "waits are the device's": stats["round_trips"] == stats["device.round_trips"],
        "bytes are the device's": all(stats[n] == stats[f"device.{n}"] for n in ("bytes_written", "bytes_read")),
        "memory is memos, traces and nothing more": (
            stats["memory_after"] - stats["memory_before"] == stats["memo_bytes"] + stats["trace_bytes"]
        ),
    }
    if draw.room in ("below", "nearly"):
        asked["memos evicted"] = stats["memo_evictions"] > 0
        asked["memos hit"] = stats["memo_hits"] > 0 or draw.room == "below"
    else:
        asked["memos hit where slots were"] = stats["memo_hits"] == stats["slot_hits"] > 0
    return [f"not so: {what}" for what, so in asked.items() if not so]


def two_checkpoints(folder: Path) -> tuple[Checkpoint, Checkpoint]:
    """Tiny ones of the same shapes, and every byte another."""
    first, second = (Checkpoint.open(write_synthetic(folder / f"tiny{seed}", seed=seed)) for seed in (3, 4))
    return first, second


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("draws", type=int, nargs="?", default=200, help="how many; default 200")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed; default 0")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = two_checkpoints(Path(folder))
        seeds = range(arguments.first, arguments.first + arguments.draws)
        outcomes = [hostile_run(Draw.of(seed), *checkpoints) for seed in seeds]
    totals: dict[str, Counter[str]] = {room: Counter() for room in ROOMS}
    for outcome in outcomes:
        totals[outcome.draw.room].update({**outcome.stats, "draws": 1, "wrong": bool(outcome.wrong)})
    names = (
        "draws",
        "wrong",
        "steps",
        "companion_steps",
        "fills",
        "slot_swaps",
        "memo_hits",
        "memo_misses",
        "memo_evictions",
        "epoch_resets",
    )
    print_table(["memo budget", *names], [[room, *(f"{totals[room][n]:,}" for n in names)] for room in ROOMS])
    arms, schedules = ({getattr(o.draw, what) for o in outcomes} for what in ("arm", "schedule"))
    sizes = sorted({outcome.draw.users for outcome in outcomes})
    print(f"{len(arms)} of {len(ARMS)} arms, {len(schedules)} schedules, slots 1 to 3 above a token's, users {sizes}")
    for outcome in outcomes:
        for what in outcome.wrong:
            print(f"WRONG {outcome.draw}: {what}")
    return int(any(outcome.wrong for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
