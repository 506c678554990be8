"""The ledger of gates in a pytest session: which ran, which should have, under xdist too. Registered by `pytest_plugin`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from oracle.judge.gates import REQUIRED_OF_ALL

MARKER = "kolibri_gate"
PROPERTY = "kolibri_gate"
ALL = "all"
"""After `--kolibri-require`: every gate that the subject declares."""


class SessionLedger:
    """Hooks that watch one session. Workers send what they collected to the controller, whose ledger is the session's.

    Args:
        demanded: gates that must run and compare something, however the session is narrowed; may hold `all`.

    Attributes:
        collected: gate name by node id.
        answers: by gate name, what its test recorded: the verdict entry, the report's `session`, and a reason.
        required: gates that the subject declares.
        narrowed: whether the user left gates out (`-k`, `-m`, `--deselect`, `--lf`, a node id).
        outcomes: by node id, how a gate's test ended that recorded no answer.
    """

    def __init__(self, config: pytest.Config, demanded: Sequence[str] = ()) -> None:
        self.demanded = tuple(demanded)
        self.collected: dict[str, str] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.required: set[str] = set()
        self.outcomes: dict[str, str] = {}
        self.narrowed = any("::" in str(arg) for arg in config.args) or _only_last_failed(config)

    def missing(self) -> dict[str, str]:
        """Gates that should have run and did not, sorted, each with the reason.

        Those are the subject's, or where that is unknown or narrowed every collected one; and the demanded ones, which
        must have compared something too.
        """
        expected = set(self.collected.values()) | (set() if self.narrowed else self.required)
        demanded = set(self.demanded) - {ALL}
        if ALL in self.demanded:
            demanded |= self.required or set(REQUIRED_OF_ALL)
        reasons = {name: self._why(name) for name in expected | demanded if name not in self.answers}
        for name in demanded & self.answers.keys():
            if self.answers[name]["entry"]["compared"] <= 0:
                reasons[name] = self.answers[name]["reason"] or "it compared nothing"
        return dict(sorted(reasons.items()))

    def verdict(self) -> str:
        """`fail` over `incomplete` over `pass`."""
        verdicts = {answer["entry"]["verdict"] for answer in self.answers.values()}
        if "fail" in verdicts:
            return "fail"
        return "incomplete" if "incomplete" in verdicts or self.missing() else "pass"

    def watches(self, config: pytest.Config) -> bool:
        """Whether this session has any gate to answer for."""
        return not config.option.collectonly and bool(self.collected or self.answers or self.demanded)

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
                self.answers[value["name"]] = value
                self.required |= set(value["required"])
        if report.skipped:
            # (path, line, "Skipped: why") of a skip; an expected failure has its reason elsewhere.
            why = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else getattr(report, "wasxfail", "")
            self.outcomes[report.nodeid] = f"its test was skipped: {why.removeprefix('Skipped: ')}"
        elif report.failed:
            self.outcomes[report.nodeid] = f"its test failed in {report.when} before it asked for the verdict"
        elif report.when == "call":
            self.outcomes[report.nodeid] = "its test never asked for the verdict"

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
            return
        silent = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if silent and self.watches(session.config) and self.verdict() != "pass":
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if not self.watches(config):
            return
        terminalreporter.section("kolibri gates")
        for answer in self.answers.values():
            entry = answer["entry"]
            behaved = sum(control["behaved"] for control in entry["controls"])
            line = f"{entry['id']:<22} {entry['verdict']:<14} compared {entry['compared']:>13,}"
            line += f"  controls {behaved} of {len(entry['controls'])} behaved"
            red = entry["verdict"] in ("fail", "incomplete")
            terminalreporter.line(f"{line}  {answer['reason']}".rstrip(), red=red)
        for name, reason in self.missing().items():
            terminalreporter.line(f"{name:<22} DID NOT RUN    {reason}", red=True)
        for session in [answer["session"] for answer in self.answers.values()][:1]:
            terminalreporter.line(_answered(session))
        headline = ("PARTIAL " if self.narrowed else "") + self.verdict().upper()
        terminalreporter.line(f"verdict: {headline}", red=self.verdict() != "pass", green=self.verdict() == "pass")

    def _why(self, name: str) -> str:
        tests = [node for node, gate in self.collected.items() if gate == name]
        if not tests:
            return "left out by the user" if self.narrowed else "no test of it was collected"
        return next((self.outcomes[node] for node in tests if node in self.outcomes), "the session ended before its test")


def _answered(session: dict[str, Any]) -> str:
    answered, of = session["answered"], session["of"]
    parts = [f"{answered[what]:,} of {of[what]:,} {what}" for what in ("prompts", "positions")]
    faults = f"; device faults in {', '.join(session['faults'])}" if session["faults"] else ""
    return f"answered {', '.join(parts)}{faults}"


def _only_last_failed(config: pytest.Config) -> bool:
    """`--lf` leaves whole files uncollected without a word, if anything failed before."""
    cache = getattr(config, "cache", None)
    return bool(config.getoption("lf", False) and cache is not None and cache.get("cache/lastfailed", {}))
