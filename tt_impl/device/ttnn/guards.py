"""Refusing, before the call, what ttnn would not survive; and ttnn's own refusals as faults.

Seen with ttnn 0.81.1: the process is aborted by a float64 array; it dies of a segmentation fault by reading a deallocated
tensor, by any op after the device was closed, by tilizing a host tensor, and on the mock device by an op in a trace capture, by
`execute_trace` and by `wait_for_event`. It goes on, wrongly, with bfloat16 TILE indices of an embedding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from oracle.errors import DeviceFault
from tt_impl.device.protocol import Tensor
from tt_impl.device.ttnn.runtime import said

MOST_USERS = 32
"""Of a decode op: the heads of more do not fit one tile row of users (`nlp_concat_heads_decode` fails without a message)."""


@contextlib.contextmanager
def refusals(call: str) -> Iterator[None]:
    """ttnn's RuntimeError from `call`, as a DeviceFault: `out-of-memory`, `trace-capture` or `bad-operand`."""
    try:
        yield
    except RuntimeError as error:
        message = said(error)
        kind = "bad-operand"
        if "Out of Memory" in message:
            kind = "out-of-memory"
        elif "trace" in message.lower():
            kind = "trace-capture"
        raise DeviceFault(kind, f"{call}: {message}") from None


def require(call: str, condition: bool, *operands: Tensor) -> None:
    """Raises DeviceFault("bad-operand") naming the operands unless `condition`."""
    if not condition:
        shown = ", ".join(f"{t.label} {t.dtype.label} {t.layout.value} {list(t.shape)}" for t in operands)
        raise DeviceFault("bad-operand", f"{call} does not take {shown}")


def not_on_mock(call: str, is_mock: bool) -> None:
    if is_mock:
        raise DeviceFault("not-on-mock", f"{call}: ttnn's mock device does not survive it; run it on a card or on ttsim")
