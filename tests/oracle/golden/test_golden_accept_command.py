"""`golden accept` on the command line: who may, what must be said, and that a refusal changes nothing on disk."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from changed_goldens import rebuilt_with_bytes, with_noise
from rich.console import Console

import oracle.judge.session as session
from oracle import cli
from oracle.golden.accept import CI_VARIABLES, TEST_VARIABLES
from oracle.golden.format import Golden, load_golden, write_golden
from oracle.judge.jobs import run_job
from oracle.kolibri1.synthetic import write_synthetic
from oracle.report.golden_summary import print_golden, summarize
from oracle.serialization import canonical_json

Call = Callable[..., tuple[int, str, str]]
REASON = ("--reason", "numpy sums in another order")
SCRIPT = "import sys; from oracle.cli import main; main()"


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def folder(tiny_golden: tuple[Golden, bytes], tiny_folder: Path, tiny_golden_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint with its golden, and a new golden whose values moved within the floor."""
    shutil.copytree(tiny_folder, tmp_path / "checkpoint")
    shutil.copytree(tiny_golden_folder, tmp_path / "checkpoint" / "golden")
    write_golden(tmp_path / "new", *rebuilt_with_bytes(with_noise(tiny_golden[0], 1e-7)))
    return tmp_path


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run `golden accept` as from a shell, not from a test: exit code, standard output, standard error."""

    def run(*arguments: object, **environment: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        for name in (*CI_VARIABLES, *TEST_VARIABLES):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        words = ["kolibri-oracle", "golden", "accept", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def refused(call: Call, folder: Path, *arguments: object, **environment: str) -> str:
    """The one line of a refusal, which changed nothing."""
    before = files(folder)
    code, out, err = call(*arguments, **environment)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert files(folder) == before
    return err


def test_a_reviewed_golden_is_accepted_and_judged_by(call: Call, folder: Path) -> None:
    former, new = load_golden(folder / "checkpoint" / "golden"), load_golden(folder / "new")
    stated = ("--digest", new.digest, "--checkpoint", "checkpoint", "--json", "accepted.json")
    code, out, err = call("new", *REASON, *stated)
    assert (code, err) == (0, "")
    placed = load_golden(folder / "checkpoint" / "golden")
    [entry] = placed.document.history
    assert (entry.former, entry.headline, entry.reason) == (former.digest, "arithmetic", REASON[1])
    assert "\nARITHMETIC\n" in out
    assert f"{placed.digest}, in the place of {former.digest}\n" in out
    document = json.loads((folder / "accepted.json").read_bytes())
    assert (folder / "accepted.json").read_bytes() == canonical_json(document)
    assert (document["digest"], document["reason"]) == (placed.digest, REASON[1])
    assert document["diff"]["headline"] == "arithmetic"
    assert sorted(p.name for p in (folder / "checkpoint").iterdir() if p.name.startswith(".")) == []
    assert f"replaced {former.digest}: arithmetic; reason: {REASON[1]}\n" in shown(placed)


@pytest.mark.parametrize("variable", ["CI", "GITHUB_ACTIONS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"])
def test_ci_and_test_runs_are_refused_first(call: Call, folder: Path, variable: str) -> None:
    """Before anything is read, and whatever else is stated."""
    message = refused(call, folder, "nowhere", *REASON, "--digest", "sha256:0", **{variable: "true"})
    assert f"({variable} is set)" in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("new", "--reason", " "), "--reason: a reason has at least 3 words"),
        (("new", "--reason", "fix"), "say what moved the golden and why that is right"),
        (("new.unfinished", *REASON), "new.unfinished is unfinished"),
        (("checkpoint/golden", *REASON), "is the golden that is in place"),
        (("twin", *REASON), "both goldens are the same: there is nothing to accept"),
        (("none", *REASON), "none/golden.json cannot be read"),
        (("new", *REASON, "--golden", "none"), "none/golden.json cannot be read"),
        (("new", *REASON, "--golden", "nowhere/golden"), "its folder does not exist"),
        (("new", *REASON), "no terminal can ask; review it by `golden diff`, then pass --digest sha256:"),
        (("new", *REASON, "--digest", "sha256:0123"), "--digest sha256:0123 is not the new golden's, which is sha256:"),
        (("new", *REASON, "--json", "checkpoint/golden/x.json"), "which is read; write results elsewhere"),
        (("new", *REASON, "--json", "new/x.json"), "which is read; write results elsewhere"),
    ],
)
def test_what_cannot_be_accepted_is_one_line(call: Call, folder: Path, arguments: tuple[str, ...], named: str) -> None:
    shutil.copytree(folder / "checkpoint" / "golden", folder / "twin")
    assert named in refused(call, folder, *arguments, "--checkpoint", "checkpoint")


def test_a_reason_must_be_given(call: Call, folder: Path) -> None:
    before = files(folder)
    code, out, err = call("new", "--checkpoint", "checkpoint")
    assert (code, out, "--reason" in err) == (2, "", True)
    assert files(folder) == before


def test_a_golden_that_its_own_gate_refuses_is_not_accepted(
    call: Call, folder: Path, reseal: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads, and its chain is not the argmax of its logits."""
    monkeypatch.setattr(session, "run_jobs", lambda jobs, workers, done: [run_job(job) for job in jobs])

    def forge(document: dict[str, Any]) -> None:
        chain = document["prompts"][0]["generated"]
        chain[-1] = next(i for i in range(96) if i not in chain)

    reseal(folder / "new", forge)
    before = files(folder)
    digest = load_golden(folder / "new").digest
    code, out, _ = call("new", *REASON, "--checkpoint", "checkpoint", "--digest", digest)
    assert code == 1
    assert "a generated id is not the argmax of its stored logits" in out
    assert files(folder) == before


def test_a_checkpoint_that_is_not_both_goldens_own_is_refused(
    call: Call, folder: Path, tiny_golden: tuple[Golden, bytes]
) -> None:

    write_synthetic(folder / "other", seed=5)
    digest = load_golden(folder / "new").digest
    where = ("--golden", "checkpoint/golden", "--checkpoint", "other")
    assert "was made from another checkpoint" in refused(call, folder, "new", *REASON, *where, "--digest", digest)


def shown(golden: Golden) -> str:
    """What `golden show` prints."""
    out = StringIO()
    print_golden(Console(file=out, width=200), summarize(golden))
    return out.getvalue()


def by_hand(folder: Path, answer: str) -> tuple[int, str]:
    """`golden accept` on a terminal, answered; exit code and what the terminal showed."""
    environment = {k: v for k, v in os.environ.items() if k not in (*CI_VARIABLES, *TEST_VARIABLES)}
    command = [sys.executable, "-c", SCRIPT, "golden", "accept", "new", *REASON, "--checkpoint", "checkpoint"]
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                data = os.read(controller, 4096)
            except OSError:  # the other end is closed
                break
            shown += data
            if shown.rstrip().endswith(b"[y/N]:"):
                os.write(controller, answer.encode() + b"\n")
    os.close(controller)
    return process.returncode, shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 2), ("", 2)])
def test_on_a_terminal_the_diff_is_shown_and_one_is_asked(folder: Path, answer: str, code: int) -> None:
    former = load_golden(folder / "checkpoint" / "golden").digest
    found, shown = by_hand(folder, answer)
    assert found == code, shown
    assert shown.index("ARITHMETIC") < shown.index("Replace ")
    placed = load_golden(folder / "checkpoint" / "golden")
    assert bool(placed.document.history) == (code == 0)
    assert (placed.digest == former) == (code != 0)
    assert ("not confirmed" in shown) == (code != 0)
