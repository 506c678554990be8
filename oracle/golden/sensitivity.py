"""Would this golden's chains expose a phase or index fault? A chain that repeats one id exposes none.

A port's golden once held one id 32 times, two ids in turn, and a chain of period 12: no shift by one could show on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

LONGEST_SHORT_PERIOD = 16
_SHIFTS = range(1, 9)


class Sensitivity(BaseModel):
    """How many simulated index and phase faults the stored chains expose.

    Attributes:
        faults: faults simulated: shifts by 1 to 8 and by the prompt's length, first or last id dropped, swapped prompts.
        exposed: those that change at least one compared id.
        hidden: the others, by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    faults: int
    exposed: int
    hidden: tuple[str, ...]


def measure(chains: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> Sensitivity:
    """Simulate the faults on every prompt.

    Args:
        chains: by prompt name, its prompt ids and its generated ids.
    """
    names = list(chains)
    outcomes = [outcome for index, name in enumerate(names) for outcome in _faults(names, index, name, chains)]
    hidden = tuple(fault for fault, exposed in outcomes if not exposed)
    return Sensitivity(faults=len(outcomes), exposed=len(outcomes) - len(hidden), hidden=hidden)


def short_period(chain: Sequence[int]) -> int | None:
    """The smallest period, up to 16, that explains the whole chain; 1 means constant. None where there is none.

    A chain must hold two whole periods to be called periodic.
    """
    for period in range(1, min(LONGEST_SHORT_PERIOD, len(chain) // 2) + 1):
        if all(a == b for a, b in zip(chain, chain[period:], strict=False)):
            return period
    return None


def _faults(
    names: list[str], index: int, name: str, chains: Mapping[str, tuple[Sequence[int], Sequence[int]]]
) -> Iterator[tuple[str, bool]]:
    prompt, generated = chains[name]
    whole = [*prompt, *generated]
    for shift in sorted({*_SHIFTS, len(prompt)}):
        late = whole[len(prompt) + shift :]
        early = whole[max(0, len(prompt) - shift) :][: len(generated)]
        if late:
            yield f"{name}: {shift} late", _differs(generated, late)
        yield f"{name}: {shift} early", _differs(generated, early)
    yield f"{name}: first id dropped", _differs(generated, [*generated[1:], generated[0]])
    yield f"{name}: last id dropped", _differs(generated, [generated[-1], *generated[:-1]])
    if len(names) > 1:
        other = names[(index + 1) % len(names)]
        yield f"{name}: answered as {other}", _differs(generated, chains[other][1])


def _differs(expected: Sequence[int], got: Sequence[int]) -> bool:
    return any(a != b for a, b in zip(expected, got, strict=False))
