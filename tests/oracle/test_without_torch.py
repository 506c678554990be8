"""Judging needs no torch: a replay and a session on the simulated device, where none of the heavy libraries can be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from goldens import mini_checkpoint
from oracle.golden.format import Golden
from oracle.subjects.harness import drive
from oracle.subjects.perfect import FACTORY
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.run import Run, save_run

Python = Callable[..., tuple[int, str, str]]

BLOCKED = ("torch", "transformers", "accelerate", "numba", "llvmlite", "tokenizers", "ttnn")
BLOCKER = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def found(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {BLOCKED} else find(name, path, target)

PathFinder.find_spec = classmethod(found)
"""


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run this Python with arguments where `BLOCKED` cannot be imported, by workers neither: exit code, output, errors."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCKER)
    path = os.pathsep.join([str(tmp_path / "site"), *(entry for entry in sys.path if entry)])

    def run(*arguments: object) -> tuple[int, str, str]:
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    return run


GATE = ("-c", "from oracle.cli import main; main()", "gate")


def test_the_libraries_are_out_of_reach(python: Python) -> None:
    """The control: without it, the other tests would pass in any environment."""
    script = "import sys\nfor name in sys.argv[1:]:\n    try: __import__(name)\n    except ImportError as e: print(e)"
    code, out, _ = python("-c", script, *BLOCKED)
    assert (code, out.splitlines()) == (0, [f"No module named {name!r}" for name in BLOCKED])


def test_a_stored_run_is_judged(
    python: Python, tiny_golden: tuple[Golden, bytes], tiny_folder: Path, tiny_golden_folder: Path, tmp_path: Path
) -> None:
    golden = tiny_golden[0]
    subject = FACTORY.open(SubjectRequest(tiny_folder, tiny_golden_folder))
    run = Run(
        subject.identity,
        golden.digest,
        {p.name: drive(subject, p, golden.probes_of(p.name).positions) for p in golden.prompts},
    )
    save_run(run, tmp_path / "run", control=run)
    options = ("--checkpoint", tiny_folder, "--golden", tiny_golden_folder, "--replay", tmp_path / "run")
    code, out, error = python(*GATE, *options)
    assert (code, error) == (0, ""), out
    assert out.endswith("\nPASS\n")


def test_the_reference_is_refused_in_one_line(python: Python) -> None:
    code, out, error = python(*GATE, "--subject", "reference")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: subject 'reference' cannot be used here: No module named ")
    assert "pip install 'kolibri-oracle[reference]'" in error


@pytest.mark.slow
def test_the_decoder_on_the_simulated_device_is_judged(python: Python, tmp_path: Path) -> None:
    """Worker processes, the device, every gate and every control; of the prompts one is enough."""
    code, out, error = python(*GATE, "--budget", "0", "--state", tmp_path / "state", "--json", tmp_path / "verdict.json")
    assert (code, error.startswith("unfinished;")) == (0, True), out + error
    verdict = json.loads((tmp_path / "verdict.json").read_bytes())
    assert (verdict["verdict"], verdict["partial"], verdict["subject"]["device"]["kind"]) == ("pass", True, "sim")
    assert verdict["gates"][0]["measured"]["chat_template"] == "transformers is not installed: chats not rendered"


def test_the_decoder_opens_and_steps(python: Python) -> None:
    script = """
import sys
from pathlib import Path
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.registry import subject_factory
subject = subject_factory("tt").open(SubjectRequest(Path(sys.argv[1])))
subject.reset()
subject.start()
print(subject.step(33).logits.shape)
"""
    assert python("-c", script, mini_checkpoint()) == (0, "(512,)\n", "")
