"""What a golden replaced, and why: written by `golden accept`, covered by the golden's digest.

No time and no name is kept: the same acceptance gives the same bytes, and version control knows both.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

LEAST_WORDS = 3
"""A reason in fewer words ("update", "fix tests") is none."""


class HistoryEntry(BaseModel):
    """One replacement.

    Attributes:
        former: digest of the golden that was replaced.
        headline: what had moved, as `golden diff` says it.
        reason: the maintainer's, at least three words on one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    former: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    headline: str = Field(min_length=1)
    reason: str

    @field_validator("reason")
    @classmethod
    def _says_something(cls, reason: str) -> str:
        if not reason.isprintable():
            raise ValueError("a reason is one printable line")
        if len(reason.split()) < LEAST_WORDS:
            raise ValueError(f"a reason has at least {LEAST_WORDS} words")
        return reason
