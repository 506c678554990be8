"""A run: what a subject did on a golden's prompts, as plain arrays. Stored as JSON and safetensors, or judged at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from oracle.errors import RunError
from oracle.serialization import Sealed, digest, new_folder, parse_json, read_bytes
from oracle.stored_arrays import open_arrays, pack_arrays
from oracle.subjects.captures import CaptureEvidence
from oracle.subjects.census import CensusEvidence
from oracle.subjects.operands import OperandEvidence
from oracle.subjects.ops import OpsEvidence
from oracle.subjects.protocol import SubjectIdentity
from oracle.subjects.repeats import RepeatEvidence

RUN_SCHEMA = "kolibri-run/4"
CONTROL_FOLDER = "control"
EMBEDDING_DIGEST_BYTES = 16
_ADVICE = "record the run again with `kolibri-oracle gate --save-run DIR`"


@dataclass(frozen=True)
class PromptRun:
    """A subject's teacher-forced pass and free run over one prompt. T positions fed, n stored logits, L layers, k experts.

    What a subject does not show is None, and absent from a stored run: never zeros in its place.

    Attributes:
        consumed, positions: int32 [T], the ids and positions the subject says it computed.
        embedding_digest: uint8 [T, 16], of the raw embedding row it consumed.
        argmax: int32 [T], its own, lowest id among equals.
        logits_at_golden: float32 [T, n], its logits at the golden's stored ids.
        top_ids, top_logits: int32 and float32 [T, n], its own largest.
        logsumexp: float64 [T].
        non_finite: int32 [T], how many NaN or infinite numbers the step showed (they are stored as 0).
        free_consumed: int32 [T], the ids it consumed in the free run.
        free_generated: int32 [G], the chain it generated.
        sketch: float32 [T, L, 32].
        expert_ids, expert_weights: int32 and float32 [T, L, k].
        free_expert_ids: int32 [T, L, k], of the free run; there if and only if `expert_ids` is.
        router_logits: float32 [N, L, E], at the golden's N probe positions of the prompt, without the bias.
        non_finite_routing: int32 [T], how many of `non_finite` were weights or router logits; there if either is.
    """

    consumed: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    embedding_digest: npt.NDArray[np.uint8]
    argmax: npt.NDArray[np.int32]
    logits_at_golden: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32]
    top_logits: npt.NDArray[np.float32]
    logsumexp: npt.NDArray[np.float64]
    non_finite: npt.NDArray[np.int32]
    free_consumed: npt.NDArray[np.int32]
    free_generated: npt.NDArray[np.int32]
    sketch: npt.NDArray[np.float32] | None = None
    expert_ids: npt.NDArray[np.int32] | None = None
    expert_weights: npt.NDArray[np.float32] | None = None
    free_expert_ids: npt.NDArray[np.int32] | None = None
    router_logits: npt.NDArray[np.float32] | None = None
    non_finite_routing: npt.NDArray[np.int32] | None = None

    @property
    def held(self) -> frozenset[str]:
        """Names of the arrays that are there."""
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) is not None)


REQUIRED_ARRAYS = frozenset(f.name for f in fields(PromptRun) if f.default is MISSING)

_DTYPES = {
    **dict.fromkeys(("consumed", "positions", "argmax", "top_ids", "expert_ids", "non_finite"), "int32"),
    **dict.fromkeys(("free_consumed", "free_generated", "free_expert_ids", "non_finite_routing"), "int32"),
    **dict.fromkeys(("logits_at_golden", "top_logits", "expert_weights", "sketch", "router_logits"), "float32"),
    "embedding_digest": "uint8",
    "logsumexp": "float64",
}


@dataclass(frozen=True)
class SlotEvidence:
    """What the judge's auditor saw of a subject's fills.

    Attributes:
        fills: whole experts verified (all three projections of one slot generation).
        verified_bytes: bytes read back and compared.
        checkpoint_bytes: bytes of these compared with the checkpoint's too.
        uses: times an expert in a slot took part in compute.
        violations: each thing that was wrong, in the order seen, one sentence each.
        expert_uses: (layer, expert, times) of every expert used, sorted.
    """

    fills: int = 0
    verified_bytes: int = 0
    checkpoint_bytes: int = 0
    uses: int = 0
    violations: tuple[str, ...] = ()
    expert_uses: tuple[tuple[int, int, int], ...] = ()

    def __add__(self, other: SlotEvidence) -> SlotEvidence:
        used: Counter[tuple[int, int]] = Counter()
        for layer, expert, times in (*self.expert_uses, *other.expert_uses):
            used[layer, expert] += times
        return SlotEvidence(
            self.fills + other.fills,
            self.verified_bytes + other.verified_bytes,
            self.checkpoint_bytes + other.checkpoint_bytes,
            self.uses + other.uses,
            self.violations + other.violations,
            use_table(used),
        )


def use_table(used: Mapping[tuple[int, int], int]) -> tuple[tuple[int, int, int], ...]:
    """`SlotEvidence.expert_uses` of counts by (layer, expert)."""
    return tuple((layer, expert, times) for (layer, expert), times in sorted(used.items()))


@dataclass(frozen=True)
class ResidentEvidence:
    """What the judge's auditor saw of a subject's resident operands.

    Attributes:
        readbacks: how many times all of them were read back.
        kinds: (kind of tensor, tensors, bytes of the checkpoint) compared over all read-backs, in the order of kinds.
        violations: each thing that was wrong, in the order seen, one sentence each.
    """

    readbacks: int = 0
    kinds: tuple[tuple[str, int, int], ...] = ()
    violations: tuple[str, ...] = ()

    def __add__(self, other: ResidentEvidence) -> ResidentEvidence:
        tensors: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for kind, count, nbytes in (*self.kinds, *other.kinds):
            tensors[kind] += count
            size[kind] += nbytes
        return ResidentEvidence(
            self.readbacks + other.readbacks,
            tuple((kind, tensors[kind], size[kind]) for kind in tensors),
            self.violations + other.violations,
        )


@dataclass(frozen=True)
class Run:
    """Everything a subject showed on a golden: arrays per prompt, and what happened beside them.

    Attributes:
        identity: who ran.
        golden_digest: of the golden whose prompts were fed.
        prompts: by the golden's prompt name; prompts that were not run are absent.
        faults: by prompt name, the `DeviceFault` that ended it (`kind: message`). A fault is a failure, never an absence.
        slots: the auditor's evidence, summed over prompts; None for a subject without slots.
        residents: the same of resident operands; None for a subject that does not show them.
        operands: the same of computing copies of fp8 weights; None for a subject that does not show them.
        census: the same of the ops of each step; None for a subject that does not record them.
        ops: what the judge measured of the device's ops, each alone; None for a subject that does not run them.
        repeats: the beginning of a prompt under other conditions; None for a subject that declares none.
        captures: what its device captured and replayed; None for a subject that cannot.
        stats: the subject's counters, added up over prompts; of levels, the largest (`oracle.subjects.levels`).
        environment: what it ran on.
        forced: the subject used the golden's expert sets and weights in place of its router's own.
        left_out: names of the prompts that were deliberately not run, as for want of time; the verdict is partial.
    """

    identity: SubjectIdentity
    golden_digest: str
    prompts: Mapping[str, PromptRun]
    faults: Mapping[str, str] = field(default_factory=dict)
    slots: SlotEvidence | None = None
    residents: ResidentEvidence | None = None
    operands: OperandEvidence | None = None
    census: CensusEvidence | None = None
    ops: OpsEvidence | None = None
    repeats: RepeatEvidence | None = None
    captures: CaptureEvidence | None = None
    stats: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    forced: bool = False
    left_out: tuple[str, ...] = ()


class RunDocument(Sealed):
    """The content of `run.json`."""

    format: Literal["kolibri-run/4"] = Field(alias="schema")
    identity: SubjectIdentity
    golden_digest: str
    prompts: tuple[str, ...]
    faults: Mapping[str, str]
    slots: SlotEvidence | None
    residents: ResidentEvidence | None
    operands: OperandEvidence | None
    census: CensusEvidence | None
    ops: OpsEvidence | None
    repeats: RepeatEvidence | None
    captures: CaptureEvidence | None
    stats: Mapping[str, int]
    environment: Mapping[str, str]
    forced: bool
    left_out: tuple[str, ...]
    arrays_digest: str


def save_run(run: Run, folder: Path, control: Run | None = None) -> None:
    """Write a run into the new folder `folder`; whole or not at all.

    Args:
        control: the perfect subject's run by the same dumper, stored below it. A run judged later without one is never
            green: nothing shows that its dumper writes what a subject answered.

    Raises:
        UsageError: the folder exists, or cannot be made.
    """
    with new_folder(folder) as temporary:
        _write(run, temporary)
        if control is not None:
            (temporary / CONTROL_FOLDER).mkdir()
            _write(control, temporary / CONTROL_FOLDER)


def load_control(folder: Path) -> Run | None:
    """The control run stored with the run in `folder`, or None.

    Raises:
        RunError: it is damaged.
    """
    return load_run(folder / CONTROL_FOLDER) if (folder / CONTROL_FOLDER).is_dir() else None


def _write(run: Run, folder: Path) -> None:
    arrays = {
        f"{index:04d}/{name}": getattr(prompt_run, name)
        for index, prompt_run in enumerate(run.prompts.values())
        for name in sorted(prompt_run.held)
    }
    packed = pack_arrays(arrays)
    document = RunDocument.model_validate(
        {
            "schema": RUN_SCHEMA,
            "identity": asdict(run.identity),
            "golden_digest": run.golden_digest,
            "prompts": tuple(run.prompts),
            "faults": run.faults,
            "slots": None if run.slots is None else asdict(run.slots),
            "residents": None if run.residents is None else asdict(run.residents),
            "operands": None if run.operands is None else asdict(run.operands),
            "census": None if run.census is None else asdict(run.census),
            "ops": None if run.ops is None else asdict(run.ops),
            "repeats": None if run.repeats is None else asdict(run.repeats),
            "captures": None if run.captures is None else asdict(run.captures),
            "stats": run.stats,
            "environment": run.environment,
            "forced": run.forced,
            "left_out": run.left_out,
            "arrays_digest": digest(packed),
        }
    )
    (folder / "run.safetensors").write_bytes(packed)
    (folder / "run.json").write_bytes(document.sealed().to_json())


def load_run(folder: Path) -> Run:
    """Read a run back.

    Raises:
        RunError: no run there, another schema, damaged bytes, missing or surplus fields.
    """
    path = folder / "run.json"
    value = parse_json(read_bytes(path, RunError, _ADVICE), path, RunError, _ADVICE)
    if value.get("schema") != RUN_SCHEMA:
        raise RunError(f"{path} has schema {value.get('schema')!r}, this version reads {RUN_SCHEMA!r}; {_ADVICE}")
    try:
        document = RunDocument.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RunError(f"{path}: {where}: {first['msg']}; {_ADVICE}") from None
    arrays_path = folder / "run.safetensors"
    prompts = _split(document, open_arrays(arrays_path, RunError, _ADVICE, (document.arrays_digest, path.name)), path)
    if both := sorted(set(document.left_out) & {*document.prompts, *document.faults}):
        raise RunError(f"{path}: prompt {both[0]} is said to be left out, and has an answer or a fault; {_ADVICE}")
    if document.content_digest() != document.digest:
        raise RunError(f"{path} does not have its own digest: it was changed; {_ADVICE}")
    return Run(
        identity=document.identity,
        golden_digest=document.golden_digest,
        prompts=prompts,
        faults=document.faults,
        slots=document.slots,
        residents=document.residents,
        operands=document.operands,
        census=document.census,
        ops=document.ops,
        repeats=document.repeats,
        captures=document.captures,
        stats=document.stats,
        environment=document.environment,
        forced=document.forced,
        left_out=document.left_out,
    )


def _split(document: RunDocument, arrays: Mapping[str, np.ndarray], path: Path) -> dict[str, PromptRun]:
    names = document.prompts
    needed = {f"{index:04d}/{name}" for index in range(len(names)) for name in REQUIRED_ARRAYS}
    known = {f"{index:04d}/{name}" for index in range(len(names)) for name in _DTYPES}
    if differing := sorted((needed - arrays.keys()) | (arrays.keys() - known)):
        raise RunError(f"{path}: the arrays differ from the list of prompts, first {differing[0]!r}; {_ADVICE}")
    for name, array in arrays.items():
        dtype = _DTYPES[name.split("/")[1]]
        if array.dtype != dtype:
            raise RunError(f"{path}: array {name!r} is {array.dtype}, expected {dtype}; {_ADVICE}")
    return {
        name: PromptRun(**{f.name: arrays.get(f"{index:04d}/{f.name}") for f in fields(PromptRun)})  # type: ignore[arg-type]
        for index, name in enumerate(names)
    }
