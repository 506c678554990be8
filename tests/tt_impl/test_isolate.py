"""One layer alone gives what it gives within a step, bit for bit, and leaves the decoder as a new sequence finds it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oracle.subjects.protocol import IsolatesLayers, SubjectIdentity
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.device.sim import SimDevice
from tt_impl.step_model import StepModel
from tt_impl.subject import TtSubject

Open = Callable[..., Decoder]


def taps(decoder: Decoder, tokens: list[int]) -> np.ndarray:
    """float32 [T, L, H], the residual stream after each layer."""
    steps = [decoder.step(token).residual for token in tokens]
    return np.stack([residual for residual in steps if residual is not None])


@pytest.mark.parametrize("activation", [DType.BFLOAT16, DType.FLOAT32])
def test_each_layer_alone_gives_what_it_gave_within_the_steps(open_decoder: Open, tokens: list[int], activation: DType) -> None:
    decoder = open_decoder(activation)
    decoder.start()
    residual = taps(decoder, tokens)
    for layer in range(1, residual.shape[1]):
        alone = open_decoder(activation).layer(layer, residual[:, layer - 1])
        assert alone.dtype == np.float32
        assert alone.tobytes() == residual[:, layer].tobytes()


def test_it_begins_and_leaves_a_new_sequence_and_gives_all_memory_back(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder()
    memory = decoder._device.get_memory_view()
    inputs = taps(decoder, tokens)[:, 0]
    first = decoder.layer(1, inputs)
    decoder.step(tokens[0])
    assert decoder.layer(1, inputs).tobytes() == first.tobytes()
    assert decoder.step(tokens[0]).position == 0
    decoder.reset()
    assert decoder._device.get_memory_view() == memory


def test_the_subject_has_the_ability(open_decoder: Open, tokens: list[int]) -> None:
    decoder = open_decoder()
    subject = TtSubject(SubjectIdentity("tt", "fp32", "exact", ()), decoder, "", StepModel(SimDevice()))
    assert isinstance(subject, IsolatesLayers)
    inputs = np.ones((3, decoder._config.hidden_size), np.float32)
    assert subject.layer(0, inputs).tobytes() == open_decoder().layer(0, inputs).tobytes()
