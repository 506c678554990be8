"""pytest plugin: gates as tests, on the subject that the options name, with a ledger that no skip gets past.

A test marked `@pytest.mark.kolibri_gate("flips")` asks the fixture `kolibri_gates` for that gate's verdict. The subject runs
once a session (once for all workers under xdist); at the end the controller compares the gates that ran with those the
subject requires, and a required gate that did not run makes the session fail with its name. Narrowing by `-k`, `-m`,
`--deselect`, `--lf` or a node id is the user's will: the headline then says `partial`. A session that collects no gate is
left alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from goldens import mini_checkpoint
from oracle.errors import KolibriError
from oracle.judge.session import DEFAULT_SUBJECT, SessionOptions, open_session, run_session
from oracle.pytest_ledger import MARKER, PROPERTY, SessionLedger
from oracle.report.plain import escaped

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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(name): a gate of the oracle, judged on the subject that --kolibri-subject names"
    )
    config.pluginmanager.register(SessionLedger(config), "kolibri-ledger")
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
def kolibri_gates(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> KolibriGates:
    """Run the subject once and judge it by every gate; under xdist one worker does, the others read its report."""
    options = _session_options(pytestconfig)
    if not hasattr(pytestconfig, "workerinput"):
        return KolibriGates(_run(options))
    shared = tmp_path_factory.getbasetemp().parent / "kolibri-report.json"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            shared.write_text(json.dumps(_run(options)), encoding="utf-8")
        return KolibriGates(json.loads(shared.read_text(encoding="utf-8")))


@pytest.fixture
def kolibri_gate(request: pytest.FixtureRequest, kolibri_gates: KolibriGates) -> dict[str, Any]:
    """The entry of the gate that the test's `kolibri_gate` marker names, and its line in the session's ledger.

    Fails the test where the gate is red or incomplete, so that asking for it is asserting it.
    """
    marker = request.node.get_closest_marker(MARKER)
    if marker is None:
        raise pytest.UsageError(f"{request.node.nodeid} uses the fixture kolibri_gate without @pytest.mark.{MARKER}(name)")
    name = marker.args[0]
    entry = kolibri_gates.entry(name)
    required = list(kolibri_gates.report["subject"]["required_gates"])
    request.node.user_properties.append((PROPERTY, {"name": name, "entry": entry, "required": required}))
    if entry["verdict"] in ("fail", "incomplete"):
        texts = [f"{f['verdict']}: {escaped(f['text'])}" for f in entry["findings"]]
        pytest.fail("\n".join([f"gate {entry['id']} is {entry['verdict']}", *texts]), pytrace=False)
    return entry


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
