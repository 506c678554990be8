"""What ttnn's own validation says to a decode step, where there is no card: `python -m tt_impl.device.ttnn.acceptance`.

On ttnn's mock device, for the mini's geometry and the release's: all residents are allocated and the card filled up to its
last byte; the decoder itself takes steps, over zeros and with one layer of each kind; and every op that the protocol has
runs, for one user and for more, also those that this decoder sends to no device. Each goes through ttnn's checks, its output
allocation and its program factory; a step that runs again must compile nothing new, and ttnn's graph capture must see no
transfer between ops that was not asked for.

ACCEPTED is not passed. The mock device computes nothing and every read of it is zeros; where a placeholder stands for the
compiler, no kernel was even compiled. Nothing here can tell a right value from a wrong one.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from oracle.accelerator import accelerator_record
from oracle.errors import DeviceFault, KolibriError
from oracle.kolibri1.config import Kolibri1Config, read_config
from oracle.kolibri1.release import RELEASE_CONFIG
from tt_impl.device.protocol import Device
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.device.ttnn.mirroring import Mirroring
from tt_impl.device.ttnn.plan import MemoryAccepted, accept_memory
from tt_impl.device.ttnn.rehearsal import layers_of_each_kind, rehearsing_decoder
from tt_impl.device.ttnn.step import DecodeStep, OpCall, Recorder

SCHEMA = "kolibri-acceptance/2"
DECODER, PROTOCOL = "the decoder", "every op of the protocol"
CAVEAT = "ACCEPTED by ttnn's validation on its mock device: nothing was computed and no value was seen; this is no pass"

_USERS = (1, 4)
_POSITIONS = (30, 33, 34)
"""Of the three steps, on both sides of a block's border. The decoder's own are its first three."""

_WITHHELD = 1 << 26
"""Bytes of the release's embedding and head, and of nothing else there."""


@dataclass(frozen=True)
class StepAccepted:
    """A decode step of `users` users.

    Attributes:
        what: whose calls: the decoder's own, or each of the protocol's.
        ops: as often as they were called, in the order of their first calls.
        programs: program cache entries after each of the steps; new ones only in the first.
        asked: transfers that the step asked for, each way.
        seen: transfers that ttnn's graph capture saw.
    """

    what: str
    users: int
    ops: tuple[tuple[OpCall, int], ...]
    programs: tuple[int, ...]
    asked: dict[str, int]
    seen: dict[str, int]

    @property
    def refusals(self) -> list[str]:
        """Why this step is not accepted; empty where it is."""
        found = [f"{call.op} of {'; '.join(call.operands)}: {call.refusal}" for call, _ in self.ops if call.refusal]
        if not found and len(set(self.programs)) != 1:
            found.append(f"program cache entries went {' -> '.join(map(str, self.programs))}: a later step compiled")
        if not found and self.asked != self.seen:
            found.append(f"transfers asked for {self.asked}, seen by ttnn {self.seen}")
        return found


@dataclass(frozen=True)
class GeometryAccepted:
    name: str
    memory: MemoryAccepted
    steps: tuple[StepAccepted, ...]


def accept(device: TtnnDevice, name: str, config: Kolibri1Config) -> GeometryAccepted:
    """Memory and steps of one geometry on an opened mock device.

    Raises:
        DeviceFault: the residents do not fit.
    """
    memory = accept_memory(device, config)
    steps = (accept_decoder(device, config), *(accept_step(device, config, users) for users in _USERS))
    return GeometryAccepted(name, memory, steps)


def accept_decoder(device: TtnnDevice, config: Kolibri1Config) -> StepAccepted:
    """Three steps of the decoder itself, cut down to a layer of each kind. A refused op ends them, and is in the result."""
    mirroring = Mirroring(device, withheld_bytes=_WITHHELD)
    recorder = Recorder(mirroring)

    def opened() -> _Steps:
        decoder = rehearsing_decoder(cast(Device, recorder), layers_of_each_kind(config))
        return _Steps(lambda position: decoder.step(0), mirroring.free_all)

    try:
        return _accepted(device, DECODER, 1, recorder, opened)
    finally:
        mirroring.free_all()


def accept_step(device: TtnnDevice, config: Kolibri1Config, users: int) -> StepAccepted:
    """Three steps of every op with `users` users. A refused op ends them, and is in the result."""
    recorder = Recorder(device)

    def opened() -> _Steps:
        step = DecodeStep(cast(Device, recorder), config, users=users)
        return _Steps(step.run, step.close)

    return _accepted(device, PROTOCOL, users, recorder, opened)


@dataclass(frozen=True)
class _Steps:
    run: Callable[[int], object]
    close: Callable[[], None]


def _accepted(device: TtnnDevice, what: str, users: int, recorder: Recorder, opened: Callable[[], _Steps]) -> StepAccepted:
    """The steps at `_POSITIONS`, the last under ttnn's graph capture."""
    programs: list[int] = []
    asked: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    try:
        steps = opened()
        for position in _POSITIONS[:-1]:
            steps.run(position)
            programs.append(device.program_cache_entries())
        before = Counter(_transfers(device))
        with transfers_seen(device) as seen:
            steps.run(_POSITIONS[-1])
        asked = Counter(_transfers(device)) - before
        steps.close()
    except DeviceFault:
        if not (recorder.calls and recorder.calls[-1].refusal):
            raise
    return StepAccepted(what, users, tuple(Counter(recorder.calls).items()), tuple(programs), dict(asked), dict(seen))


def _transfers(device: TtnnDevice) -> dict[str, int]:
    counts = device.event_counts()
    reads = counts.get("blocking_reads", 0) + counts.get("non_blocking_reads", 0)
    return {"reads": reads, "writes": counts.get("writes", 0)}


@contextmanager
def transfers_seen(device: TtnnDevice) -> Iterator[Counter[str]]:
    """Counts the transfers that ttnn's graph capture sees. Capturing wants to find a module `torch` with a class Tensor."""
    stand_in = types.ModuleType("torch")
    setattr(stand_in, "Tensor", type("Tensor", (), {}))  # noqa: B010 - pyright knows no attribute of a new module
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = stand_in
    seen: Counter[str] = Counter()
    try:
        with device.graph() as names:
            yield seen
    finally:
        if absent:
            del sys.modules["torch"]
    found = Counter(names)
    seen.update({"reads": found["Tensor::cpu"], "writes": found["tt::tt_metal::copy_to_device"]})


def to_json(accepted: Sequence[GeometryAccepted]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "caveat": CAVEAT,
        "accelerator": accelerator_record(),
        "accepted": all(not step.refusals for geometry in accepted for step in geometry.steps),
        "geometries": [
            {
                "name": geometry.name,
                "memory": asdict(geometry.memory),
                "steps": [
                    {
                        "what": step.what,
                        "users": step.users,
                        "ops": [asdict(call) | {"calls": count, "outcome": _outcome(call)} for call, count in step.ops],
                        "programs": step.programs,
                        "transfers": {"asked": step.asked, "seen": step.seen},
                        "refusals": step.refusals,
                    }
                    for step in geometry.steps
                ],
            }
            for geometry in accepted
        ],
    }


def to_lines(accepted: Sequence[GeometryAccepted]) -> Iterator[str]:
    """The report as a table for people."""
    for geometry in accepted:
        memory = geometry.memory
        yield f"{geometry.name}: {memory.tensors:,} residents take {memory.taken_bytes:,} of {memory.total_bytes:,} bytes"
        fit = f"{memory.slots:,} slots of {memory.slot_bytes:,} bytes fit, or {memory.copies:,} dequantized experts"
        yield f"  of {memory.experts:,} experts, then {fit}"
        if memory.refusal:
            yield f"  the next slot: {memory.refusal}"
        for step in geometry.steps:
            programs = step.programs[-1] if step.programs else 0
            yield f"  {step.what}, {step.users} user(s): {programs} programs, transfers {step.seen}"
            for call, count in step.ops:
                gives = f" -> {'; '.join(call.results)}" if call.results else ""
                yield f"    {_outcome(call):8} {count:3} x {call.op}: {'; '.join(call.operands)}{gives}"
            yield from (f"    REFUSED  {refusal}" for refusal in step.refusals)
    yield CAVEAT


def _outcome(call: OpCall) -> str:
    return "refused" if call.refusal else "accepted"


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """The command. Returns 0 where everything was accepted, 1 where something was refused, 2 where it could not run."""
    parser = argparse.ArgumentParser(prog="python -m tt_impl.device.ttnn.acceptance", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, help="a folder whose config.json is tried, instead of mini and release")
    parser.add_argument("--json", type=Path, help="also write the report here")
    options = parser.parse_args(arguments)
    try:
        device = TtnnDevice.open_mock()
        accepted = [accept(device, name, config) for name, config in _geometries(options.checkpoint)]
        device.close()
    except (KolibriError, DeviceFault) as error:
        say(f"error: {error}")
        return 2 if isinstance(error, KolibriError) else 1
    document = to_json(accepted)
    if options.json is not None:
        options.json.write_text(json.dumps(document, sort_keys=True) + "\n", encoding="utf-8")
    for line in to_lines(accepted):
        say(line)
    return 0 if document["accepted"] else 1


def _geometries(checkpoint: Path | None) -> list[tuple[str, Kolibri1Config]]:
    if checkpoint is not None:
        return [(checkpoint.name, read_config(checkpoint))]
    import goldens

    mini = read_config(goldens.mini_checkpoint())
    return [("mini", mini), ("release", Kolibri1Config.model_validate(RELEASE_CONFIG))]


if __name__ == "__main__":
    sys.exit(main())
