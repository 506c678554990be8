"""A mock P150 for the whole session, opened in this process; tests of other environments start processes of their own."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from mock_p150 import DESCRIPTOR, make_mock_p150, missing_tools
from ttnn_process import RunsPython

from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.device.ttnn.memory import TtnnTensor
from tt_impl.device.ttnn.runtime import import_ttnn


@pytest.fixture(scope="session")
def mock_environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    if (missing := missing_tools()) is not None:
        pytest.skip(missing)
    return make_mock_p150(tmp_path_factory.mktemp("mock-p150"))


@pytest.fixture(scope="session")
def ttnn(request: pytest.FixtureRequest) -> Any:
    """The module, able to lay out host tensors: for that a descriptor of a device will do, and nothing is opened."""
    os.environ.update(DESCRIPTOR if missing_tools() else request.getfixturevalue("mock_environment"))
    return import_ttnn()


class Remembering(TtnnDevice):
    """Knows its tensors, so that a test's can be freed after it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.made: list[TtnnTensor] = []

    def _adopt(self, *arguments: Any) -> TtnnTensor:
        self.made.append(super()._adopt(*arguments))
        return self.made[-1]

    def free_all(self) -> None:
        for tensor in self.made:
            if tensor.is_allocated:
                self.deallocate(tensor)
        self.made.clear()


@pytest.fixture(scope="session")
def shared_device(mock_environment: Mapping[str, str]) -> Iterator[Remembering]:
    os.environ.update(mock_environment)  # before ttnn's first import, and for good: it reads them once
    device = Remembering.open_mock(command_queues=2)
    yield device
    device.close()


@pytest.fixture
def device(shared_device: Remembering) -> Iterator[TtnnDevice]:
    """The session's mock device, empty before the test and after it."""
    assert shared_device.get_memory_view().allocated_bytes == 0
    yield shared_device
    shared_device.free_all()
    gc.collect()  # of tensors that another view of the mock device made
    assert shared_device.get_memory_view().allocated_bytes == 0, "memory is taken that no tensor holds"


@pytest.fixture(scope="session")
def run(mock_environment: Mapping[str, str]) -> RunsPython:
    return RunsPython(mock_environment)
