"""The gates, in the order they are judged and printed. `ledger` is not among them: it judges the others."""

from __future__ import annotations

from fnmatch import fnmatchcase

from oracle.errors import UsageError
from oracle.judge.alignment import AlignmentGate
from oracle.judge.capture import CaptureGate
from oracle.judge.census import CensusGate
from oracle.judge.chain import ChainGate
from oracle.judge.counters import CountersGate
from oracle.judge.determinism import DeterminismGate
from oracle.judge.flips import FlipsGate
from oracle.judge.gate import Gate, gate_id
from oracle.judge.golden_gate import GoldenGate
from oracle.judge.logits import LogitsGate
from oracle.judge.operands import OperandsGate
from oracle.judge.ops import OpsGate
from oracle.judge.residual import ResidualGate
from oracle.judge.routing import RoutingGate
from oracle.judge.slots import SlotsGate
from oracle.judge.staging import StagingGate

GATES: tuple[Gate, ...] = (
    GoldenGate(),
    AlignmentGate(),
    ChainGate(),
    FlipsGate(),
    LogitsGate(),
    ResidualGate(),
    RoutingGate(),
    StagingGate(),
    SlotsGate(),
    OperandsGate(),
    OpsGate(),
    CountersGate(),
    DeterminismGate(),
    CensusGate(),
    CaptureGate(),
)
LEDGER = "ledger"
REQUIRED_OF_ALL = ("golden", "alignment", "chain", "flips")
"""What every kind of subject must answer, token-only engines too; a subject that declares less is never green."""

GATE_NAMES: tuple[str, ...] = (*(gate.name for gate in GATES), LEDGER)


def select(pattern: str | None) -> tuple[str, ...]:
    """Names of the gates that `--only PATTERN` keeps (a shell glob on the name or the whole id); all for None.

    Raises:
        UsageError: the pattern matches none.
    """
    if pattern is None:
        return GATE_NAMES
    ids = {gate.name: gate_id(gate.name, gate.definition) for gate in GATES}
    chosen = tuple(name for name in GATE_NAMES if fnmatchcase(name, pattern) or fnmatchcase(ids.get(name, name), pattern))
    if not chosen:
        raise UsageError(f"--only {pattern!r} matches no gate; the gates are {', '.join(GATE_NAMES)}")
    return chosen
