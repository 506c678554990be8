"""The ledger of gates in a pytest session: which ran, which should have, under xdist too. Registered by `pytest_plugin`."""

from __future__ import annotations

from typing import Any

import pytest

MARKER = "kolibri_gate"
PROPERTY = "kolibri_gate"


class SessionLedger:
    """Hooks that watch one session. Workers send what they collected to the controller, whose ledger is the session's.

    Attributes:
        collected: gate name by node id.
        answers: gate name to the verdict entry that its test recorded.
        required: gates that the subject declares.
        narrowed: whether the user left gates out (`-k`, `-m`, `--deselect`, `--lf`, a node id).
    """

    def __init__(self, config: pytest.Config) -> None:
        self.collected: dict[str, str] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.required: set[str] = set()
        self.narrowed = any("::" in str(arg) for arg in config.args)

    def missing(self) -> list[str]:
        """Gates that should have run and did not: the subject's, or where that is unknown every collected one."""
        expected = set(self.collected.values()) | (set() if self.narrowed else self.required)
        return sorted(expected - self.answers.keys())

    def verdict(self) -> str:
        """`fail` over `incomplete` over `pass`."""
        verdicts = {entry["verdict"] for entry in self.answers.values()}
        if "fail" in verdicts:
            return "fail"
        return "incomplete" if "incomplete" in verdicts or self.missing() else "pass"

    def watches(self, config: pytest.Config) -> bool:
        """Whether this session has any gate to answer for."""
        return not config.option.collectonly and bool(self.collected or self.answers)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if marker := item.get_closest_marker(MARKER):
                if not marker.args:
                    raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{MARKER} needs the name of a gate")
                self.collected[item.nodeid] = marker.args[0]

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker(MARKER):
                self.narrowed = True
                self.collected.pop(item.nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, value in report.user_properties:
            if key == PROPERTY and isinstance(value, dict):
                self.answers[value["name"]] = value["entry"]
                self.required |= set(value["required"])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        told = getattr(node, "workeroutput", {}).get(PROPERTY)
        if told is not None:
            self.collected |= told["collected"]
            self.narrowed |= told["narrowed"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[PROPERTY] = {"collected": self.collected, "narrowed": self.narrowed}
        elif self.watches(session.config) and self.verdict() != "pass" and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if not self.watches(config):
            return
        terminalreporter.section("kolibri gates")
        for entry in self.answers.values():
            behaved = sum(control["behaved"] for control in entry["controls"])
            line = f"{entry['id']:<22} {entry['verdict']:<14} compared {entry['compared']:>12,}"
            red = entry["verdict"] in ("fail", "incomplete")
            terminalreporter.line(f"{line}  controls {behaved} of {len(entry['controls'])} behaved", red=red)
        for name in self.missing():
            terminalreporter.line(f"{name:<22} DID NOT RUN", red=True)
        headline = ("PARTIAL " if self.narrowed else "") + self.verdict().upper()
        terminalreporter.line(f"verdict: {headline}", red=self.verdict() != "pass", green=self.verdict() == "pass")
