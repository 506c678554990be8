"""A golden whose making ended early: nothing looks finished, and the same command goes on where it stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from making import PROMPTS, Made, command, files, write_prompts

from oracle.errors import GoldenError, UsageError
from oracle.golden import make
from oracle.golden.format import load_golden
from oracle.golden.unfinished import Unfinished, unfinished

PROGRAM = """
import sys
from pathlib import Path
import oracle.golden.make as make
from goldens import mini_checkpoint
from oracle import cli
def announce():
    print("announced", flush=True)
    sys.stdin.readline()
{hook}
cli.main()
"""
HOOKS = {
    "in the second prompt": """
honest = make.truth_pass
def truth_pass(reference, name, *arguments):
    if name == "p1":
        announce()
    return honest(reference, name, *arguments)
make.truth_pass = truth_pass
""",
    "while the floor is measured": """
honest = make.compare_arm
def compare_arm(*arguments):
    announce()
    return honest(*arguments)
make.compare_arm = compare_arm
""",
    "between its two files": """
honest = Path.write_bytes
def write_bytes(path, data):
    written = honest(path, data)
    if path.name.startswith("golden."):
        announce()
    return written
Path.write_bytes = write_bytes
""",
}
MOMENTS = [pytest.param(moment, marks=[] if "floor" in moment else pytest.mark.slow) for moment in HOOKS]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def started(folder: Path, hook: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", PROGRAM.format(hook=hook), *command(folder)]
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)


def stopped(folder: Path, moment: str, with_signal: signal.Signals) -> tuple[int, str]:
    """Start the command, stop it at that moment, and return its exit code and what it said on standard error."""
    with started(folder, HOOKS[moment]) as process:
        assert process.stdout is not None
        assert "announced\n" in iter(process.stdout.readline, "")
        process.send_signal(with_signal)
        try:
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    return process.returncode, errors


COUNTING = """
honest, arms = make.truth_pass, make.compare_arm
def truth_pass(reference, name, *arguments):
    print("computed", name, flush=True)
    return honest(reference, name, *arguments)
def compare_arm(reference, prompt, *arguments):
    print("computed", reference.arm.name, prompt.name, flush=True)
    return arms(reference, prompt, *arguments)
make.truth_pass, make.compare_arm = truth_pass, compare_arm
"""


def gone_on(folder: Path) -> tuple[list[str], str]:
    """Run the same command to its end; what it computed, and what it said on standard error."""
    with started(folder, COUNTING) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return [line.removeprefix("computed ") for line in out.splitlines() if line.startswith("computed ")], errors


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_make_says_so_and_leaves_no_golden(workplace: Path, folder: Path, moment: str) -> None:
    before = files(workplace)
    code, errors = stopped(folder, moment, signal.SIGINT)
    assert code == 130
    assert errors.splitlines()[-1].startswith("error: interrupted; nothing is half written")
    left = {name: data for name, data in files(workplace).items() if not name.startswith("made.unfinished")}
    assert left == before


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_make_goes_on_where_it_stopped_and_gives_the_same_golden(
    workplace: Path, folder: Path, made: Made, moment: str
) -> None:
    code, _ = stopped(folder, moment, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert not (workplace / "made").exists()
    kept = {path.stem for path in (workplace / "made.unfinished").glob("*.safetensors")}
    assert "truth-p0" in kept
    computed, errors = gone_on(folder)
    assert errors.startswith(f"going on from {len(kept)} results of an unfinished run\n")
    truths = {f"truth-{spec.name}" for spec in PROMPTS}
    arms = [arm for of_class in made.golden.document.recipe.floor_arms.values() for arm in of_class]
    floors = {f"floor-{arm}.{spec.name}" for arm in arms for spec in PROMPTS}
    again = {f"truth-{c}" if " " not in c else "floor-" + c.replace(" ", ".") for c in computed}
    assert again == (truths | floors) - kept
    assert load_golden(workplace / "made").document == made.golden.document
    assert (workplace / "made" / "golden.safetensors").read_bytes() == made.packed
    assert not list(workplace.glob("made.unfinished*"))


def test_a_make_that_fails_before_its_first_result_leaves_nothing(workplace: Path, folder: Path) -> None:
    before = files(workplace)
    with pytest.raises(RuntimeError, match="early"), unfinished(workplace / "made", {"recipe": "a"}):
        raise RuntimeError("early")
    assert files(workplace) == before


def leave_unfinished(golden: Path) -> None:
    """The work of recipe `a`, ended after its first result."""
    with contextlib.suppress(RuntimeError), unfinished(golden, {"recipe": "a"}) as work:
        work.put("truth-p0", {"x": np.zeros(100)})
        raise RuntimeError


def test_the_work_of_another_job_is_refused_and_kept(workplace: Path, made: Made) -> None:
    golden = workplace / "made"
    leave_unfinished(golden)
    before = files(workplace)
    with (
        pytest.raises(
            UsageError, match="holds the unfinished work of another recipe, checkpoint, tokenizer or environment; remove it"
        ),
        unfinished(golden, {"recipe": "b"}),
    ):
        pass
    assert files(workplace) == before
    with unfinished(golden, {"recipe": "a"}) as work:
        assert work.found == 1
        assert work.get("truth-p0") is not None
    assert not list(workplace.glob("made*"))


def test_a_recipe_a_checkpoint_or_an_environment_of_its_own_makes_a_job_of_its_own(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make.plan(made.checkpoint, PROMPTS)
    assert make.plan(made.checkpoint, PROMPTS).digests() == job.digests()
    others = [make.plan(made.checkpoint, PROMPTS[:2]), make.plan(made.checkpoint, PROMPTS, stop_at_eos=True)]
    monkeypatch.setattr(make, "arithmetic_record", lambda: {"numpy": "another"})
    others.append(make.plan(made.checkpoint, PROMPTS))
    assert all(other.digests()["recipe"] != job.digests()["recipe"] for other in others)
    assert job.digests()["checkpoint"] == made.checkpoint.digest()


def test_prompts_that_another_tokenizer_reads_are_a_job_of_their_own(made: Made) -> None:
    """Neither the recipe, which holds texts, nor the checkpoint's digest would change."""
    job = make.plan(made.checkpoint, PROMPTS)
    first, *others = job.prompts
    reread = replace(job, prompts=(replace(first, ids=first.ids[::-1]), *others))
    assert reread.digests() != job.digests()


def test_an_unfinished_folder_is_never_seen_without_its_job(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the job is written, the next run would take the folder for another's."""
    seen: list[bool] = []
    honest = os.rename
    monkeypatch.setattr(os, "rename", lambda a, b: (seen.append((Path(a) / "job.json").is_file()), honest(a, b)))
    with unfinished(workplace / "made", {"recipe": "a"}):
        pass
    assert seen == [True]


def test_two_makes_of_one_golden_are_kept_apart(workplace: Path) -> None:
    golden = workplace / "made"
    with (
        unfinished(golden, {"recipe": "a"}),
        pytest.raises(UsageError, match=r"is in the hands of another `golden make`; wait for it"),
        unfinished(golden, {"recipe": "a"}),
    ):
        pass


def test_a_damaged_result_is_refused_by_name(workplace: Path) -> None:
    golden = workplace / "made"
    leave_unfinished(golden)
    path = workplace / "made.unfinished" / "truth-p0.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with (
        pytest.raises(GoldenError, match=r"truth-p0\.safetensors is damaged .*; remove it and run `golden make` again"),
        unfinished(golden, {"recipe": "a"}) as work,
    ):
        work.get("truth-p0")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_result_holds_what_is_not_finite(workplace: Path, bad: float) -> None:
    with (
        pytest.raises(ValueError, match="holds NaN or infinity"),
        unfinished(workplace / "made", {"recipe": "a"}) as work,
    ):
        work.put("truth-p0", {"x": np.array([bad])})
    assert not list(workplace.glob("made*"))


def test_in_memory_results_are_found_again_too() -> None:
    work = Unfinished()
    assert work.get("a") is None
    work.put("a", {"x": np.arange(3)})
    kept = work.get("a")
    assert kept is not None
    assert kept["x"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_a_recipe_file_that_changed_between_runs_is_another_job(workplace: Path, folder: Path) -> None:
    stopped(folder, "in the second prompt", signal.SIGKILL)
    write_prompts(workplace / "good.jsonl", PROMPTS[:2])
    with started(folder, "") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "holds the unfinished work of another recipe" in errors
