"""What a session ran on and how far it came: the part of the ledger that is no gate's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from oracle.golden.format import Golden
from oracle.judge.gate import Finding
from oracle.subjects.protocol import LibraryRecord
from oracle.subjects.run import Run


@dataclass(frozen=True)
class SessionFacts:
    """Stated by the run, none of it measured here; no clock, so that a replay states the same.

    Attributes:
        prompts, positions: answered, and how many the golden has.
        faults: by prompt, the device fault that ended it.
        device: kind and identity of what the subject ran on.
        libraries: native libraries that the subject computes with.
        counters: the subject's own, over prompts: added up, or, of levels, the largest.
        no_prompt_asked: all prompts were left out on purpose: what was judged needs none.
    """

    prompts: tuple[int, int]
    positions: tuple[int, int]
    faults: Mapping[str, str]
    device: Mapping[str, str]
    libraries: tuple[LibraryRecord, ...]
    counters: Mapping[str, int]
    no_prompt_asked: bool = False

    @classmethod
    def of(cls, golden: Golden, run: Run) -> SessionFacts:
        """The facts of a run on a golden."""
        answered = [prompt for prompt in golden.prompts if prompt.name in run.prompts]
        return cls(
            prompts=(len(answered), len(golden.prompts)),
            positions=(sum(len(prompt.fed) for prompt in answered), sum(len(prompt.fed) for prompt in golden.prompts)),
            faults=run.faults,
            device=run.identity.device,
            libraries=run.identity.libraries,
            counters=run.stats,
            no_prompt_asked=bool(golden.prompts) and {prompt.name for prompt in golden.prompts} == set(run.left_out),
        )

    def findings(self) -> tuple[Finding, ...]:
        """A device fault, a library older than its sources, a session in which no prompt was answered."""
        found = [Finding(f"a device fault ended the prompt: {fault}", where=name) for name, fault in self.faults.items()]
        found += [
            Finding(
                f"native library {library.name} is older than its sources; build it again",
                worst=f"built {_date(library.built)}",
                allowed=f"newest source {_date(library.newest_source)}",
            )
            for library in self.libraries
            if library.stale
        ]
        if 0 in (self.prompts[0], self.positions[0]) and not self.no_prompt_asked:
            found.append(Finding("no prompt was answered, so nothing was compared", verdict="incomplete"))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """The report's `session`; what the subject states of itself beside it stands under `subject`."""
        answered, of = zip(self.prompts, self.positions, strict=True)
        return {
            "answered": dict(zip(("prompts", "positions"), answered, strict=True)),
            "of": dict(zip(("prompts", "positions"), of, strict=True)),
            "faults": dict(self.faults),
            "device": dict(self.device),
            "libraries": [{**asdict(library), "stale": library.stale} for library in self.libraries],
            "counters": dict(self.counters),
        }


def _date(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 10**9, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
