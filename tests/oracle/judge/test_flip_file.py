"""Flip files: the same bytes live, replayed and on every Python; refused where anything in them contradicts anything else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_cases import mini_golden, with_prompt
from stored_flips import STORED, with_planted_flips

from goldens import mini_checkpoint
from oracle.errors import FlipFileError
from oracle.judge.flip_file import FLIPS_SCHEMA, FlipDocument, flip_document, load_flips
from oracle.judge.flip_record import signature
from oracle.judge.gate import Case
from oracle.judge.session import Recorded, SessionOptions, judge_recorded, open_session
from oracle.serialization import canonical_json, digest
from oracle.subjects.run import save_run

SCRIPT = str(Path(sys.executable).parent / "kolibri-oracle")


@pytest.fixture(scope="module")
def planted(case: Case) -> Case:
    """The perfect run with twelve flips of every kind."""
    return replace(case, run=with_planted_flips(case.golden, case.run))


@pytest.fixture(scope="module")
def stored_run(planted: Case, case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flips") / "run"
    save_run(planted.run, folder, control=case.run)
    return folder


def written(recorded: Recorded, selected: tuple[str, ...] = ("flips",)) -> bytes:
    """The flip file of a judged session."""
    return flip_document(recorded.golden, judge_recorded(recorded, selected, partial=True)).to_json()


def replayed(folder: Path) -> Recorded:
    opened = open_session(SessionOptions(mini_checkpoint(), mini_golden(), replay=folder))
    assert opened.stored is not None
    assert opened.control is not None
    return Recorded(opened.golden, opened.checkpoint, opened.stored, opened.control, True, ())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy of the stored flip file that a test may damage."""
    path = tmp_path / "flips.json"
    path.write_bytes(STORED.read_bytes())
    return path


def forged(path: Path, change: Callable[[dict[str, Any]], None], sign: bool = True) -> None:
    """Edit a flip file as a careful forger would: signature and digest renewed, canonical again."""
    document = json.loads(path.read_bytes())
    change(document)
    if sign:
        lines = sorted((f["prompt"], f["position"], f["expected"], f["got"]) for f in document["flips"])
        text = "".join(f"{document['golden_digest']} {p} {i} {e} {g}\n" for p, i, e, g in lines)
        document["flip_signature"] = digest(text.encode())
    document.pop("digest", None)
    path.write_bytes(canonical_json({**document, "digest": digest(canonical_json(document))}))


def test_a_replay_gives_the_stored_bytes_on_every_machine_and_python(stored_run: Path, planted: Case, case: Case) -> None:
    live = Recorded(case.golden, case.checkpoint, planted.run, case.run, True, ())
    assert written(live) == written(replayed(stored_run)) == STORED.read_bytes(), (
        "another flip file than the stored one; if the shipped golden was remade: python tests/oracle/judge/stored_flips.py"
    )


def test_the_stored_file_holds_flips_of_every_kind_each_with_its_explanation() -> None:
    document = load_flips(STORED)
    assert {flip.label for flip in document.flips} == {"near-tie", "router-near-tie", "hard"}
    assert len(document.flips) == 12
    assert len({flip.explanation for flip in document.flips}) > 10
    assert {flip.set_layer is None for flip in document.flips} == {flip.sketch_layer is None for flip in document.flips}


def test_a_replay_is_judged_by_one_process_after_the_other_to_one_verdict_and_one_file(
    stored_run: Path, tmp_path: Path
) -> None:
    """By the command line too: `--flips` of a replay is the stored file, whatever gates are judged beside."""
    done = subprocess.run(
        [SCRIPT, "gate", "--replay", str(stored_run), "--flips", str(tmp_path / "flips.json"), "--only", "flips"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "flips.json").read_bytes() == STORED.read_bytes()
    assert f"signature {load_flips(STORED).flip_signature}" in done.stdout
    for flip in load_flips(STORED).flips:
        assert flip.explanation in done.stdout


def few(recorded: Recorded, count: int) -> Recorded:
    """The first prompts alone."""
    prompts = recorded.golden.prompts[:count]

    def cut(run: Any) -> Any:
        return replace(run, prompts={p.name: run.prompts[p.name] for p in prompts})

    golden = replace(recorded.golden, prompts=prompts)
    return replace(recorded, golden=golden, run=cut(recorded.run), perfect=cut(recorded.perfect))


@pytest.mark.slow
def test_a_thousand_replays_give_one_verdict_and_one_flip_file(stored_run: Path) -> None:
    recorded = few(replayed(stored_run), 1)
    reports = (judge_recorded(recorded, ("flips",), partial=True) for _ in range(1000))
    seen = {(canonical_json(report.to_json()), flip_document(recorded.golden, report).to_json()) for report in reports}
    assert len(seen) == 1


def test_the_file_says_who_was_judged_by_which_golden_and_bands(case: Case, planted: Case) -> None:
    document = load_flips(STORED)
    assert document.golden_digest == case.golden.digest
    assert document.subject == planted.run.identity
    assert document.bands == case.calibration.bands
    assert document.flip_signature == signature(case.golden.digest, document.flips)
    assert [(f.prompt, f.position) for f in document.flips] == sorted((f.prompt, f.position) for f in document.flips)


def test_a_run_that_is_not_aligned_says_so_and_not_that_it_has_no_flips(planted: Case, case: Case, tmp_path: Path) -> None:
    prompt = case.golden.prompts[0]
    late = with_prompt(planted, prompt, positions=planted.run.prompts[prompt.name].positions + 1)
    path = tmp_path / "late.json"
    path.write_bytes(written(Recorded(case.golden, case.checkpoint, late.run, case.run, True, ())))
    assert (load_flips(path).aligned, load_flips(path).flips) == (False, ())
    assert load_flips(STORED).aligned is True


def change_flip(index: int = 0, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["flips"][index].update(values)


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a label": (change_flip(label="router-near-tie"), "flips.0: Value error, label 'router-near-tie' contradicts the numbers"),
    "an explanation": (change_flip(explanation="explained by the weather"), "the explanation contradicts the numbers"),
    "a softened regret": (change_flip(1, regret=1e-4), "contradicts the margin"),
    "a negative position": (change_flip(position=-1), "flips.0.position"),
    "an unknown field": (change_flip(note="fine"), "flips.0.note"),
    "a flip twice": (lambda d: d["flips"].insert(0, d["flips"][0]), "is listed twice"),
    "flips out of order": (lambda d: d["flips"].reverse(), "is listed out of order"),
    "other bands": (
        lambda d: d["bands"].update(regret=0.5 * d["bands"]["regret"]),
        "was classified with other bands than the file's",
    ),
    "another logit type": (lambda d: d.update(logit_dtype="bfloat16"), "was classified with other bands than the file's"),
    "inflated bands": (lambda d: d["bands"].update(regret=1e3), "inflated"),
    "flips that were never compared": (lambda d: d.update(aligned=False), "not aligned has no flips"),
    "another schema": (lambda d: d.update(schema="kolibri-flips/2"), f"this version reads {FLIPS_SCHEMA!r}"),
    "no schema": (lambda d: d.pop("schema"), "has schema None"),
    "a missing field": (lambda d: d.pop("aligned"), "aligned: Field required"),
    "a class that is none": (lambda d: d["subject"].update(numeric_class="int4"), "subject.numeric_class"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_file_that_contradicts_itself_is_refused_in_one_line_however_well_sealed(file: Path, name: str) -> None:
    change, named = FORGERIES[name]
    forged(file, change)
    with pytest.raises(FlipFileError) as caught:
        load_flips(file)
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert message.startswith(str(file))
    assert message.endswith("write it again with `kolibri-oracle gate --flips FILE`")


def test_a_signature_of_other_flips_is_refused(file: Path) -> None:
    forged(file, change_flip(0, got=511), sign=False)
    with pytest.raises(FlipFileError, match="flip_signature is not that of the flips"):
        load_flips(file)
    forged(file, lambda document: document["flips"].pop(0))
    assert len(load_flips(file).flips) == 11


def test_a_file_whose_digest_or_serialization_does_not_hold_is_refused(file: Path) -> None:
    value = json.loads(STORED.read_bytes())
    file.write_bytes(canonical_json({**value, "digest": "sha256:" + "0" * 64}))
    with pytest.raises(FlipFileError, match="does not have its own digest"):
        load_flips(file)
    file.write_text(json.dumps(value, indent=1), encoding="utf-8")
    with pytest.raises(FlipFileError, match="not in the canonical serialization"):
        load_flips(file)


@pytest.mark.parametrize(
    ("data", "named"),
    [(None, "cannot be read"), (b"", "is empty"), (b"{", "is damaged"), (b"[]", "not a JSON object"), (b'{"a":NaN}', "NaN")],
)
def test_a_file_that_is_none_is_refused(file: Path, data: bytes | None, named: str) -> None:
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(FlipFileError, match=named):
        load_flips(file)


def test_reading_and_writing_again_gives_the_same_bytes() -> None:
    document = load_flips(STORED)
    assert document.to_json() == STORED.read_bytes()
    assert FlipDocument.model_validate(json.loads(document.to_json())).sealed() == document
