"""Negative controls of the census auditor: one honest step, and steps with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from oracle.judge.census_audit import CensusAuditor
from oracle.judge.census_plan import NORMS, stages
from oracle.judge.control_result import ControlResult
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import expert_weight
from oracle.subjects.census import OpUse

_NORM, _OTHER = (f"model.layers.0.{name}.weight" for name in ("post_attn_norm", "post_ffn_norm"))
_Q_NORM = "model.layers.0.self_attn.q_norm.weight"
_ROUTER, _BIAS = "model.layers.0.mlp.gate.weight", "model.layers.0.moe.router.expert_bias"

Spoil = Callable[[list[OpUse]], list[OpUse]]


def _renaming(names: dict[str, str]) -> Spoil:
    return lambda ops: [replace(op, weights=tuple(names.get(name, name) for name in op.weights)) for op in ops]


def _without(name: str) -> Spoil:
    return lambda ops: [op for op in ops if name not in op.weights]


def _twice(name: str, times: int = 2) -> Spoil:
    return lambda ops: [each for op in ops for each in (times if name in op.weights else 1) * [op]]


def _expert(of: int) -> tuple[str, ...]:
    return tuple(expert_weight(0, of, f"{name}_proj") for name in ("gate", "up", "down"))


def _down_first(ops: list[OpUse]) -> list[OpUse]:
    gate, _, down = _expert(0)
    at, last = (next(i for i, op in enumerate(ops) if name in op.weights) for name in (gate, down))
    return [*ops[:at], ops[last], *ops[at:last], *ops[last + 1 :]]


FAULTS: dict[str, tuple[Spoil, str]] = {
    "norms swapped": (_renaming({_NORM: _OTHER, _OTHER: _NORM}), "belongs"),
    "another norm's weight": (_renaming({_NORM: _OTHER}), "not used"),
    "a norm left out": (_without(_Q_NORM), "not used"),
    "a router twice": (_twice(_ROUTER), "once too often"),
    "an expert twice, another left out": (_renaming(dict(zip(_expert(1), _expert(0), strict=True))), "once too often"),
    "an expert that was not chosen": (
        lambda ops: [*ops, OpUse("linear", (expert_weight(0, -1, "down_proj"),))],
        "once too often",
    ),
    "down before gate": (_down_first, "used before"),
    "a norm by another op": (
        lambda ops: [replace(op, name="mul") if _NORM in op.weights else op for op in ops],
        "used by mul",
    ),
    "layers out of order": (lambda ops: [ops[0], *ops[2:10], ops[1], *ops[10:]], "belongs"),
    "another layer's bias": (lambda ops: [*ops, OpUse("add", (_BIAS,))], "not behind a weight of model.layers.0"),
    "a bias twice": (lambda ops: [*ops, OpUse("add", (_BIAS,)), OpUse("add", (_BIAS,))], "once too often"),
}
"""Each fault with words of the violation that must report it."""


def census_controls(checkpoint: Checkpoint) -> tuple[ControlResult, ...]:
    """The auditor shown an honest step, and one of each kind of fault."""

    def show(spoil: Spoil, words: str = "") -> str:
        violations = _audited(checkpoint.config, spoil)
        return "fire" if any(words in violation for violation in violations) else "pass"

    return (
        ControlResult("census honest", "pass", show(lambda ops: ops)),
        *(ControlResult(f"census {name}", "fire", show(*fault)) for name, fault in FAULTS.items()),
    )


def _audited(config: Kolibri1Config, spoil: Spoil) -> tuple[str, ...]:
    experts = [list(range(config.num_experts_per_tok))] * config.num_hidden_layers
    honest = []
    for stage in stages(config, experts):
        op = "rms_norm" if stage.ops == NORMS else sorted(stage.ops)[0]
        honest += [OpUse(op, (name,)) for name in stage.names]
    auditor = CensusAuditor(config, "control")
    auditor.step(0, spoil(honest), experts)
    return auditor.evidence().violations
