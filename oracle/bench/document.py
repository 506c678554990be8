"""What `kolibri-oracle bench --json` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from oracle.serialization import canonical_json

Kind = Literal["chain", "logits", "counts", "modelled time", "arms", "effect"]
STAGES = ("prefill", "decode")
_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Difference(BaseModel):
    """Two runs, or two arms, that must agree and do not; or an arm that is not what it is called.

    Attributes:
        kind: `chain`, `logits`, `counts` or `modelled time`, of runs of one arm; `arms` of two arms of one arithmetic;
            `effect` of an arm that its own counters do not show.
        where: arms and runs, by name and number from 1.
        what: differs, first found first.
    """

    model_config = _STRICT

    kind: Kind
    where: str
    what: str


class Prompt(BaseModel):
    """The ids fed; `digest` by the document's `chain_serialization`."""

    model_config = _STRICT

    ids: tuple[int, ...]
    digest: str
    source: str


class Settings(BaseModel):
    """Of every run. `order`: the arms as they ran, one run each."""

    model_config = _STRICT

    prompt_ids: int
    steps: int
    runs: int
    warm_up_steps: int
    order: tuple[str, ...]


class Machine(BaseModel):
    """`oracle.bench.machine.MachineState`."""

    model_config = _STRICT

    cpus: int
    affinity: tuple[int, ...]
    governor: str
    load: tuple[float, float, float] | None
    busy_share: float | None
    busy: tuple[str, ...]


class Model(BaseModel):
    """What modelled times are made of (`oracle.subjects.modelled_time.TimeModel`)."""

    model_config = _STRICT

    parts: Mapping[str, str]
    causes: Mapping[str, str]
    constants: Mapping[str, int]


class Counts(BaseModel):
    """Of one stage, by the subject's names for its counters; those of its device begin with `device.`."""

    model_config = _STRICT

    steps: int
    total: Mapping[str, int]
    per_step: Mapping[str, float]


class Modelled(BaseModel):
    """Milliseconds of one stage. `parts` add up to `total`, and so do `causes`, by part and cause."""

    model_config = _STRICT

    total: float
    per_step: float
    parts: Mapping[str, float]
    causes: Mapping[str, Mapping[str, float]]


class Wall(BaseModel):
    """Milliseconds of one stage, in `Subject.step` alone.

    Attributes:
        runs: of each run, in order.
        spread: greatest minus least, as a share of the median.
        per_step: the median's.
        tokens_per_second: by the median.
    """

    model_config = _STRICT

    runs: tuple[float, ...]
    median: float
    least: float
    greatest: float
    spread: float
    per_step: float
    tokens_per_second: float


class Memory(BaseModel):
    """Bytes of the device, before the first step and after the last; None where the subject does not state them."""

    model_config = _STRICT

    before: int | None
    after: int | None


class ArmResult(BaseModel):
    """One arm: of its first run, but for `wall_ms`; that the others were the same is what `differences` is about.

    Attributes:
        arithmetic: arms of one name must compute the same, bit for bit; None where the subject doesn't say.
        chain: what the prefill's last step and each decode step predicted.
        counts, wall_ms: by stage, `prefill` and `decode`; `modelled_ms` too, None where nobody models it.
    """

    model_config = _STRICT

    arm: str
    numeric_class: str
    arithmetic: str | None
    chain: tuple[int, ...]
    chain_digest: str
    logits_digest: str
    counts: Mapping[str, Counts]
    memory: Memory
    modelled_ms: Mapping[str, Modelled] | None
    wall_ms: Mapping[str, Wall]


class BenchDocument(BaseModel):
    """The whole result.

    Attributes:
        verdict: `fail` if and only if there are differences. No time is judged.
        compared: what was held against what, in words; what was not, too.
        wall_time_is: of what.
        model: None where no time is modelled.
    """

    model_config = _STRICT

    format: Literal["kolibri-bench/1"] = Field(default="kolibri-bench/1", alias="schema")
    verdict: Literal["pass", "fail"]
    compared: tuple[str, ...]
    differences: tuple[Difference, ...]
    subject: str
    device: Mapping[str, str]
    prompt: Prompt
    settings: Settings
    chain_serialization: str
    machine: Machine
    environment: Mapping[str, str]
    wall_time_is: str
    model: Model | None
    arms: tuple[ArmResult, ...]

    def to_json(self) -> bytes:
        """Its canonical JSON."""
        return canonical_json(self.model_dump(mode="json", by_alias=True))
