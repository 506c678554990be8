"""pytest plugin: gates as tests, on the subject that the options name, with a ledger that no skip gets past.

A test marked `@pytest.mark.kolibri_gate("flips")` asks the fixture `gate` for that gate's entry, and is red where the gate
is. The subject runs once a session (once for all workers under xdist); at the end the controller compares the gates that ran
with those the subject requires, and a required gate that did not run makes the session fail with its name. Narrowing by
`-k`, `-m`, `--deselect`, `--lf` or a node id is the user's will: the headline then says `partial`; `--kolibri-require` names
gates that must run all the same. A session that collects no gate and requires none is left alone.
The fixtures `golden` and `subject` are for tests of one's own: the golden of the options, and the subject freshly opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from goldens import mini_checkpoint
from oracle.errors import KolibriError
from oracle.golden.format import Golden, load_golden
from oracle.judge.gates import GATE_NAMES
from oracle.judge.session import DEFAULT_SUBJECT, PERFECT, SessionOptions, open_session, run_session
from oracle.pytest_ledger import ALL, MARKER, PROPERTY, SessionLedger
from oracle.report.plain import escaped
from oracle.subjects.protocol import Subject, SubjectRequest
from oracle.subjects.registry import subject_factory

_OPTIONS = ("--kolibri-subject", "--kolibri-device", "--kolibri-arm", "--kolibri-checkpoint", "--kolibri-golden")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kolibri", "Kolibri gates")
    group.addoption("--kolibri-subject", default=None, help="what the gates judge (default: tt)")
    group.addoption("--kolibri-device", default=None, help="the subject's device (default: its first; for tt: sim)")
    group.addoption("--kolibri-arm", default=None, help="the subject's arm (default: its first)")
    group.addoption("--kolibri-checkpoint", type=Path, default=None, help="checkpoint folder (default: the shipped mini)")
    group.addoption(
        "--kolibri-golden", type=Path, default=None, help="golden folder (default: `golden` in the checkpoint folder)"
    )
    group.addoption(
        "--kolibri-require",
        action="append",
        default=[],
        metavar="NAME[,NAME]",
        help="gates that must run and compare something in this session, however it is narrowed; `all` for those that the "
        "subject declares; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(name): a gate of the oracle, judged on the subject that --kolibri-subject names"
    )
    config.pluginmanager.register(SessionLedger(config, _required(config)), "kolibri-ledger")
    asked = any(config.getoption(name) is not None for name in _OPTIONS)
    if asked and not hasattr(config, "workerinput"):
        try:
            open_session(_session_options(config))
        except KolibriError as error:
            raise pytest.UsageError(str(error)) from None


@dataclass(frozen=True)
class KolibriGates:
    """The session's gate verdicts; `report` is the document that `kolibri-oracle gate --json` writes."""

    report: dict[str, Any]

    def entry(self, name: str) -> dict[str, Any]:
        """One gate's entry of the report.

        Raises:
            LookupError: there is no gate of that name.
        """
        for gate in self.report["gates"]:
            if gate["id"].split("@")[0] == name:
                return gate
        known = ", ".join(gate["id"].split("@")[0] for gate in self.report["gates"])
        raise LookupError(f"no gate {name!r}; the gates are {known}")


@pytest.fixture(scope="session")
def golden(pytestconfig: pytest.Config) -> Golden:
    """The golden that the options name: prompts, their chains, and the reference's evidence of every position."""
    try:
        return load_golden(_session_options(pytestconfig).golden)
    except KolibriError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def subject(pytestconfig: pytest.Config) -> Iterator[Subject]:
    """The subject that the options name, freshly opened for this test and closed after it."""
    options = _session_options(pytestconfig)
    answers = options.golden if options.subject == PERFECT else None
    try:
        request = SubjectRequest(options.checkpoint, answers, options.device, options.arm)
        opened = subject_factory(options.subject).open(request)
    except KolibriError as error:
        raise pytest.UsageError(str(error)) from None
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def kolibri_gates(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> KolibriGates:
    """Run the subject once and judge it by every gate; under xdist one worker does, the others read its report."""
    options = _session_options(pytestconfig)
    if not hasattr(pytestconfig, "workerinput"):
        return KolibriGates(_run(options))
    shared = request.getfixturevalue("tmp_path_factory").getbasetemp().parent / "kolibri-report.json"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            shared.write_text(json.dumps(_run(options)), encoding="utf-8")
        return KolibriGates(json.loads(shared.read_text(encoding="utf-8")))


@pytest.fixture
def gate(request: pytest.FixtureRequest, kolibri_gates: KolibriGates) -> dict[str, Any]:
    """The entry of the gate that the test's `kolibri_gate` marker names, and its line in the session's ledger.

    Fails the test where the gate is red or incomplete, so that asking for it is asserting it.
    """
    marker = request.node.get_closest_marker(MARKER)
    if marker is None:
        raise pytest.UsageError(f"{request.node.nodeid} uses the fixture gate without @pytest.mark.{MARKER}(name)")
    name = marker.args[0]
    entry = kolibri_gates.entry(name)
    report = kolibri_gates.report
    reason = next((line["reason"] for line in report["ledger"] if line["gate"] == name), "")
    told = {"required": list(report["subject"]["required_gates"]), "session": report["session"], "reason": reason}
    request.node.user_properties.append((PROPERTY, {"name": name, "entry": entry, **told}))
    if entry["verdict"] in ("fail", "incomplete"):
        texts = [f"{f['verdict']}: {escaped(f['text'])}" for f in entry["findings"]]
        pytest.fail("\n".join([f"gate {entry['id']} is {entry['verdict']}", *texts]), pytrace=False)
    return entry


def _required(config: pytest.Config) -> tuple[str, ...]:
    """The names after `--kolibri-require`, each once."""
    asked = [name.strip() for value in config.getoption("--kolibri-require") or () for name in value.split(",")]
    if unknown := [name for name in asked if name not in (*GATE_NAMES, ALL)]:
        raise pytest.UsageError(f"--kolibri-require: no gate {unknown[0]!r}; name {ALL} or some of {', '.join(GATE_NAMES)}")
    return tuple(dict.fromkeys(asked))


def _session_options(config: pytest.Config) -> SessionOptions:
    checkpoint = config.getoption("--kolibri-checkpoint") or mini_checkpoint()
    return SessionOptions(
        checkpoint=checkpoint,
        golden=config.getoption("--kolibri-golden") or checkpoint / "golden",
        subject=config.getoption("--kolibri-subject") or DEFAULT_SUBJECT,
        device=config.getoption("--kolibri-device"),
        arm=config.getoption("--kolibri-arm"),
    )


def _run(options: SessionOptions) -> dict[str, Any]:
    try:
        return run_session(options).to_json()
    except KolibriError as error:
        raise pytest.UsageError(str(error)) from None
