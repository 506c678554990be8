"""One thread for torch and the kernels, unless a test asks for more: torch's bits depend on it, small work gains nothing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    if find_spec("torch") is None:
        yield
        return
    import numba
    import torch

    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])
