"""The shipped golden, and the perfect subject's run on it as the case that every test here spoils a copy of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_cases import mini_golden, perfect_run

from goldens import mini_checkpoint
from oracle.golden.format import Golden, load_golden
from oracle.judge.gate import Case
from oracle.kolibri1.checkpoint import Checkpoint


@pytest.fixture(scope="session")
def golden() -> Golden:
    return load_golden(mini_golden())


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(mini_checkpoint())


@pytest.fixture(scope="session")
def case(golden: Golden, checkpoint: Checkpoint) -> Case:
    """The perfect subject in class bf16."""
    return Case(golden, perfect_run(golden), checkpoint, golden.document.classes["bf16"])


@pytest.fixture(scope="session")
def fp32_case(case: Case) -> Case:
    """The same answers judged by the floor of class fp32."""
    identity = replace(case.run.identity, numeric_class="fp32", arm="fp32")
    calibration = case.golden.document.classes["fp32"]
    return replace(case, run=replace(case.run, identity=identity), calibration=calibration)
