"""Worker processes: whatever one job does to its process, the others are answered, and nothing is left running."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from worker_functions import do

from oracle.errors import DeviceFault, UsageError
from oracle.judge.workers import moving, work

LONG = 120.0


def answers(jobs: Sequence[str], workers: int = 1, limits: dict[str, float] | None = None) -> list[object]:
    """Each job's answer, in the order of the jobs; a fault as its text."""
    found = {}
    for number, job, answer in work(do, jobs, workers, lambda job: (limits or {}).get(job, LONG)):
        assert jobs[number] == job
        found[number] = str(answer) if isinstance(answer, DeviceFault) else answer
    assert multiprocessing.active_children() == []
    return [found[number] for number in range(len(jobs))]


def gone(pid: int, within: float = 20.0) -> bool:
    """Whether that process ends."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_answered_whatever_the_others_do_to_their_processes(workers: int) -> None:
    jobs = ["echo a", "exit 7", "echo b", "signal SIGSEGV", "leave", "unsendable", "echo c"]
    died = "worker-died: its process ended {}, as from a crash of a native library"
    assert answers(jobs, workers) == [
        "a",
        died.format("with exit code 7"),
        "b",
        died.format("by SIGSEGV"),
        died.format("with exit code 0"),
        died.format("with exit code 1"),
        "c",
    ]


def test_a_job_that_hangs_is_ended_and_the_others_go_on(tmp_path: Path) -> None:
    hang = f"hang {tmp_path / 'pid'}"
    got = answers([hang, "echo a", "echo b"], workers=1, limits={hang: 1.0})
    assert got == ["timeout: no step ended within 1 s; its process was ended", "a", "b"]
    assert gone(int((tmp_path / "pid").read_text()), within=0.1)


def test_a_job_that_moves_may_take_longer_than_its_limit() -> None:
    started = time.monotonic()
    assert answers(["walk 4"], limits={"walk 4": 2.0}) == ["arrived"]
    assert time.monotonic() - started > 4


def test_a_process_that_dies_is_noticed_though_another_holds_its_pipe() -> None:
    started = time.monotonic()
    assert answers(["orphan", "echo a"])[1] == "a"
    assert time.monotonic() - started < 15


def test_one_worker_serves_many_jobs() -> None:
    assert len(set(answers(["pid"] * 4))) == 1


def test_what_the_function_raises_is_raised_here_and_ends_the_others(tmp_path: Path) -> None:
    def jobs() -> Iterator[str]:
        yield f"hang {tmp_path / 'pid'}"
        while not (tmp_path / "pid").exists():
            time.sleep(0.05)
        yield "raise bad input"

    with pytest.raises(UsageError, match="bad input"):
        list(work(do, jobs(), 2, lambda _job: LONG))
    assert gone(int((tmp_path / "pid").read_text()), within=0.1)


def test_jobs_are_taken_only_when_a_worker_is_free_and_may_end_early() -> None:
    taken = []

    def jobs() -> Iterator[str]:
        for name in "abc":
            taken.append(name)
            yield f"echo {name}"

    with contextlib.closing(work(do, jobs(), 1, lambda _job: LONG)) as stream:
        assert next(stream) == (0, "echo a", "a")
        assert taken == ["a"]
    assert multiprocessing.active_children() == []


def test_no_jobs_need_no_process() -> None:
    assert answers([]) == []


def test_outside_a_worker_moving_tells_nobody() -> None:
    moving()


def script(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "script.py").write_text(text)
    return [sys.executable, str(tmp_path / "script.py")]


def test_a_script_that_starts_sessions_at_import_is_told_how_to_help_itself(tmp_path: Path) -> None:
    command = script(tmp_path, "from oracle.judge.workers import work\nprint(list(work(abs, [-1], 1, lambda job: 5.0)))\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert 'put that under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


@pytest.fixture
def python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts find the modules of this folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))


@pytest.mark.usefixtures("python_path")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path, how: int) -> None:
    text = (
        "from worker_functions import do\nfrom oracle.judge.workers import work\n"
        f"if __name__ == '__main__':\n    print(list(work(do, ['hang {tmp_path / 'pid'}'], 1, lambda job: 120.0)))\n"
    )
    with subprocess.Popen(script(tmp_path, text), stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        process.send_signal(how)
        assert process.wait(timeout=20) != 0
    assert gone(int((tmp_path / "pid").read_text()))


def wait_for(condition: Callable[[], bool], within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_that_answers_nothing_is_answered_all_the_same() -> None:
    assert answers(["nothing", "echo a"], limits={"nothing": 3.0}) == [None, "a"]
