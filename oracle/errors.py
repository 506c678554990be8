"""The few errors this project raises for bad input. Each message says what is wrong, where, and what to do next."""

from __future__ import annotations


class KolibriError(Exception):
    """Base of every error that a user can cause; the command line prints it on one line and exits with 2."""


class CheckpointError(KolibriError):
    """A checkpoint folder that is missing, truncated, inconsistent, or not a Kolibri-1."""


class GoldenError(KolibriError):
    """A golden that is damaged, off its recipe, or made from another checkpoint."""


class RunError(KolibriError):
    """A subject's recorded arrays that are damaged or do not fit the golden they claim to answer."""


class FlipFileError(KolibriError):
    """A flip file that is damaged, or whose records contradict themselves."""


class SubjectError(KolibriError):
    """A subject, device or arm that does not exist or is not available in this environment."""


class UsageError(KolibriError):
    """Options that cannot be carried out: a path that cannot be written, an empty prompt list, ids out of range."""


class DeviceFault(Exception):  # noqa: N818 - a fault that was caught, the field's word
    """Something the implementation under test or its device did wrong while it ran.

    Never bad input and never an absence: a gate reports it as a failure. `kind` is a short stable word (for example
    `slot-verification`, `out-of-memory`, `use-after-free`) that a control can require.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.kind, self.message)
