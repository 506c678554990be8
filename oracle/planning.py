"""Plans of installed subjects: what each would put where for a checkpoint, found by entry points and shown by `doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from oracle.errors import SubjectError
from oracle.kolibri1.config import Kolibri1Config

GROUP = "kolibri_oracle.planners"


@dataclass(frozen=True)
class PlanSection:
    """One table of a plan.

    Attributes:
        title: what it is of.
        rows: name, value and unit (`bytes`, `` for a plain number); what has no number is text.
    """

    title: str
    rows: tuple[tuple[str, int | float | str, str], ...]


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor that stays on the device.

    Attributes:
        name: the checkpoint's, or the subject's own for what it makes.
        dtype, layout: as the device has it.
        nbytes: of its elements. `device_bytes`: of device memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    nbytes: int
    device_bytes: int


@dataclass(frozen=True)
class Plan:
    """Sections in reading order; what was refused, each in one line with its deficit; and the tensors that stay."""

    sections: tuple[PlanSection, ...]
    refused: tuple[str, ...] = ()
    tensors: tuple[PlannedTensor, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the report's JSON: values by section and name."""
        return {
            "sections": [
                {"title": s.title, "rows": [{"name": n, "value": v, "unit": u} for n, v, u in s.rows]} for s in self.sections
            ],
            "refused": list(self.refused),
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }


@dataclass(frozen=True)
class PlanRequest:
    """What to plan for.

    Attributes:
        sequences: decoded at once.
        context: positions of each; None for as many as the decoder takes.
    """

    sequences: int = 1
    context: int | None = None


class Planner(Protocol):
    """Plans without a device, from a config alone."""

    def plan(self, config: Kolibri1Config, request: PlanRequest) -> Plan:
        """Raises UsageError for a request that no plan can meet."""
        ...


def planners() -> Mapping[str, Planner]:
    """All installed planners by their subject's name, sorted.

    Raises:
        SubjectError: there is none.
    """
    found = {entry.name: entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}
    if not found:
        raise SubjectError(f"no installed package declares a planner (entry-point group {GROUP}); reinstall kolibri-oracle")
    return found


def plan_all(config: Kolibri1Config, request: PlanRequest) -> dict[str, Plan]:
    """Every installed planner's plan, by name."""
    return {name: planner.plan(config, request) for name, planner in planners().items()}


def plans_json(request: PlanRequest, plans: Mapping[str, Plan]) -> dict[str, Any]:
    """What `doctor --json` adds."""
    return {"request": asdict(request), **{name: plan.to_json() for name, plan in plans.items()}}
