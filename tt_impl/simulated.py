"""What stands behind `sim` in a device's name: a schedule, and a file with the faults that strike by themselves."""

from __future__ import annotations

from pathlib import Path

from oracle.errors import UsageError
from tt_impl.device.sim import FaultPlan, SimDevice, schedule_named
from tt_impl.device.sim.schedule import LazySchedule
from tt_impl.plants.catalogue import Parts

_MOST_BYTES = 1 << 20
_NONE = "none"


def open_simulated(parts: Parts, named: str, schedule: str | None) -> tuple[SimDevice, dict[str, str], str]:
    """Open the simulated device.

    Args:
        named: `SCHEDULE`, `SCHEDULE@FILE` or `@FILE`; without a schedule it is lazy. The file holds a fault plan as JSON.
        schedule: in the place of the one that is named.

    Returns:
        The device; what its identity says of it: `schedule`, `quirks`, and `faults`, its whole plan as canonical JSON or
        `none`; and the end of a fault's message: the command that replays it.

    Raises:
        UsageError: no such schedule, or no such plan.
    """
    name, _, file = named.partition("@")
    chosen = schedule_named(schedule or name or LazySchedule.name)
    planned = read_plan(Path(file)).faults if file else ()
    device = parts.open_device(schedule=chosen, faults=FaultPlan((*planned, *parts.faults)))
    faults = device.faults.to_json() if device.faults.faults else _NONE
    described = {"schedule": chosen.name, "quirks": device.quirks.names, "faults": faults}
    if faults == _NONE or not parts.faults:
        return device, described, f"; `gate --device sim:{chosen.name}{file and f'@{file}'}` replays it"
    return device, described, f"; `gate --device sim:{chosen.name}@FILE` with {faults} in FILE replays it"


def read_plan(path: Path) -> FaultPlan:
    """The plan in a file.

    Raises:
        UsageError: there is none, it is too large, or it is no plan.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read as a fault plan: {error.strerror}; docs/device.md shows one") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path} has more than {_MOST_BYTES} bytes; a fault plan is small, docs/device.md shows one")
    try:
        return FaultPlan.from_json(data.decode("utf-8"))
    except (UsageError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}; docs/device.md shows a plan") from None
