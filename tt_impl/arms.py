"""The arms of `tt`: a base, which fixes the arithmetic, and levers that only move transfers and caching.

So an arm's chains, logits, experts, residual streams and router logits are its base's, bit for bit; with `topk=device` where
the device keeps the rule of equal scores, which ttnn does not promise. With `verify=first` the judge is told of no verified
fill where there was none, and its gate `slots` is red by design: an arm to measure with. A lever that has no effect beside
another value (`Choice.idles`) makes a pair that is that other value alone.

A name is the base, then `lever=value` for each lever that is off its default, separated by commas: `bf16`,
`exact,drain=fill,dequant=reread`. To add a lever: a field of `DecoderSettings` of the same name, and an entry of `LEVERS`,
the default first, with a counter of its own that it moves. `ARMS` then holds it alone and beside every other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

from oracle.errors import SubjectError
from oracle.kolibri1.config import Kolibri1Config
from oracle.subjects.protocol import NumericClass
from tt_impl.device.protocol import DType
from tt_impl.settings import DecoderSettings, default_settings


@dataclass(frozen=True)
class Choice:
    """One value of a lever.

    Attributes:
        changes: what it does differently from the default.
        moves: names of counters of `stats()` that are above 0 if and only if it took effect; 0 with the default.
        shows: what else its counters tell, in words.
        unseen: what the decoder's own checks no longer see.
        idles: a lever that has no effect beside this value.
    """

    value: str
    changes: str
    moves: tuple[str, ...] = ()
    shows: str = ""
    unseen: str = ""
    idles: str = ""


@dataclass(frozen=True)
class Lever:
    """A setting and its values, the default first."""

    name: str
    default: Choice
    others: tuple[Choice, ...]


LEVERS: tuple[Lever, ...] = (
    Lever(
        "drain",
        Choice("layer", "one wait a layer settles and verifies all its fills"),
        (Choice("fill", "the host waits behind each fill and verifies it alone", ("single_drains",), "`drains` = `fills`"),),
    ),
    Lever(
        "dequant",
        Choice("shadow", "a missed memo is made from the slot's verified shadow"),
        (
            Choice(
                "reread",
                "a missed memo is made from the slot, for which the host reads it again and waits",
                ("rereads",),
                "`rereads` = `memo_misses`, and as many more `round_trips`",
            ),
        ),
    ),
    Lever(
        "verify",
        Choice("always", "every fill is read back and compared before use"),
        (
            Choice(
                "first",
                "only the first fill of each expert is read back and compared",
                ("trusted_fills",),
                "`verified_bytes` < `staged_bytes` once an expert returns",
                unseen="a later fill of an expert that lands wrong: it is used as it is",
            ),
        ),
    ),
    Lever(
        "bias",
        Choice("cached", "router biases are read when they are staged, and again only if the device's tensor changes"),
        (
            Choice(
                "fetched",
                "each layer of each step reads its bias from the device",
                ("bias_reads",),
                "`bias_reads` = `steps` x layers",
            ),
        ),
    ),
    Lever(
        "policy",
        Choice("hotness", "the expert with the least heat goes: touches, each later touch call counting them 15/16"),
        (
            Choice(
                "lru",
                "the least recently touched expert goes",
                ("lru_swaps",),
                "another sequence of evictions, so other `fills` and `slot_swaps`",
            ),
        ),
    ),
    Lever(
        "topk",
        Choice("host", "the host waits for all router logits and chooses a token's experts"),
        (
            Choice(
                "device",
                "the device adds the bias and chooses; the host waits for the ids and their logits alone",
                ("device_topks",),
                "`device_topks` = `steps` x layers",
                unseen=(
                    "a card that gives equal scores to another id than the lowest, nor a router logit that is no number, "
                    "unless it is selected: the card's choice stands"
                ),
                idles="bias",
            ),
        ),
    ),
    Lever(
        "block",
        Choice("32", "a KV block holds 32 positions"),
        (
            Choice(
                "16",
                "a KV block holds 16 positions, in a tile of 32 rows: more blocks, and nearly twice the memory",
                ("small_blocks",),
                "`kv_bytes` = the plan's of blocks of 16; no other lever moves it",
            ),
        ),
    ),
    Lever(
        "dispatch",
        Choice("eager", "each op of a step is enqueued anew"),
        (
            Choice(
                "captured",
                "what lies between two waits of the host is captured once a sequence, and each step replays it",
                ("replays",),
                "`replays` = (layers + 1) x `steps`, but for the very first step",
            ),
        ),
    ),
)

BASES: Mapping[str, tuple[DType, NumericClass]] = {"bf16": (DType.BFLOAT16, "bf16"), "exact": (DType.FLOAT32, "fp32")}
"""The default first: activation dtype, and the numeric class it is judged by."""

_PAIR = 2


@dataclass(frozen=True)
class Arm:
    """`levers` holds (name, value) of those off their default, in the order of `LEVERS`."""

    base: str
    levers: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return ",".join((self.base, *(f"{lever}={value}" for lever, value in self.levers)))

    @property
    def idle(self) -> frozenset[str]:
        """Levers off their default that have no effect beside another of this arm's values."""
        values = dict(self.levers)
        idled = {c.idles for lever in LEVERS for c in lever.others if values.get(lever.name) == c.value}
        return frozenset(idled & values.keys())

    @property
    def effects(self) -> tuple[str, ...]:
        """Counters that its levers move, but for those that idle."""
        return tuple(name for lever, value in self.levers if lever not in self.idle for name in choice_of(lever, value).moves)

    @property
    def numeric_class(self) -> NumericClass:
        return BASES[self.base][1]

    def settings(self, config: Kolibri1Config) -> DecoderSettings:
        return replace(default_settings(config, BASES[self.base][0]), **dict(self.levers))


def choice_of(lever: str, value: str) -> Choice:
    """What the table says of a lever's value, one that is not the default."""
    return next(c for known in LEVERS for c in known.others if (known.name, c.value) == (lever, value))


def parse_arm(name: str) -> Arm:
    """The arm that `name` means: base and levers in any order, levers at their default said or unsaid.

    Raises:
        SubjectError: not exactly one base, an unknown lever or value, a lever said twice, or more than two off default.
    """
    bases, said = [], {}
    for word in name.split(","):
        lever, equals, value = word.strip().partition("=")
        if not equals:
            bases.append(lever)
        elif lever in said:
            raise _refused(name, f"lever {lever!r} is set twice")
        else:
            said[lever] = value
    if len(bases) != 1 or bases[0] not in BASES:
        raise _refused(name, f"its base is {' and '.join(map(repr, bases)) or 'missing'}")
    for lever, value in said.items():
        if lever not in _VALUES:
            raise _refused(name, f"there is no lever {lever!r}")
        if value not in _VALUES[lever]:
            raise _refused(name, f"lever {lever!r} has no value {value!r}")
    arm = Arm(bases[0], tuple((lever.name, said[lever.name]) for lever in LEVERS if _is_set(lever, said)))
    if arm.name not in ARMS:
        raise _refused(name, f"it has {len(arm.levers)} levers off their default")
    return arm


def _is_set(lever: Lever, said: Mapping[str, str]) -> bool:
    return said.get(lever.name, lever.default.value) != lever.default.value


def _refused(name: str, why: str) -> SubjectError:
    levers = ", ".join(f"{lever}={'|'.join(values)}" for lever, values in _VALUES.items())
    return SubjectError(
        f"subject tt has no arm {name!r}: {why}; an arm is {' or '.join(BASES)}, then up to {_PAIR} of {levers}"
    )


def _enumerated() -> dict[str, Arm]:
    arms = []
    for base in BASES:
        for count in range(_PAIR + 1):
            for levers in combinations(LEVERS, count):
                for choices in product(*(lever.others for lever in levers)):
                    arms.append(Arm(base, tuple((lever.name, c.value) for lever, c in zip(levers, choices, strict=True))))
    return {arm.name: arm for arm in arms}


_VALUES = {lever.name: (lever.default.value, *(choice.value for choice in lever.others)) for lever in LEVERS}

ARMS: Mapping[str, Arm] = _enumerated()
"""Every base: alone, with every single lever, and with every pair of levers."""
