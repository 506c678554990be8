"""The golden on disk: `golden.json` (canonical) and `golden.safetensors`, whole or refused.

Loading checks everything that can be checked from the files alone: schema, digests, shapes, ids, finite numbers. What a
golden says about a checkpoint or a tokenizer is the `golden` gate's matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from oracle.errors import GoldenError
from oracle.golden.calibration import ClassCalibration
from oracle.golden.evidence import PromptEvidence, PromptProbes
from oracle.golden.history import HistoryEntry
from oracle.golden.recipe import PromptSpec, Recipe
from oracle.golden.sensitivity import Sensitivity
from oracle.mapped_pages import give_back
from oracle.serialization import Sealed, digest, new_folder, parse_json, read_bytes
from oracle.stored_arrays import open_arrays, pack_arrays
from oracle.subjects.protocol import NumericClass

GOLDEN_SCHEMA = "kolibri-golden/2"
JSON_FILE = "golden.json"
ARRAYS_FILE = "golden.safetensors"
_ADVICE = "restore it from version control, or make a new one with `kolibri-oracle golden make`"
_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PromptRecord(BaseModel):
    """One prompt's text, ids and chain; its arrays are rows of `golden.safetensors`.

    Attributes:
        text: what the ids were made from: the recipe's text, or what its messages were rendered to; None where it gives ids.
    """

    model_config = _STRICT

    name: str
    text: str | None
    prompt_ids: tuple[int, ...] = Field(min_length=1)
    generated: tuple[int, ...] = Field(min_length=1)


class GoldenDocument(Sealed):
    """The content of `golden.json`.

    Attributes:
        probe_prompt: the prompt whose layer inputs are stored at every position.
        history: what this golden replaced, oldest first; left out of the JSON where it replaced none.
    """

    format: Literal["kolibri-golden/2"] = Field(alias="schema")
    recipe: Recipe
    recipe_digest: str
    checkpoint_digest: str
    prompts: tuple[PromptRecord, ...] = Field(min_length=1)
    classes: Mapping[NumericClass, ClassCalibration]
    sensitivity: Sensitivity
    probe_prompt: str
    arrays_digest: str
    history: tuple[HistoryEntry, ...] = ()

    @model_serializer(mode="wrap")
    def _without_empty_history(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value or name != "history"}

    @model_validator(mode="after")
    def _consistent(self) -> GoldenDocument:
        if [p.name for p in self.prompts] != [p.name for p in self.recipe.prompts]:
            raise ValueError("the prompts are not the recipe's")
        for prompt, spec in zip(self.prompts, self.recipe.prompts, strict=True):
            _check_prompt(prompt, spec)
            _check_length(prompt, spec.new_tokens, self.recipe.eos_ids)
        total = sum(len(p.prompt_ids) + len(p.generated) - 1 for p in self.prompts)
        for name, calibration in self.classes.items():
            if calibration.positions != total:
                raise ValueError(f"class {name} was calibrated on {calibration.positions} positions, the golden has {total}")
            if differing := sorted(calibration.prompt_floors.keys() ^ {p.name for p in self.prompts}):
                raise ValueError(f"class {name} has a floor for prompts other than the golden's, first {differing[0]}")
        if wrong := [name for name, calibration in self.classes.items() if calibration.numeric_class != name]:
            raise ValueError(f"the calibration filed under {wrong[0]} is another class's")
        return self


def _check_prompt(prompt: PromptRecord, spec: PromptSpec) -> None:
    if spec.messages is not None:
        if not prompt.text:
            raise ValueError(f"prompt {prompt.name} does not have the text that its messages were rendered to")
    elif prompt.text != spec.text or (spec.ids is not None and prompt.prompt_ids != spec.ids):
        raise ValueError(f"prompt {prompt.name} does not have the recipe's text or ids")


def _check_length(prompt: PromptRecord, new_tokens: int, eos_ids: Sequence[int]) -> None:
    """The chain has the length asked for, or ends at the first of `eos_ids` in it, which are empty where chains go on."""
    chain = prompt.generated
    if early := [index for index, token in enumerate(chain[:-1]) if token in eos_ids]:
        raise ValueError(f"prompt {prompt.name} goes on after the eos id at generated[{early[0]}], where the recipe stops")
    stopped = chain[-1] in eos_ids and len(chain) < new_tokens
    if len(chain) != new_tokens and not stopped:
        raise ValueError(f"prompt {prompt.name} has {len(chain)} generated ids, the recipe asks {new_tokens}")


@dataclass(frozen=True)
class Probes:
    """Full values at few places, for localisation.

    Attributes:
        prompts: int32 [N], index of the probe's prompt.
        positions: int32 [N], its position there.
        hidden: float32 [N, L, H], the residual stream after each layer.
        router_logits: float32 [N, L, E], without the bias.
        layer_inputs: float32 [T, L, H], of the probe prompt, at every position.
    """

    prompts: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float32]
    router_logits: npt.NDArray[np.float32]
    layer_inputs: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Golden:
    """A golden in memory: the document, each prompt's evidence in the document's order, and the probes."""

    document: GoldenDocument
    prompts: tuple[PromptEvidence, ...]
    probes: Probes

    @property
    def digest(self) -> str:
        return self.document.digest

    @property
    def positions(self) -> int:
        """Teacher-forced positions over all prompts."""
        return sum(len(prompt.fed) for prompt in self.prompts)

    def probes_of(self, prompt: str) -> PromptProbes:
        """A prompt's own probes. By name in the document: `prompts` may hold some of its prompts only."""
        index = next(i for i, record in enumerate(self.document.prompts) if record.name == prompt)
        rows = np.flatnonzero(self.probes.prompts == index)
        return PromptProbes(tuple(self.probes.positions[rows].tolist()), self.probes.router_logits[rows])


_PROBE_PREFIX = "probe_"
_PROBE_ARRAYS = ("prompts", "positions", "hidden", "router_logits", "layer_inputs")


def assemble(
    *,
    recipe: Recipe,
    checkpoint_digest: str,
    prompts: tuple[PromptEvidence, ...],
    classes: Mapping[NumericClass, ClassCalibration],
    sensitivity: Sensitivity,
    probe_prompt: str,
    probes: Probes,
) -> tuple[Golden, bytes]:
    """Make a golden of its parts, digests included; returns it and the bytes of its arrays.

    Raises:
        ValueError: an array holds NaN or infinity.
    """
    arrays = {name: np.concatenate([getattr(p, name) for p in prompts]) for name in PromptEvidence.ARRAYS}
    arrays |= {_PROBE_PREFIX + name: getattr(probes, name) for name in _PROBE_ARRAYS}
    packed = pack_arrays(arrays)
    parts = dict(
        schema=GOLDEN_SCHEMA,
        recipe=recipe,
        recipe_digest=recipe.digest(),
        checkpoint_digest=checkpoint_digest,
        prompts=tuple(PromptRecord(name=p.name, text=p.text, prompt_ids=p.prompt_ids, generated=p.generated) for p in prompts),
        classes=classes,
        sensitivity=sensitivity,
        probe_prompt=probe_prompt,
        arrays_digest=digest(packed),
    )
    document = GoldenDocument.model_validate(parts).sealed()
    return Golden(document, prompts, probes), packed


def write_golden(folder: Path, golden: Golden, packed: bytes) -> None:
    """Write a golden into the new folder `folder`; whole or not at all.

    Raises:
        UsageError: the folder exists, or cannot be made.
    """
    with new_folder(folder) as temporary:
        (temporary / ARRAYS_FILE).write_bytes(packed)
        (temporary / JSON_FILE).write_bytes(golden.document.to_json())


def load_golden(folder: Path) -> Golden:
    """Read a golden.

    Raises:
        GoldenError: no golden there, another schema, or bytes that changed.
    """
    path = folder / JSON_FILE
    raw = read_bytes(path, GoldenError, _ADVICE)
    document = _parse_document(parse_json(raw, path, GoldenError, _ADVICE), path)
    if raw != document.to_json():
        raise GoldenError(f"{path} is not in the canonical serialization: it was edited; {_ADVICE}")
    if document.content_digest() != document.digest:
        raise GoldenError(f"{path} does not have its own digest: it was changed; {_ADVICE}")
    if document.recipe.digest() != document.recipe_digest:
        raise GoldenError(f"{path}: the recipe does not have the digest it claims; {_ADVICE}")
    arrays_path = folder / ARRAYS_FILE
    arrays = open_arrays(arrays_path, GoldenError, _ADVICE, (document.arrays_digest, JSON_FILE))
    try:
        prompts = _split(document, arrays)
        probes = Probes(**{name: arrays[_PROBE_PREFIX + name] for name in _PROBE_ARRAYS})
        _check_probes(prompts, probes)
        give_back(arrays.values())
    except (KeyError, ValueError, IndexError) as problem:
        raise GoldenError(f"{arrays_path} does not fit {JSON_FILE} ({problem}); {_ADVICE}") from None
    return Golden(document, prompts, probes)


def _parse_document(value: dict[str, Any], path: Path) -> GoldenDocument:
    if value.get("schema") != GOLDEN_SCHEMA:
        raise GoldenError(f"{path} has schema {value.get('schema')!r}, this version reads {GOLDEN_SCHEMA!r}; {_ADVICE}")
    try:
        return GoldenDocument.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise GoldenError(f"{path}: {where}: {first['msg']}; {_ADVICE}") from None


def _split(document: GoldenDocument, arrays: Mapping[str, np.ndarray]) -> tuple[PromptEvidence, ...]:
    total = sum(len(p.prompt_ids) + len(p.generated) - 1 for p in document.prompts)
    _check_arrays(document, arrays, total)
    prompts, start = [], 0
    for record in document.prompts:
        end = start + len(record.prompt_ids) + len(record.generated) - 1
        rows = {name: arrays[name][start:end] for name in PromptEvidence.ARRAYS}
        prompts.append(PromptEvidence(record.name, record.text, record.prompt_ids, record.generated, **rows))
        start = end
    return tuple(prompts)


def _check_arrays(document: GoldenDocument, arrays: Mapping[str, np.ndarray], total: int) -> None:
    """Names, dtypes and shapes of everything; sizes that are not in the document come from one array each."""
    stored = arrays["top_ids"].shape[-1]
    layers, experts = arrays["expert_ids"].shape[-2:]
    probes, hidden, all_experts = (
        len(arrays["probe_prompts"]),
        arrays["probe_hidden"].shape[-1],
        arrays["probe_router_logits"].shape[-1],
    )
    probed = next((len(p.prompt_ids) + len(p.generated) - 1 for p in document.prompts if p.name == document.probe_prompt), None)
    if probed is None:
        raise ValueError(f"the probe prompt {document.probe_prompt!r} is none of the prompts")
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "top_ids": ("int32", (total, stored)),
        "top_logits": ("float32", (total, stored)),
        "logsumexp": ("float64", (total,)),
        "expert_ids": ("int32", (total, layers, experts)),
        "expert_weights": ("float32", (total, layers, experts)),
        "router_gap": ("float32", (total, layers)),
        "sketch": ("float32", (total, layers, document.recipe.sketch_rows)),
        "probe_prompts": ("int32", (probes,)),
        "probe_positions": ("int32", (probes,)),
        "probe_hidden": ("float32", (probes, layers, hidden)),
        "probe_router_logits": ("float32", (probes, layers, all_experts)),
        "probe_layer_inputs": ("float32", (probed, layers, hidden)),
    }
    if differing := sorted(expected.keys() ^ arrays.keys()):
        raise ValueError(f"array {differing[0]!r} is missing or unknown")
    for name, (dtype, shape) in expected.items():
        found = arrays[name]
        if found.dtype != dtype or found.shape != shape:
            raise ValueError(f"{name} is {found.dtype} {list(found.shape)}, expected {dtype} {list(shape)}")
    for name, calibration in document.classes.items():
        for floor in (calibration.limits.floor, *calibration.prompt_floors.values()):
            for per_layer in ("sketch_median", "sketch_p90", "weight_median", "weight_p90"):
                if (given := len(getattr(floor, per_layer))) != layers:
                    raise ValueError(f"class {name} has {given} limits {per_layer} for {layers} layers")
    if (arrays["router_gap"] < 0).any() or not arrays["sketch"].any(axis=-1).all():
        raise ValueError("a router gap is negative, or a sketch is all zero")
    if (np.exp(arrays["top_logits"] - arrays["logsumexp"][:, None]).sum(axis=1) > 1 + 1e-9).any():
        raise ValueError("stored logits and their logsumexp contradict each other")
    for name in ("top_ids", "expert_ids"):
        ordered = np.sort(arrays[name], axis=-1)
        if ordered.min() < 0 or (np.diff(ordered, axis=-1) == 0).any():
            raise ValueError(f"{name} holds a negative id, or one twice in a row")


def _check_probes(prompts: tuple[PromptEvidence, ...], probes: Probes) -> None:
    for prompt, position in zip(probes.prompts.tolist(), probes.positions.tolist(), strict=True):
        if not (0 <= prompt < len(prompts) and 0 <= position < len(prompts[prompt].fed)):
            raise ValueError(f"probe at prompt {prompt}, position {position} is outside the golden")
    if missing := sorted(set(range(len(prompts))) - set(probes.prompts.tolist())):
        raise ValueError(f"prompt {prompts[missing[0]].name} has no probe")
