"""pytest inside pytest: which sessions are green, which are not, and that no skipped gate gets past the ledger."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import oracle.judge.session as session
import oracle.pytest_plugin as plugin
import oracle.subjects.perfect as perfect
from goldens import mini_checkpoint
from oracle.errors import DeviceFault
from oracle.golden.format import assemble, load_golden, write_golden
from oracle.judge.gates import GATE_NAMES
from oracle.judge.jobs import PromptJob, PromptOutcome, run_job
from oracle.judge.session import SessionOptions
from oracle.judge.verdict import Report

pytest_plugins = ["pytester"]

PERFECT = ("--kolibri-subject", "perfect")
SPOILED = ("--kolibri-subject", "spoiled")
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""Hypothesis would be imported and rewritten anew in every inner session."""

GATES_FILE = """
import os
import pytest
from oracle.judge.gates import GATE_NAMES

MARKS = {marks}
LEFT_OUT = {left_out}


def params():
    for name in GATE_NAMES:
        if name not in LEFT_OUT:
            yield pytest.param(name, marks=[pytest.mark.kolibri_gate(name), *MARKS.get(name, [])])


@pytest.mark.parametrize("name", params())
def test_gate(name, gate):
    assert gate["id"].split("@")[0] == name
"""

SPOILED_SUBJECT = """
from dataclasses import replace

from oracle.golden.format import load_golden
from oracle.subjects import perfect
from oracle.subjects.protocol import SubjectRequest


class Spoiled:
    # The perfect subject with one hard flip in the longest prompt, where the free run is fed the prompt all the same.

    def __init__(self, request):
        folder = request.checkpoint / "golden"
        self._device = request.device or "one"
        self._inner = perfect.FACTORY.open(SubjectRequest(request.checkpoint, folder))
        self._where = max((p.prompt_ids for p in load_golden(folder).prompts), key=len)[:-1]

    @property
    def identity(self):
        return replace(self._inner.identity, name="spoiled", arm="flip", device={"kind": self._device})

    def reset(self):
        self.start()

    def start(self):
        self._inner.start()
        self._fed = ()

    def step(self, token):
        self._fed += (token,)
        step = self._inner.step(token)
        if self._fed == self._where:
            logits = step.logits.copy()
            logits[int(logits.argmin())] = logits.max() + 1
            return replace(step, logits=logits)
        return step

    def stats(self):
        return {}

    def close(self):
        pass


class Factory:
    arms = {"flip": "bf16"}
    devices = ("one", "two")
    plants = {}

    def open(self, request, observer=None):
        return Spoiled(request)


FACTORY = Factory()
"""

SERIAL_JOBS = """
import oracle.judge.session as session
from oracle.judge.jobs import run_job

session.run_jobs = lambda jobs, workers=None, done=None: [run_job(job) for job in jobs]
"""


def serially(jobs: Sequence[PromptJob], _workers: int | None = None, _done: Any = None) -> list[PromptOutcome]:
    return [run_job(job) for job in jobs]


@pytest.fixture(scope="module")
def reports() -> Callable[[SessionOptions], Report]:
    """Each session's report is made once, in this process; what is tested here is what pytest makes of it."""

    @lru_cache
    def make(options: SessionOptions) -> Report:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "run_jobs", serially)
            return session.run_session(options)

    return make


@pytest.fixture(scope="module", autouse=True)
def imported(reports: Callable[[SessionOptions], Report]) -> None:
    """Import all that a session needs before the first inner one: pytester forgets what an inner session imported, and a
    native library that is then imported anew into the same process crashes it."""
    reports(SessionOptions(mini_checkpoint(), mini_checkpoint() / "golden", "perfect"))


@pytest.fixture(scope="module")
def spoiled_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A subject with hard flips, and with two devices, installed as a package of its own."""
    folder = tmp_path_factory.mktemp("spoiled")
    (folder / "spoiled_subject.py").write_text(SPOILED_SUBJECT)
    info = folder / "spoiled_subject-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spoiled-subject\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kolibri_oracle.subjects]\nspoiled = spoiled_subject:FACTORY\n")
    return folder


@pytest.fixture
def run(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    reports: Callable[[SessionOptions], Report],
    spoiled_package: Path,
) -> Callable[..., pytest.RunResult]:
    """Run pytest in this process on the files made so far."""
    monkeypatch.syspath_prepend(spoiled_package)
    monkeypatch.setattr(plugin, "run_session", reports)
    return lambda *arguments: pytester.runpytest_inprocess(*OPTIONS, *arguments)


@pytest.fixture
def run_workers(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, spoiled_package: Path
) -> Callable[..., pytest.RunResult]:
    """Run pytest in a process of its own with two workers."""
    monkeypatch.setenv("PYTHONPATH", str(spoiled_package), prepend=os.pathsep)
    pytester.makeconftest(SERIAL_JOBS)
    return lambda *arguments: pytester.runpytest_subprocess(*OPTIONS, "-n", "2", *arguments, timeout=120)


def gates_file(pytester: pytest.Pytester, marks: str = "{}", left_out: Sequence[str] = ()) -> None:
    pytester.makepyfile(test_inner_gates=GATES_FILE.format(marks=marks, left_out=list(left_out)))


def gate_with_fixture(pytester: pytest.Pytester, name: str, fixture: str) -> None:
    """All gates as before, but one whose test first asks for a fixture of the name `before` with this body."""
    gates_file(pytester, left_out=[name])
    pytester.makepyfile(
        test_other_gate=f"""
        import os
        import pytest

        @pytest.fixture
        def before():
            {fixture}

        @pytest.mark.kolibri_gate({name!r})
        def test_{name}(before, gate):
            assert gate["verdict"] == "pass"
        """
    )


def section(result: pytest.RunResult) -> list[str]:
    """Lines of the ledger's section, without its title and the line that says how much was answered."""
    titles = [i for i, line in enumerate(result.outlines) if line.strip("= ") == "kolibri gates"]
    if not titles:
        return []
    end = next(i for i, line in enumerate(result.outlines) if line.startswith("verdict: "))
    return [line for line in result.outlines[titles[0] + 1 : end + 1] if not line.startswith("answered ")]


def did_not_run(result: pytest.RunResult) -> list[str]:
    return [line.split()[0] for line in section(result) if "DID NOT RUN" in line]


def reason(result: pytest.RunResult, name: str) -> str:
    """Why a gate did not run."""
    [line] = [line for line in section(result) if line.startswith(f"{name} ") and "DID NOT RUN" in line]
    return line.split("DID NOT RUN")[1].strip()


def headline(result: pytest.RunResult) -> str:
    return section(result)[-1]


# Green, in the way a user runs it: workers, spawned jobs and all.


def test_a_green_subject_ends_with_0_and_a_line_for_each_gate(pytester: pytest.Pytester) -> None:
    gates_file(pytester)
    result = pytester.runpytest_inprocess(*OPTIONS, *PERFECT)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=len(GATE_NAMES))
    *lines, last = section(result)
    assert [line.split("@")[0] for line in lines] == list(GATE_NAMES)
    assert all("behaved" in line and "compared" in line for line in lines)
    absent = ("slots", "staging", "operands", "ops", "census", "counters", "determinism", "capture")
    assert [line.split()[1] for line in lines] == ["not" if n in absent else "pass" for n in GATE_NAMES]
    assert last == "verdict: PASS"
    slots = next(line for line in lines if line.startswith("slots@"))
    assert slots.endswith("the subject does not declare it, and its evidence is not in the run")
    golden = load_golden(mini_checkpoint() / "golden")
    prompts, positions = len(golden.prompts), golden.positions
    result.stdout.fnmatch_lines([f"answered {prompts} of {prompts} prompts, {positions:,} of {positions:,} positions"])


# Red, skipped, left out.


def test_a_red_gate_ends_with_1_and_says_what_was_found(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    result = run(*SPOILED)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=len(GATE_NAMES) - 1, errors=1)
    result.stdout.fnmatch_lines(["gate flips@* is fail", "fail: hard flips (*outside the stored ids*"])
    assert headline(result) == "verdict: FAIL"
    assert [line.split("@")[0] for line in section(result) if " fail " in line] == ["flips"]


@pytest.mark.parametrize(
    ("mark", "why"),
    [
        ("pytest.mark.skip", "its test was skipped: unconditional skip"),
        ("pytest.mark.skipif(True, reason='no card')", "its test was skipped: no card"),
        ("pytest.mark.xfail(run=False, reason='known')", "its test was skipped: [NOTRUN] known"),
    ],
)
def test_a_skipped_gate_ends_with_1_its_name_and_the_reason(
    pytester: pytest.Pytester, run: Callable[..., Any], mark: str, why: str
) -> None:
    gates_file(pytester, marks=f"{{'flips': [{mark}]}}")
    result = run(*PERFECT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["flips"]
    assert reason(result, "flips") == why
    assert headline(result) == "verdict: INCOMPLETE"


def test_all_gates_skipped_end_with_1_and_all_their_names(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester, marks="{n: [pytest.mark.skip] for n in GATE_NAMES}")
    result = run(*PERFECT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == sorted(GATE_NAMES)


def test_a_gate_test_that_never_asks_for_its_verdict_did_not_run(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester, left_out=["flips"])
    pytester.makepyfile(test_lazy="import pytest\n@pytest.mark.kolibri_gate('flips')\ndef test_flips():\n    pass\n")
    result = run(*PERFECT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["flips"]
    assert reason(result, "flips") == "its test never asked for the verdict"


def test_a_required_gate_that_was_never_collected_ends_with_1_and_its_name(
    pytester: pytest.Pytester, run: Callable[..., Any]
) -> None:
    gates_file(pytester, left_out=["residual", "slots"])
    result = run(*PERFECT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=len(GATE_NAMES) - 2)
    assert did_not_run(result) == ["residual"]  # `slots` is not required of this subject
    assert reason(result, "residual") == "no test of it was collected"


def test_a_red_gate_that_is_expected_to_fail_is_red_all_the_same(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester, marks="{n: [pytest.mark.xfail] for n in GATE_NAMES}")
    result = run(*SPOILED)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert headline(result) == "verdict: FAIL"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise RuntimeError('no card')", "its test failed in setup before it asked for the verdict"),
        ("pytest.skip('no card')", "its test was skipped: no card"),
    ],
)
def test_a_gate_whose_setup_fails_or_skips_did_not_run(
    pytester: pytest.Pytester, run: Callable[..., Any], body: str, why: str
) -> None:
    gate_with_fixture(pytester, "logits", body)
    result = run(*PERFECT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["logits"]
    assert reason(result, "logits") == why
    assert headline(result) == "verdict: INCOMPLETE"


def test_a_session_whose_subject_could_not_be_run_ran_no_gate(
    pytester: pytest.Pytester, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_options: SessionOptions) -> Report:
        raise DeviceFault("worker-died", "a worker process died")

    monkeypatch.setattr(plugin, "run_session", die)
    gates_file(pytester)
    result = run(*PERFECT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == sorted(GATE_NAMES)
    result.stdout.fnmatch_lines(["*worker-died: a worker process died*"])


def test_an_unknown_gate_name_is_an_error_that_names_the_gates(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    pytester.makepyfile(test_typo="import pytest\n@pytest.mark.kolibri_gate('flip')\ndef test_it(gate):\n    pass\n")
    result = run(*PERFECT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["flip"]
    result.stdout.fnmatch_lines(["*no gate 'flip'; the gates are golden, alignment, *"])


@pytest.mark.parametrize("option", ["-x", "--maxfail=1"])
def test_the_first_failure_ends_the_session_and_the_rest_did_not_run(
    pytester: pytest.Pytester, run: Callable[..., Any], option: str
) -> None:
    gates_file(pytester)
    result = run(*SPOILED, option)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == sorted(GATE_NAMES[GATE_NAMES.index("flips") + 1 :])
    assert reason(result, "residual") == "the session ended before its test"
    assert headline(result) == "verdict: FAIL"


# Narrowed by the user.


@pytest.mark.parametrize(
    "narrowing",
    [
        ("-k", "flips or chain"),
        ("-m", "quick"),
        ("test_inner_gates.py::test_gate[flips]", "test_inner_gates.py::test_gate[chain]"),
        tuple(f"--deselect=test_inner_gates.py::test_gate[{n}]" for n in GATE_NAMES if n not in ("flips", "chain")),
    ],
    ids=["-k", "-m", "node id", "--deselect"],
)
def test_a_narrowed_session_is_partial_and_green(
    pytester: pytest.Pytester, run: Callable[..., Any], narrowing: tuple[str, ...]
) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    quick: a few gates\n")
    gates_file(pytester, marks="{'flips': [pytest.mark.quick], 'chain': [pytest.mark.quick]}")
    result = run(*PERFECT, *narrowing)
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] == 2
    assert headline(result) == "verdict: PARTIAL PASS"
    assert sorted(line.split("@")[0] for line in section(result)[:-1]) == ["chain", "flips"]


def test_a_narrowed_session_is_still_red_by_the_gates_that_are_left(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    result = run(*SPOILED, "-k", "flips")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert headline(result) == "verdict: PARTIAL FAIL"


def test_a_gate_skipped_in_a_narrowed_session_is_not_green(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester, marks="{'flips': [pytest.mark.skip]}")
    result = run(*PERFECT, "-k", "flips or chain")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["flips"]
    assert headline(result) == "verdict: PARTIAL INCOMPLETE"


def test_deselecting_something_else_leaves_the_session_whole(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    pytester.makepyfile(test_other="def test_other():\n    pass\n")
    result = run(*PERFECT, "--deselect=test_other.py::test_other")
    assert (result.ret, headline(result)) == (pytest.ExitCode.OK, "verdict: PASS")


def test_rerunning_what_failed_is_partial_and_no_gate_of_another_file_is_missed(
    pytester: pytest.Pytester, run: Callable[..., Any]
) -> None:
    """`--lf` leaves whole files uncollected without telling anyone."""
    gates_file(pytester, left_out=["chain"])
    pytester.makepyfile(
        test_a_chain="""
        import pytest
        from pathlib import Path

        @pytest.mark.kolibri_gate("chain")
        def test_chain(gate):
            assert Path("mended").exists()
        """
    )
    cache = ("-p", "cacheprovider", "-o", "cache_dir=cache", "--lf")
    result = run(*PERFECT, *cache)  # nothing failed before, so nothing is left out
    assert (result.ret, headline(result)) == (pytest.ExitCode.TESTS_FAILED, "verdict: PASS")
    (pytester.path / "mended").touch()
    result = run(*PERFECT, *cache)
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] == 1
    assert headline(result) == "verdict: PARTIAL PASS"
    result = run(*PERFECT, *cache)
    assert (result.ret, headline(result)) == (pytest.ExitCode.OK, "verdict: PASS")


# Demanded with --kolibri-require, whatever the user left out.


def test_a_demanded_gate_that_ran_and_compared_is_green_in_a_partial_session(
    pytester: pytest.Pytester, run: Callable[..., Any]
) -> None:
    gates_file(pytester)
    result = run(*PERFECT, "-k", "flips or chain", "--kolibri-require", "flips")
    assert result.ret == pytest.ExitCode.OK
    assert headline(result) == "verdict: PARTIAL PASS"


@pytest.mark.parametrize(
    ("demanded", "missed"),
    [
        (("--kolibri-require", "flips,logits"), ["logits"]),
        (("--kolibri-require", "logits", "--kolibri-require", "residual, flips"), ["logits", "residual"]),
        (("--kolibri-require=all",), ["alignment", "golden", "ledger", "logits", "residual", "routing"]),
    ],
    ids=["a list", "repeated", "all"],
)
def test_a_demanded_gate_that_the_user_left_out_ends_with_1_and_its_name(
    pytester: pytest.Pytester, run: Callable[..., Any], demanded: tuple[str, ...], missed: list[str]
) -> None:
    gates_file(pytester)
    result = run(*PERFECT, "-k", "flips or chain", *demanded)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes()["passed"] == 2
    assert did_not_run(result) == missed
    assert {reason(result, name) for name in missed} == {"left out by the user"}
    assert headline(result) == "verdict: PARTIAL INCOMPLETE"


@pytest.mark.parametrize(
    ("file", "narrowing"),
    [("def test_other(): pass", ()), ("def test_other(): pass", ("-k", "nothing")), ("", ())],
    ids=["no gate collected", "every test deselected", "no test at all"],
)
def test_a_demanded_gate_of_a_session_that_collected_none_ends_with_1(
    pytester: pytest.Pytester, run: Callable[..., Any], file: str, narrowing: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_other=file)
    result = run(*narrowing, "--kolibri-require", "flips")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["flips"]
    result = run(*narrowing, "--kolibri-require", "all")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["alignment", "chain", "flips", "golden"]


def test_a_demanded_gate_that_compared_nothing_did_not_run(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    assert run(*PERFECT, "--kolibri-require", "all").ret == pytest.ExitCode.OK
    result = run(*PERFECT, "--kolibri-require", "slots")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["slots"]
    assert reason(result, "slots") == "the subject does not declare it, and its evidence is not in the run"


def test_a_demanded_gate_is_not_asked_for_where_tests_are_only_collected(
    pytester: pytest.Pytester, run: Callable[..., Any]
) -> None:
    gates_file(pytester)
    assert run("--collect-only", "--kolibri-require", "flips").ret == pytest.ExitCode.OK


@pytest.mark.parametrize("names", ["flip", "flips,", "flips,All"])
def test_demanding_what_is_no_gate_is_a_usage_error_that_names_the_gates(
    pytester: pytest.Pytester, run: Callable[..., Any], names: str
) -> None:
    gates_file(pytester)
    result = run(*PERFECT, "--kolibri-require", names)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = f"--kolibri-require: no gate {names.split(',')[-1]!r}; name all or some of golden, alignment, "
    assert len([line for line in (*result.outlines, *result.errlines) if message in line]) == 1


# Fixtures for tests of one's own.


def test_the_subject_is_opened_for_each_test_and_closed_after_it_and_the_golden_is_loaded(
    pytester: pytest.Pytester, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(perfect.PerfectSubject, "close", lambda self: closed.append(id(self)))
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("which", [0, 1])
        def test_the_first_ids(golden, subject, which):
            assert (subject.identity.name, subject.identity.arm) == ("perfect", "fp32")
            prompt = golden.prompts[which]
            for position, token in enumerate(prompt.fed[:4]):  # as just opened, whatever another test has fed
                step = subject.step(token)
                assert (step.position, int(step.logits.argmax())) == (position, prompt.argmax[position])

        def test_that_fails(subject):
            assert False
        """
    )
    result = run(*PERFECT, "--kolibri-arm", "fp32")
    result.assert_outcomes(passed=2, failed=1)
    assert len(closed) == 3
    assert section(result) == []


def test_a_test_may_have_fixtures_of_these_names_of_its_own(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    own = "".join(f"@pytest.fixture\ndef {n}():\n    return 'my own'\n" for n in ("golden", "subject", "gate"))
    pytester.makeconftest(f"import pytest\n{own}")
    pytester.makepyfile("def test_it(golden, subject, gate):\n    assert golden == subject == gate == 'my own'\n")
    result = run(*PERFECT)
    assert (result.ret, section(result)) == (pytest.ExitCode.OK, [])


@pytest.mark.parametrize(("fixture", "option"), [("golden", "--kolibri-golden"), ("subject", "--kolibri-checkpoint")])
def test_a_fixture_that_cannot_be_made_is_an_error_that_says_why(
    pytester: pytest.Pytester, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, fixture: str, option: str
) -> None:
    monkeypatch.setattr(plugin, "open_session", lambda _options: None)  # as if it vanished once pytest had started
    pytester.makepyfile(f"def test_it({fixture}):\n    pass\n")
    result = run(*PERFECT, option, "nowhere")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1)
    assert "nowhere" in result.stdout.str()


# Sessions that are none of the ledger's business.


def test_a_session_without_gates_is_left_alone(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    pytester.makepyfile("def test_other():\n    pass\n")
    result = run()
    assert (result.ret, section(result)) == (pytest.ExitCode.OK, [])


def test_a_session_whose_every_gate_was_deselected_is_left_alone(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    pytester.makepyfile(test_other="def test_other():\n    pass\n")
    result = run(*PERFECT, "-k", "other")
    assert (result.ret, section(result)) == (pytest.ExitCode.OK, [])


def test_collecting_only_is_left_alone(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    result = run(*PERFECT, "--collect-only")
    assert (result.ret, section(result)) == (pytest.ExitCode.OK, [])


# Options: each has an effect, and what cannot be carried out is a usage error of one line.


def identity_file(pytester: pytest.Pytester) -> None:
    """Gates, and a test that writes down who was judged by what."""
    gates_file(pytester)
    pytester.makepyfile(
        test_identity="""
        import json
        from pathlib import Path

        def test_identity(kolibri_gates):
            report = kolibri_gates.report
            shown = {**report["subject"], "golden": report["golden"]["digest"]}
            Path("identity.json").write_text(json.dumps(shown))
        """
    )


def identity(pytester: pytest.Pytester) -> dict[str, Any]:
    return json.loads((pytester.path / "identity.json").read_text())


def test_the_subject_and_arm_options_choose_who_is_judged(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    identity_file(pytester)
    assert run(*PERFECT, "--kolibri-arm", "fp32").ret == pytest.ExitCode.OK
    assert (identity(pytester)["name"], identity(pytester)["arm"]) == ("perfect", "fp32")
    assert run(*PERFECT).ret == pytest.ExitCode.OK
    assert (identity(pytester)["name"], identity(pytester)["arm"]) == ("perfect", "bf16")


def test_the_device_option_chooses_the_device(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    identity_file(pytester)
    assert run(*SPOILED, "--kolibri-device", "two").ret == pytest.ExitCode.TESTS_FAILED
    assert identity(pytester)["device"] == {"kind": "two"}
    assert run(*SPOILED).ret == pytest.ExitCode.TESTS_FAILED
    assert identity(pytester)["device"] == {"kind": "one"}


def test_the_golden_option_chooses_the_golden(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    identity_file(pytester)
    shipped = load_golden(mini_checkpoint() / "golden")
    names = ("checkpoint_digest", "sensitivity", "classes", "probe_prompt")
    parts = {name: getattr(shipped.document, name) for name in names}
    recipe = shipped.document.recipe.model_copy(update={"versions": {"numpy": "another"}})
    other, packed = assemble(prompts=shipped.prompts, probes=shipped.probes, recipe=recipe, **parts)
    write_golden(pytester.path / "other", other, packed)
    assert run(*PERFECT, "--kolibri-golden", "other").ret == pytest.ExitCode.OK
    assert identity(pytester)["golden"] == other.digest != shipped.digest


def test_a_golden_with_one_wrong_id_is_red(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    shipped = load_golden(mini_checkpoint() / "golden")
    first = shipped.prompts[0]
    wrong = replace(first, generated=(*first.generated[:-1], first.generated[-1] ^ 1))
    names = ("recipe", "checkpoint_digest", "sensitivity", "classes", "probe_prompt")
    parts = {name: getattr(shipped.document, name) for name in names}
    other, packed = assemble(prompts=(wrong, *shipped.prompts[1:]), probes=shipped.probes, **parts)
    write_golden(pytester.path / "wrong", other, packed)
    result = run(*PERFECT, "--kolibri-golden", "wrong")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["fail: a generated id is not the argmax of its stored logits *"])
    assert headline(result) == "verdict: FAIL"


def test_the_checkpoint_option_chooses_the_checkpoint_and_its_golden(
    pytester: pytest.Pytester, run: Callable[..., Any]
) -> None:
    identity_file(pytester)
    folder = pytester.path / "moved"
    folder.mkdir()
    for path in mini_checkpoint().iterdir():
        (folder / path.name).symlink_to(path)
    assert run(*PERFECT, "--kolibri-checkpoint", "moved").ret == pytest.ExitCode.OK
    (folder / "golden").unlink()
    result = run(*PERFECT, "--kolibri-checkpoint", str(folder))
    assert result.ret != pytest.ExitCode.OK
    assert f"{folder}/golden/golden.json cannot be read" in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kolibri-subject", "nope"), "unknown subject 'nope'; installed subjects are "),
        ((*PERFECT, "--kolibri-arm", "nope"), "subject 'perfect' has no arm 'nope'; it has bf16, fp32"),
        ((*PERFECT, "--kolibri-device", "nope"), "subject 'perfect' has no device 'nope'; it has none"),
        ((*PERFECT, "--kolibri-golden", "nowhere"), "nowhere/golden.json cannot be read"),
        ((*PERFECT, "--kolibri-checkpoint", "nowhere"), "nowhere"),
    ],
    ids=["subject", "arm", "device", "golden", "checkpoint"],
)
def test_options_that_cannot_be_carried_out_are_a_usage_error_of_one_line(
    pytester: pytest.Pytester, run: Callable[..., Any], arguments: tuple[str, ...], message: str
) -> None:
    gates_file(pytester)
    result = run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in (*result.outlines, *result.errlines) if message in line]
    assert len(lines) == 1


def test_each_option_is_explained(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    text = run("--help").stdout.str()
    assert all(f"--kolibri-{name}" in text for name in ("subject", "device", "arm", "checkpoint", "golden", "require"))


# Under xdist: the subject runs once, and the controller's ledger is the session's.


@pytest.mark.slow
def test_two_workers_are_green_with_one_run_of_the_subject(
    pytester: pytest.Pytester, run_workers: Callable[..., pytest.RunResult]
) -> None:
    pytester.makeconftest(
        SERIAL_JOBS
        + """
import os
from pathlib import Path
import oracle.pytest_plugin as plugin

run_session = plugin.run_session

def counted(options):
    with (Path(__file__).parent / "runs").open("a") as file:
        file.write("run\\n")
    return run_session(options)

plugin.run_session = counted
"""
    )
    gates_file(pytester)
    result = run_workers(*PERFECT)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=len(GATE_NAMES))
    assert sorted(line.split("@")[0] for line in section(result)[:-1]) == sorted(GATE_NAMES)
    assert headline(result) == "verdict: PASS"
    assert (pytester.path / "runs").read_text() == "run\n"


def test_two_workers_without_the_gate_that_is_demanded_are_not_green(
    pytester: pytest.Pytester, run_workers: Callable[..., pytest.RunResult]
) -> None:
    """No gate is asked for, so the subject does not run."""
    gates_file(pytester)
    pytester.makepyfile(test_other="def test_other():\n    pass\n")
    result = run_workers(*PERFECT, "-k", "other", "--kolibri-require", "flips")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (did_not_run(result), reason(result, "flips")) == (["flips"], "left out by the user")
    assert headline(result) == "verdict: PARTIAL INCOMPLETE"


def test_the_ledger_needs_neither_terminal_nor_temporary_folders(pytester: pytest.Pytester, run: Callable[..., Any]) -> None:
    gates_file(pytester)
    without = ("-p", "no:terminal", "-p", "no:tmpdir", "-p", "no:xdist", "-p", "no:junitxml")
    assert run(*PERFECT, *without).ret == pytest.ExitCode.OK
    (pytester.path / "test_inner_gates.py").unlink()
    gates_file(pytester, left_out=["flips"])
    assert run(*PERFECT, *without).ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_two_workers_are_red_where_a_gate_is_and_partial_where_narrowed(
    pytester: pytest.Pytester, run_workers: Callable[..., pytest.RunResult]
) -> None:
    gates_file(pytester, marks="{n: [pytest.mark.xfail] for n in GATE_NAMES}")
    result = run_workers(*SPOILED, "-k", "chain or flips")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert headline(result) == "verdict: PARTIAL FAIL"


@pytest.mark.slow
def test_two_workers_name_the_gate_that_was_skipped(
    pytester: pytest.Pytester, run_workers: Callable[..., pytest.RunResult]
) -> None:
    gates_file(pytester, marks="{'flips': [pytest.mark.skip]}")
    result = run_workers(*PERFECT, "-k", "chain or flips")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    # The workers alone know what was collected: narrowed, the subject's required gates say nothing.
    assert did_not_run(result) == ["flips"]
    assert headline(result) == "verdict: PARTIAL INCOMPLETE"


@pytest.mark.slow
def test_a_worker_that_crashes_in_a_gate_is_not_green(
    pytester: pytest.Pytester, run_workers: Callable[..., pytest.RunResult]
) -> None:
    gate_with_fixture(pytester, "flips", "os._exit(3)")
    result = run_workers(*PERFECT)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert did_not_run(result) == ["flips"]
