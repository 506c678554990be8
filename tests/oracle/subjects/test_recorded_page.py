"""The numpy example of `docs/recorded-runs.md`, run as it stands there; and its tables, which must name the whole format."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest

from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden
from oracle.judge.session import SessionOptions, run_session
from oracle.subjects.harness import argmax_lowest_id, digest_embedding
from oracle.subjects.perfect import FACTORY
from oracle.subjects.protocol import Subject, SubjectRequest
from oracle.subjects.run import RUN_SCHEMA, PromptRun, RunDocument

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "recorded-runs.md").read_text(encoding="utf-8")


def write_pass(subject: Subject, prompt: PromptEvidence, path: Path, scale: float) -> None:
    """What a script may keep of an engine that it asks step by step; its logits are `scale` times too large."""
    subject.start()
    steps = [subject.step(token) for token in prompt.fed]
    subject.start()
    free, token = [], prompt.fed[0]
    for index in range(len(prompt.fed)):
        step = subject.step(token)
        free.append(step.token)
        token = argmax_lowest_id(step.logits) if index + 1 >= len(prompt.prompt_ids) else prompt.prompt_ids[index + 1]
    np.savez(
        path,
        ids=np.array([s.token for s in steps], np.int32),
        positions=np.array([s.position for s in steps], np.int32),
        row_digests=np.stack([digest_embedding(s.embedding) for s in steps]),
        logits=np.stack([s.logits for s in steps]) * np.float32(scale),
        free_ids=np.array(free, np.int32),
        chain=np.array([*free[len(prompt.prompt_ids) :], token], np.int32),
    )


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "pass"), (1.05, "fail")])
def test_the_numpy_example_writes_a_run_that_is_judged(
    tiny_golden: tuple[Golden, bytes],
    tiny_folder: Path,
    tiny_golden_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scale: float,
    verdict: str,
) -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len([line for line in block.splitlines() if line]) <= 17
    subject = FACTORY.open(SubjectRequest(tiny_folder, tiny_golden_folder))
    for name, factor in (("mine", scale), ("perfect", 1.0)):
        (tmp_path / name).mkdir()
        for prompt in tiny_golden[0].prompts:
            write_pass(subject, prompt, tmp_path / name / f"{prompt.name}.npz", factor)
    (tmp_path / "golden").symlink_to(tiny_golden_folder)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "recorded-runs.md", "exec"), {})
    report = run_session(SessionOptions(tiny_folder, tiny_golden_folder, replay=tmp_path / "run"))
    verdicts = {gate.name: gate.verdict for gate in report.gates}
    assert (report.verdict, verdicts["logits"], verdicts["residual"]) == (verdict, verdict, "not applicable")
    assert report.run.identity.name == "mine"


def test_the_tables_name_every_array_and_every_field() -> None:
    cells = [row.split("|")[1] for row in PAGE.splitlines() if row.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    assert {f.name for f in fields(PromptRun)} <= named
    assert {f.alias or name for name, f in RunDocument.model_fields.items()} <= named
    assert f"`{RUN_SCHEMA}`" in PAGE


def test_the_tables_say_which_arrays_are_optional() -> None:
    for f in fields(PromptRun):
        [row] = [r for r in PAGE.splitlines() if r.startswith("| `") and f"`{f.name}`" in r.split("|")[1]]
        optional = "optional" in row.split("|")[2] or ", with " in row.split("|")[2]
        assert optional == (f.default is not MISSING), f.name
