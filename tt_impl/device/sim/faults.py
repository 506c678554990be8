"""Faults planted on the device, unseen by whoever uses it: when, where, what.

To add a kind of fault: a frozen dataclass with a `kind` here, entered in `When` or `What`, and its effect in `injector`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from oracle.errors import UsageError


@dataclass(frozen=True)
class OnWrite:
    """As the `nth` host write into the same buffer lands, from 1."""

    nth: int = 1
    kind: Literal["write"] = "write"


@dataclass(frozen=True)
class OnRead:
    """As the `nth` read of the same buffer sets off for the host; bytes are changed on the way, not on the device."""

    nth: int = 1
    kind: Literal["read"] = "read"


@dataclass(frozen=True)
class OnEvent:
    """Right behind the command of event number `nth`, or of the first event after it that has one."""

    nth: int
    kind: Literal["event"] = "event"


@dataclass(frozen=True)
class OnOp:
    """Right behind the `nth` op called `name`, counted over the device, replays included."""

    name: str
    nth: int = 1
    kind: Literal["op"] = "op"


@dataclass(frozen=True)
class OnDrain:
    """As soon as the `nth` synchronization of the device or with an event is over."""

    nth: int = 1
    kind: Literal["drain"] = "drain"


@dataclass(frozen=True)
class Flip:
    """Flip the bits of `mask`, of one byte and not 0, in byte `offset`. A buffer that ends before it is left alone."""

    offset: int = 0
    mask: int = 1
    kind: Literal["flip"] = "flip"


@dataclass(frozen=True)
class Overwrite:
    """Write the bytes of `data`, in hexadecimal, `repeat` times from byte `offset` on, past the buffer's end if they go."""

    offset: int
    data: str
    repeat: int = 1
    kind: Literal["overwrite"] = "overwrite"


@dataclass(frozen=True)
class Drop:
    """The transfer is reported done and moves nothing."""

    kind: Literal["drop"] = "drop"


@dataclass(frozen=True)
class Delay:
    """The transfer is done only when the next settling of its queue, which should have waited for it, is over."""

    kind: Literal["delay"] = "delay"


When = Annotated[OnWrite | OnRead | OnEvent | OnOp | OnDrain, Field(discriminator="kind")]
What = Annotated[Flip | Overwrite | Drop | Delay, Field(discriminator="kind")]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        where: a glob over buffer labels, such as `layer1.slot0` or `layer*.q_proj`; an op's output has the op's name. Every
            buffer that matches is struck.

    Raises:
        UsageError: a fault that could not happen.
    """

    where: str
    when: When
    what: What

    def __post_init__(self) -> None:
        when, what = self.when, self.what
        if when.nth < 1:
            raise UsageError(f"{self}: nth counts from 1")
        if isinstance(what, Drop | Delay) and not isinstance(when, OnWrite | OnRead):
            raise UsageError(f"{self}: only a transfer can be dropped or delayed; use OnWrite or OnRead")
        if isinstance(what, Flip) and (what.offset < 0 or not 0 < what.mask < 256):
            raise UsageError(f"{self}: offset counts from 0, and mask is a byte other than 0")
        if isinstance(what, Overwrite) and (what.offset < 0 or what.repeat < 1 or not _is_hexadecimal(what.data)):
            raise UsageError(f"{self}: offset counts from 0, repeat from 1, and data is hexadecimal, two digits a byte")


@dataclass(frozen=True)
class FaultPlan:
    """The faults of one run. A device opened with one says so in its identity, whole."""

    faults: tuple[Fault, ...] = field(default=())

    def to_json(self) -> str:
        """Canonical: one plan has one text, whatever wrote it."""
        return json.dumps(_PLAN.dump_python(self, mode="json"), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> FaultPlan:
        """The plan that `to_json` wrote.

        Raises:
            UsageError: the text is no plan.
        """
        try:
            return _PLAN.validate_json(text)
        except ValidationError as error:
            raise UsageError(f"not a fault plan: {error.errors()[0]['msg']} at {error.errors()[0]['loc']}") from error


_PLAN = TypeAdapter(FaultPlan)


def _is_hexadecimal(data: str) -> bool:
    try:
        return len(bytes.fromhex(data)) * 2 == len(data) > 0
    except ValueError:
        return False
