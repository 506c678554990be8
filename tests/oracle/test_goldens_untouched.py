"""Running gates under pytest leaves the golden's bytes as they were, however the session is narrowed and whatever is set."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import oracle.judge.session as session
from oracle.judge.jobs import run_job

pytest_plugins = ["pytester"]

TWO_GATES = """
import pytest

@pytest.mark.kolibri_gate("golden")
def test_golden(gate):
    assert gate["verdict"] == "pass"

@pytest.mark.kolibri_gate("flips")
def test_flips(gate):
    assert gate["verdict"] == "pass"
    assert False, "so that --lf has something to run again"
"""


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def test_no_session_writes_a_golden(
    pytester: pytest.Pytester,
    tiny_folder: Path,
    tiny_golden_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = shutil.copytree(tiny_folder, tmp_path / "checkpoint")
    shutil.copytree(tiny_golden_folder, checkpoint / "golden")
    for name in ("UPDATE_GOLDEN", "UPDATE_GOLDENS", "UPDATE_SNAPSHOTS", "KOLIBRI_UPDATE_GOLDEN"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(session, "run_jobs", lambda jobs, *_, **__: [run_job(job) for job in jobs])
    pytester.makepyfile(test_two_inner_gates=TWO_GATES)  # a name that no module of this suite has
    before = content(checkpoint)
    options = ("-p", "no:hypothesispytest", "--kolibri-subject", "perfect", f"--kolibri-checkpoint={checkpoint}")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1, failed=1)
    for narrowed in (("-k", "flips"), ("--lf",)):
        assert pytester.runpytest_inprocess(*options, *narrowed).parseoutcomes()["failed"] == 1
    assert content(checkpoint) == before


def test_no_option_of_the_plugin_asks_for_one(pytester: pytest.Pytester) -> None:
    """Whoever adds one must come here first."""
    shown = pytester.runpytest_inprocess("-p", "no:hypothesispytest", "--help").outlines
    options = [line.split()[0] for line in shown if line.lstrip().startswith("--kolibri-")]
    assert options
    assert not [option for option in options if any(word in option for word in ("update", "write", "accept", "record", "make"))]
