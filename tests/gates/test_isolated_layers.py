"""A fault planted in one layer of the real decoder: that layer is named, by a worker process of its own."""

from __future__ import annotations

import pytest

from goldens import mini_checkpoint
from oracle.judge.isolation import IsolationJob, isolate
from oracle.subjects.protocol import SubjectRequest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arm", "plant", "layers"),
    [
        pytest.param("bf16", None, [], id="honest"),
        pytest.param("exact", None, [], id="honest, exact arm"),
        pytest.param("bf16", "norm-swap", [1], id="norms swapped in layer 1"),
        pytest.param("exact", "wrong-expert", [1], id="an expert of layer 1 fetched wrongly"),
        pytest.param("exact", "window-short", [0, 1, 2, 3], id="window one short in every sliding layer"),
    ],
)
def test_the_layers_that_are_off_are_those_with_the_fault(arm, plant, layers):
    folder = mini_checkpoint()
    found = isolate(IsolationJob("tt", SubjectRequest(folder, arm=arm, plant=plant), folder / "golden"))
    assert found is not None
    assert found.fault is None
    assert [layer.layer for layer in found.layers if layer.off] == layers, found.sentence


def test_a_subject_without_the_ability_is_not_asked():
    folder = mini_checkpoint()
    assert isolate(IsolationJob("perfect", SubjectRequest(folder, folder / "golden"), folder / "golden")) is None
