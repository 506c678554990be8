"""A session within a budget: killed or cut short, it loses at most what ran, and ends with the report of one whole session."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from oracle import cli
from oracle.golden.format import Golden, write_golden
from oracle.judge import budget
from oracle.judge.budget import run_within
from oracle.judge.jobs import PromptJob, PromptOutcome, run_job
from oracle.judge.priority import most_telling_first
from oracle.judge.unfinished_session import unfinished_session
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import SubjectRequest

Invent = Callable[..., tuple[Golden, bytes]]
LENGTHS = {"first": (5, 14), "second": (3, 12), "third": (4, 20), "fourth": (2, 12)}
SUBJECT = '''
import os
import time
from pathlib import Path

from oracle.errors import DeviceFault
from oracle.golden.format import load_golden
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.perfect import HOST_GATES, PerfectSubject
from oracle.subjects.protocol import SubjectIdentity


class Counted(PerfectSubject):
    """The perfect subject under another name; each opening leaves a file, and one of them may hang or fault."""

    @property
    def identity(self):
        return SubjectIdentity("counted", self._numeric_class, self._numeric_class, HOST_GATES)

    def step(self, token):
        if (self.number, len(self._fed)) == (int(os.environ.get("HANG_AT", "-1")), 6):
            Path(os.environ["OPENED"], "hangs").touch()
            time.sleep(600)
        if (self.number, len(self._fed)) == (int(os.environ.get("FAULT_AT", "-1")), 6):
            raise DeviceFault("card", "lost: it fell off the bus")
        return super().step(token)


class Factory:
    arms = {"bf16": "bf16", "fp32": "fp32"}
    devices = ()
    plants = {"rust/dust": "device-fault:rust"}

    def open(self, request, observer=None):
        folder = Path(os.environ["OPENED"])
        number = len(list(folder.iterdir()))
        (folder / f"{number} {request.plant or 'prompt'}".replace("/", "-")).touch()
        if request.plant:
            raise DeviceFault("rust", "planted")
        golden = load_golden(request.checkpoint / "golden")
        subject = Counted(golden, Checkpoint.open(request.checkpoint), self.arms[request.arm or "bf16"])
        subject.number = number
        return subject


FACTORY = Factory()
'''


@pytest.fixture(scope="module")
def tiny_four(tiny: Checkpoint, invented_golden: Invent) -> tuple[Golden, bytes]:
    return invented_golden(tiny, lengths=LENGTHS)


@pytest.fixture(scope="module")
def another_four(tiny: Checkpoint, invented_golden: Invent) -> tuple[Golden, bytes]:
    return invented_golden(tiny, seed=1, lengths=LENGTHS)


@pytest.fixture
def place(tiny_folder: Path, tiny_four: tuple[Golden, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a checkpoint, a golden of four prompts, and the subject `counted` on the path."""
    shutil.copytree(tiny_folder, tmp_path / "checkpoint")
    write_golden(tmp_path / "checkpoint" / "golden", *tiny_four)
    site = tmp_path / "site"
    info = site / "counted_subject-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "counted_subject.py").write_text(SUBJECT)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counted-subject\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kolibri_oracle.subjects]\ncounted = counted_subject:FACTORY\n")
    (tmp_path / "opened").mkdir()
    monkeypatch.delitem(sys.modules, "counted_subject", raising=False)  # an earlier test's, from another folder
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, sys.path)]))
    monkeypatch.setenv("OPENED", str(tmp_path / "opened"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


GATE = ("gate", "--subject", "counted", "--checkpoint", "checkpoint", "--jobs", "1", "--json", "verdict.json")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run `gate` in this process: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kolibri-oracle", *GATE, *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def verdict() -> dict[str, Any]:
    return json.loads(Path("verdict.json").read_bytes())


def opened(place: Path) -> int:
    return len(list((place / "opened").iterdir()))


def kept(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "kolibri-gate.unfinished").glob("p*"))


@pytest.fixture
def whole(place: Path, call: Call) -> dict[str, Any]:
    """The report of a session without a budget."""
    code, out, err = call()
    assert code == 0, out + err
    report = verdict()
    Path("verdict.json").unlink()
    shutil.rmtree(place / "opened")
    (place / "opened").mkdir()
    return report


def test_a_killed_session_loses_what_ran_and_ends_like_one_that_was_not(
    place: Path, whole: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANG_AT", "3")
    command = [sys.executable, "-c", "from oracle.cli import main; main()", *GATE, "--budget", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not (place / "opened" / "hangs").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
    assert not Path("verdict.json").exists()
    names = kept(place)
    assert len(names) == 3
    assert "plant-rust%2Fdust" in names
    monkeypatch.delenv("HANG_AT")
    before = opened(place)
    code, out, _ = call("--resume")
    assert (code, out.splitlines()[-1]) == (0, "PASS")
    assert verdict() == whole
    assert opened(place) == before + 2
    assert not (place / "kolibri-gate.unfinished").exists()


@pytest.mark.slow
def test_what_was_left_out_is_named_and_the_verdict_is_partial(
    place: Path, whole: dict[str, Any], call: Call, tiny_four: tuple[Golden, bytes]
) -> None:
    first, *others = [p.name for p in most_telling_first(tiny_four[0].prompts)]
    code, out, err = call("--budget", "0")
    report = verdict()
    assert (code, report["verdict"], report["partial"]) == (0, "pass", True)
    assert report["left_out"] == [name for name in LENGTHS if name != first]
    lines = out.splitlines()
    assert lines[-2:] == [f"left out, 3 prompts: {', '.join(report['left_out'])}", "PARTIAL PASS"]
    assert err == "unfinished; the same command with --resume goes on from kolibri-gate.unfinished\n"
    reasons = {entry["gate"]: entry["reason"] for entry in report["ledger"] if entry["ran"]}
    assert reasons.pop("golden") == reasons.pop("ledger") == ""
    assert set(reasons.values()) == {"3 of 4 prompts were left out"}
    compared = {gate["id"].split("@")[0]: gate["compared"] for gate in report["gates"]}
    assert compared["flips"] == len(next(p for p in tiny_four[0].prompts if p.name == first).fed)
    for count in (2, 3):
        assert call("--budget", "0", "--resume")[0] == 0
        assert verdict()["left_out"] == [name for name in LENGTHS if name in others[count - 1 :]]
    code, out, err = call("--budget", "0", "--resume")
    assert (code, out.splitlines()[-1], err) == (0, "PASS", "")
    assert verdict() == whole
    assert not (place / "kolibri-gate.unfinished").exists()
    assert opened(place) == 5


@pytest.mark.slow
def test_a_partial_run_that_is_stored_replays_to_the_same_partial_verdict(place: Path, call: Call) -> None:
    call("--budget", "0", "--save-run", "run")
    report = verdict()
    code, out, err = call("--replay", "run")
    assert (code, out.splitlines()[-1], err) == (0, "PARTIAL PASS", "")
    replayed = verdict()
    for each in (report, replayed):  # a replay leaves out what depends on the libraries installed: ids of texts
        each["gates"] = [gate for gate in each["gates"] if not gate["id"].startswith("golden@")]
        each["ledger"] = [entry for entry in each["ledger"] if entry["gate"] != "golden"]
    assert replayed == report


@pytest.mark.slow
def test_a_fault_is_kept_and_not_tried_again(place: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_AT", "1")
    assert call("--budget", "0")[0] == 1
    monkeypatch.delenv("FAULT_AT")
    code, out, _ = call("--resume")
    assert code == 1
    assert "a device fault ended the prompt: card: lost: it fell off the bus" in out
    assert opened(place) == 5


def refused(call: Call, place: Path, *arguments: str) -> str:
    """The one line that a session is refused with, before anything ran."""
    before = opened(place)
    Path("verdict.json").unlink(missing_ok=True)
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert opened(place) == before
    assert not Path("verdict.json").exists()
    return err


def test_options_that_do_not_fit_are_refused_in_one_line(place: Path, call: Call) -> None:
    assert "does not exist, so there is nothing to resume; leave out --resume" in refused(call, place, "--resume")
    assert "--state names the folder of a session with --budget" in refused(call, place, "--state", "x")
    assert "leave out --budget and --resume" in refused(call, place, "--replay", "x", "--budget", "1")
    assert "leave out --budget and --resume" in refused(call, place, "--replay", "x", "--resume")
    assert "which is read" in refused(call, place, "--budget", "1", "--state", "checkpoint/state")
    assert "create it first" in refused(call, place, "--budget", "1", "--state", "nowhere/state")


@pytest.mark.slow
def test_an_unfinished_session_is_never_overwritten_nor_shared(place: Path, call: Call) -> None:
    call("--budget", "0", "--state", "mine")
    assert "mine holds an unfinished session; go on with --resume" in refused(call, place, "--budget", "0", "--state", "mine")
    with FileLock(place / ".mine.lock"):
        assert "in the hands of another session" in refused(call, place, "--resume", "--state", "mine")
    assert call("--resume", "--state", "mine")[0] == 0


def other_golden(place: Path, another: tuple[Golden, bytes]) -> None:
    shutil.rmtree(place / "checkpoint" / "golden")
    write_golden(place / "checkpoint" / "golden", *another)


def other_code(place: Path, _: object) -> None:
    with (place / "site" / "counted_subject.py").open("a") as file:
        file.write("# faster\n")


OTHERS: dict[str, tuple[Callable[[Path, tuple[Golden, bytes]], None], tuple[str, ...]]] = {
    "golden": (other_golden, ()),
    "subject's code": (other_code, ()),
    "arm": (lambda _place, _another: None, ("--arm", "fp32")),
    "subject": (lambda _place, _another: None, ("--subject", "perfect")),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", OTHERS)
def test_a_session_of_another_kind_is_refused_by_name(
    place: Path, call: Call, another_four: tuple[Golden, bytes], what: str
) -> None:
    change, arguments = OTHERS[what]
    call("--budget", "0")
    change(place, another_four)
    assert f"was begun with another {what} (" in refused(call, place, "--resume", *arguments)


@pytest.mark.slow
def test_a_session_of_another_environment_is_refused_by_name(place: Path, call: Call) -> None:
    call("--budget", "0")
    path = place / "kolibri-gate.unfinished" / "session.json"
    path.write_bytes(path.read_bytes().replace(b'"numpy":"', b'"numpy":"0.'))
    assert "was begun with another numpy (0." in refused(call, place, "--resume")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["run.json", "run.safetensors"])
def test_a_kept_outcome_whose_bytes_changed_is_refused_with_the_way_out(place: Path, call: Call, file: str) -> None:
    call("--budget", "0")
    [name] = [name for name in kept(place) if name.startswith("prompt-")]
    path = place / "kolibri-gate.unfinished" / name / file
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    message = refused(call, place, "--resume")
    assert f"{name} is damaged; remove that folder, and the same command runs its prompt again" in message
    shutil.rmtree(path.parent)
    assert call("--resume")[0] == 0


@pytest.mark.slow
def test_a_kept_outcome_of_another_prompt_is_refused(place: Path, call: Call) -> None:
    call("--budget", "0")
    call("--budget", "0", "--resume")
    one, two = (place / "kolibri-gate.unfinished" / name for name in kept(place) if name.startswith("prompt-"))
    shutil.rmtree(one)
    shutil.copytree(two, one)
    assert f"{one.name} holds the outcome of another job" in refused(call, place, "--resume")


def test_no_prompt_is_started_after_the_end_and_those_that_run_are_finished(
    place: Path, tiny_four: tuple[Golden, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prompt takes a minute here; two run at a time."""
    golden, now = tiny_four[0], [0.0]
    request = SubjectRequest(Path("checkpoint"))
    own = [PromptJob("counted", request, Path("checkpoint/golden"), name) for name in LENGTHS]
    plant = replace(own[0], request=replace(request, plant="rust/dust"))

    def pairs(jobs: Iterable[PromptJob], workers: int | None) -> Iterator[tuple[int, PromptOutcome]]:
        stream, number = iter(jobs), 0
        while running := [job for job in (next(stream, None), next(stream, None)) if job is not None]:
            now[0] += 60
            for job in running:
                yield number, PromptOutcome(job, None, None, None, None, {})  # type: ignore[arg-type]
                number += 1

    class Memory:
        def get(self, _job: PromptJob) -> None:
            return None

        def put(self, outcome: PromptOutcome) -> None:
            seen.append(outcome.job)

    monkeypatch.setattr(budget, "finished_jobs", pairs)
    for minutes, count in ((0.0, 2), (0.5, 2), (1.5, 4), (2.5, 5), (None, 5)):
        seen: list[PromptJob] = []
        now[0] = 0.0
        outcomes = run_within(minutes, Memory(), [plant], own, clock=lambda: now[0])  # type: ignore[arg-type]
        assert [outcome.job for outcome in outcomes] == seen == [plant, *own][:count], minutes
    assert golden.positions > 0


def test_an_outcome_reads_back_as_it_was_put(place: Path, tiny_four: tuple[Golden, bytes]) -> None:
    job = PromptJob("counted", SubjectRequest(Path("checkpoint"), arm="fp32"), Path("checkpoint/golden"), "third")
    outcome = run_job(job)
    with unfinished_session(Path("s"), tiny_four[0], job, resume=False) as folder:
        assert folder.get(job) is None
        folder.put(outcome)
        again = folder.get(job)
    assert again is not None
    assert (again.job, again.identity, again.fault, again.slots, again.stats) == (job, outcome.identity, None, None, {})
    assert again.run is not None
    assert outcome.run is not None
    for name, array in vars(outcome.run).items():
        assert getattr(again.run, name).dtype == array.dtype
        assert (getattr(again.run, name) == array).all(), name
