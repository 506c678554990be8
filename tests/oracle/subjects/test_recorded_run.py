"""Runs on disk: written whole, the same bytes every time, and refused where anything about them was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from goldens import mini_checkpoint
from oracle.errors import RunError, UsageError
from oracle.golden.format import Golden
from oracle.serialization import canonical_json, digest
from oracle.stored_arrays import pack_arrays
from oracle.subjects.captures import CapturedRegion, CaptureEvidence
from oracle.subjects.census import CensusEvidence, OpTally
from oracle.subjects.harness import drive
from oracle.subjects.operands import OperandEvidence
from oracle.subjects.ops import OpsEvidence, OpStatistics
from oracle.subjects.perfect import FACTORY
from oracle.subjects.protocol import LibraryRecord, SubjectRequest
from oracle.subjects.run import REQUIRED_ARRAYS, PromptRun, ResidentEvidence, Run, SlotEvidence, load_run, save_run


@pytest.fixture(scope="module")
def run(golden: Golden) -> Run:
    """Two prompts of the perfect subject, and something in every other field."""
    subject = FACTORY.open(SubjectRequest(mini_checkpoint(), mini_checkpoint() / "golden"))
    return Run(
        identity=replace(
            subject.identity, device={"kind": "sim", "seed": "0"}, libraries=(LibraryRecord("libnorm.so", 7, 1 << 60),)
        ),
        golden_digest=golden.digest,
        prompts={p.name: drive(subject, p, golden.probes_of(p.name).positions) for p in golden.prompts[:2]},
        faults={golden.prompts[2].name: "slot-verification: byte 3"},
        slots=SlotEvidence(3, 900, 900, 40, ("one", "two")),
        ops=OpsEvidence((OpStatistics("add", "bfloat16", 64, error=0.25, fault="rust: ä"), OpStatistics("mul", "float32"))),
        operands=OperandEvidence(1, (("routed down", 2, 8),), (("attention o", 1, 4),), ((0, 3, 2),), ("layer 0: wrong",)),
        census=CensusEvidence(3, 9, (("step", "add", 1),), (OpTally("step", (("add", 1),), 3, "copying[0]"),), ("wrong",)),
        captures=CaptureEvidence("p", "on", "off", (5, 0), (CapturedRegion((("op.add", 2),), 5, ("norm",), 1, alike=3),)),
        residents=ResidentEvidence(2, (("head", 2, 512), ("router", 4, 96)), ("lm_head.weight: not read back",)),
        stats={"fills": 3, "verified_bytes": 900},
        environment={"numpy": "2.0"},
    )


@pytest.fixture
def stored(run: Run, tmp_path: Path) -> Path:
    save_run(run, tmp_path / "run")
    return tmp_path / "run"


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((folder / "run.json").read_bytes())
    change(document)
    (folder / "run.json").write_bytes(canonical_json(document))


def with_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Other arrays, with the digest that a careful forger would state."""
    packed = pack_arrays(arrays)
    (folder / "run.safetensors").write_bytes(packed)
    edit(folder, lambda document: document.update(arrays_digest=digest(packed)))


def arrays_of(run: Run) -> dict[str, np.ndarray]:
    return {
        f"{index:04d}/{name}": getattr(prompt, name)
        for index, prompt in enumerate(run.prompts.values())
        for name in prompt.held
    }


def test_a_stored_run_is_read_back_whole(run: Run, stored: Path) -> None:
    back = load_run(stored)
    assert replace(back, prompts={}) == replace(run, prompts={})
    assert list(back.prompts) == list(run.prompts)
    for name, prompt in run.prompts.items():
        for f in fields(PromptRun):
            mine, other = getattr(prompt, f.name), getattr(back.prompts[name], f.name)
            assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
            assert mine.tobytes() == other.tobytes()


def test_reading_and_writing_again_gives_the_same_bytes(stored: Path, tmp_path: Path) -> None:
    save_run(load_run(stored), tmp_path / "again")
    for name in ("run.json", "run.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (stored / name).read_bytes()


def test_a_run_without_slots_and_without_prompts_is_read_back(run: Run, tmp_path: Path) -> None:
    bare = replace(
        run,
        prompts={},
        **dict.fromkeys(("slots", "residents", "operands", "census", "captures", "ops")),
        **{name: {} for name in ("faults", "stats", "environment")},
    )
    save_run(bare, tmp_path / "bare")
    assert load_run(tmp_path / "bare") == bare


OPTIONAL = sorted({f.name for f in fields(PromptRun)} - REQUIRED_ARRAYS)


@pytest.mark.parametrize("gone", [[name] for name in OPTIONAL] + [OPTIONAL])
def test_what_a_subject_did_not_show_is_absent_on_disk_and_read_back_as_such(run: Run, tmp_path: Path, gone: list[str]) -> None:
    bare = replace(run, prompts={n: replace(p, **dict.fromkeys(gone)) for n, p in run.prompts.items()}, forced=True)
    save_run(bare, tmp_path / "bare")
    stored = load_safetensors((tmp_path / "bare" / "run.safetensors").read_bytes())
    assert not [name for name in stored if name.split("/")[1] in gone]
    back = load_run(tmp_path / "bare")
    assert back.forced
    for prompt in back.prompts.values():
        assert {f.name for f in fields(PromptRun)} - prompt.held == set(gone)


@pytest.mark.parametrize("name", sorted(REQUIRED_ARRAYS))
def test_what_every_subject_shows_may_not_be_absent(run: Run, stored: Path, name: str) -> None:
    with_arrays(stored, {k: v for k, v in arrays_of(run).items() if k != f"0001/{name}"})
    with pytest.raises(RunError, match=f"arrays differ from the list of prompts, first '0001/{name}'"):
        load_run(stored)


def test_an_existing_folder_is_never_written_over(run: Run, stored: Path) -> None:
    before = (stored / "run.json").read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        save_run(run, stored)
    assert (stored / "run.json").read_bytes() == before


def test_numbers_that_are_not_finite_are_not_written(run: Run, tmp_path: Path) -> None:
    name, prompt = next(iter(run.prompts.items()))
    assert prompt.sketch is not None
    sketch = prompt.sketch.copy()
    sketch[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        save_run(replace(run, prompts={name: replace(prompt, sketch=sketch)}), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", [0.3, 0.999])
def test_one_changed_byte_of_the_arrays_is_refused(stored: Path, at: float) -> None:
    path = stored / "run.safetensors"
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match="does not have the digest"):
        load_run(stored)


@pytest.mark.parametrize("name", ["run.json", "run.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "pointer"])
def test_a_missing_or_truncated_file_is_refused_in_one_line(stored: Path, name: str, damage: str) -> None:
    path = stored / name
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        contents = {"empty": b"", "half": data[: len(data) // 2], "pointer": b"version https://git-lfs.github.com/spec/v1\n"}
        path.write_bytes(contents[damage])
    with pytest.raises(RunError) as caught:
        load_run(stored)
    assert "\n" not in str(caught.value)
    said = {"missing": "cannot be read", "empty": "is empty", "half": "", "pointer": "is a Git LFS pointer"}
    assert f"{path} {said[damage]}" in str(caught.value)


def test_another_schema_is_refused_by_name(stored: Path) -> None:
    for schema in ("kolibri-run/3", "kolibri-run/9"):
        edit(stored, lambda document, schema=schema: document.update(schema=schema))
        with pytest.raises(RunError, match=f"has schema '{schema}', this version reads 'kolibri-run/4'"):
            load_run(stored)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["prompts"].append("more"),
        lambda d: d["prompts"].pop(),
        lambda d: d.pop("faults"),
        lambda d: d.pop("golden_digest"),
        lambda d: d["identity"].pop("required_gates"),
        lambda d: d["identity"].update(rank=1),
        lambda d: d["slots"].update(repaired=1),
        lambda d: d["slots"].pop("uses"),
        lambda d: d["stats"].update(fills="many"),
        lambda d: d.update(surplus=1),
    ],
    ids=[
        "prompt without arrays",
        "arrays without prompt",
        "no faults",
        "no golden digest",
        "no required gates",
        "surplus identity",
        "surplus slots",
        "no uses",
        "counter that is no number",
        "surplus field",
    ],
)
def test_a_document_that_does_not_fit_its_schema_is_refused(stored: Path, change: Callable[[dict[str, Any]], None]) -> None:
    edit(stored, change)
    with pytest.raises(RunError):
        load_run(stored)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["slots"].update(violations=[]),
        lambda d: d.update(faults={}),
        lambda d: d["stats"].update(fills=4),
        lambda d: d["identity"].update(required_gates=["golden"]),
    ],
    ids=["violations", "faults", "stats", "required gates"],
)
def test_a_document_edited_by_hand_is_refused(stored: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """What was wrong is in the document, not in the arrays: it needs a digest as the golden's has."""
    edit(stored, change)
    with pytest.raises(RunError):
        load_run(stored)


def test_arrays_missing_or_surplus_are_refused(run: Run, stored: Path) -> None:
    arrays = arrays_of(run)
    for spoiled in ({**arrays, "0000/extra": np.zeros(1)}, {k: v for k, v in arrays.items() if k != "0001/argmax"}):
        with_arrays(stored, spoiled)
        with pytest.raises(RunError, match="arrays differ from the list of prompts"):
            load_run(stored)


def test_the_sum_of_slot_evidence_counts_everything_and_forgets_no_violation() -> None:
    total = SlotEvidence(1, 10, 20, 5, ("a",)) + SlotEvidence(2, 30, 40, 6, ("b", "a"))
    assert total == SlotEvidence(3, 40, 60, 11, ("a", "b", "a"))
