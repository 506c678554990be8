"""A tiny random checkpoint, and decoders over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.synthetic import write_synthetic
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.experts.layout import CheckpointExperts, ExpertLayout
from tt_impl.experts.pool import ExpertPool
from tt_impl.settings import default_settings

TOKENS = [5, 17, 80, 3, 3, 41, 66, 90, 12, 7, 7, 59, 33, 28, 71, 2, 94, 50, 19, 88, 61, 45, 9, 30]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("checkpoint") / "tiny", seed=3)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Checkpoint:
    return Checkpoint.open(tiny_folder)


@pytest.fixture
def open_decoder(tiny: Checkpoint) -> Callable[..., Decoder]:
    """Open a decoder on the tiny checkpoint; keywords replace its parts, and otherwise its settings.

    `memos` is the memo budget in dequantized experts.
    """

    def build(activation: DType = DType.FLOAT32, **changes: Any) -> Decoder:
        device = changes.pop("device", None) or SimDevice()
        weights, experts = changes.pop("weights", tiny), changes.pop("experts", CheckpointExperts(tiny))
        observer, config = changes.pop("observer", None), changes.pop("config", tiny.config)
        pool_type = changes.pop("pool_type", ExpertPool)
        if (memos := changes.pop("memos", None)) is not None:
            changes["memo_bytes"] = memos * ExpertLayout.of(config).memo_bytes(activation)
        settings = replace(default_settings(config, activation), **changes)
        return Decoder(device, config, weights, experts, settings, observer, pool_type)

    return build


@pytest.fixture
def tokens() -> list[int]:
    """Ids past the tiny window of 9."""
    return list(TOKENS)
