"""A stored run is judged to the same document, byte for byte, whatever machine and whatever libraries judge it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.golden.format import Golden
from oracle.judge import golden_gate, session
from oracle.judge.gate import Case
from oracle.judge.session import SessionOptions, run_session
from oracle.serialization import canonical_json
from oracle.subjects.harness import drive
from oracle.subjects.perfect import FACTORY
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.run import PromptRun, Run, save_run

ANOTHER_LIBRARY = '''
"""numpy as another machine may have it: functions that IEEE 754 does not fix are off in their last bits."""
import ml_dtypes  # adds loops to numpy's own functions
import numpy as np

def off(function):
    def wrapped(*args, **kwargs):
        return function(*args, **kwargs) * (1 + 2**-50)
    return wrapped

for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "tanh", "cbrt", "hypot",
             "quantile", "percentile", "median", "mean", "std", "var", "dot", "einsum", "interp", "logaddexp"):
    setattr(np, name, off(getattr(np, name)))
'''


@pytest.fixture
def stored(tiny_golden: tuple[Golden, bytes], tiny_folder: Path, tiny_golden_folder: Path, tmp_path: Path) -> Path:
    """A run that is off by noise at every position and flips at some, with its control run."""
    golden, rng = tiny_golden[0], np.random.default_rng(5)
    subject = FACTORY.open(SubjectRequest(tiny_folder, tiny_golden_folder))
    perfect = Run(
        subject.identity, golden.digest, {p.name: drive(subject, p, golden.probes_of(p.name).positions) for p in golden.prompts}
    )

    def shaken(run: PromptRun) -> PromptRun:
        def off(values: np.ndarray | None) -> np.ndarray:
            assert values is not None
            return (values * (1 + 1e-4 * rng.normal(size=values.shape))).astype(values.dtype)

        top_ids = run.top_ids.copy()
        top_ids[3, :2] = run.top_ids[3, [1, 0]]
        return replace(
            run,
            logits_at_golden=off(run.logits_at_golden),
            logsumexp=off(run.logsumexp) + 0.01,  # room, so that no probabilities add to more than 1
            sketch=off(run.sketch),
            expert_weights=off(run.expert_weights),
            router_logits=off(run.router_logits),
            top_ids=top_ids,
            argmax=top_ids[:, 0].copy(),
        )

    save_run(replace(perfect, prompts={n: shaken(r) for n, r in perfect.prompts.items()}), tmp_path / "run", control=perfect)
    return tmp_path / "run"


@pytest.fixture
def here(stored: Path, tiny_folder: Path, tiny_golden_folder: Path) -> bytes:
    """The document as this process judges it."""
    return canonical_json(run_session(SessionOptions(tiny_folder, tiny_golden_folder, replay=stored)).to_json())


def test_another_librarys_last_bits_and_another_processor_change_no_byte(
    stored: Path, here: bytes, tiny_folder: Path, tiny_golden_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(ANOTHER_LIBRARY)
    active = "import math, numpy as np; assert np.exp(1.0) != math.exp(1.0)"
    options = ("--checkpoint", tiny_folder, "--golden", tiny_golden_folder, "--replay", stored, "--json", tmp_path / "there")
    done = subprocess.run(
        [sys.executable, "-c", f"{active}; from oracle.cli import main; main()", "gate", *map(str, options)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "PYTHONHASHSEED": "7",
            "LC_ALL": "C",
            "NPY_DISABLE_CPU_FEATURES": " ".join(dispatched_features()),
        },
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert (tmp_path / "there").read_bytes() == here
    assert b'"kl p90":' in here
    assert b'"label":"hard"' in here


def dispatched_features() -> list[str]:
    """What numpy chooses code by on this processor, and can do without."""
    core = getattr(np, "_core", None) or getattr(np, "core")  # noqa: B009 - numpy 1.26 has only the latter
    umath = core._multiarray_umath
    return [feature for feature in umath.__cpu_dispatch__ if umath.__cpu_features__.get(feature)]


def test_what_is_installed_changes_no_byte(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a tokenizer has more to say of a golden, and says it in `golden verify`."""
    save_run(case.run, tmp_path / "run", control=case.run)
    options = SessionOptions(mini_checkpoint(), mini_checkpoint() / "golden", replay=tmp_path / "run")
    documents = set()
    for available in (False, True):
        for module in (golden_gate, session):
            monkeypatch.setattr(module, "tokenizer_available", lambda available=available: available)
            monkeypatch.setattr(module, "transformers_available", lambda available=available: available)
        documents.add(canonical_json(run_session(options).to_json()))
    assert len(documents) == 1
    assert b"a replay compares no texts" in documents.pop()
