"""Text from outside, safe to print: nothing in it is markup, and nothing in it moves a cursor or forges a line.

Goldens, runs and checkpoints come from others. Every report builds its text with `Text` from here, or escapes all it is
given (the doctor); error messages go through `escaped` too.
"""

from __future__ import annotations

from typing import Any

from rich.text import Text as _RichText


def escaped(text: str) -> str:
    """`text` with all that is not printable written as a Python escape: control and format characters, lone surrogates.

    Newlines too: whatever comes from outside stays on the line that names it.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


class Text(_RichText):
    """rich's `Text`, whose strings are escaped as they come in."""

    def __init__(self, text: str = "", *args: Any, **options: Any) -> None:
        super().__init__(escaped(text), *args, **options)

    def append(self, text: _RichText | str, style: Any = None) -> Text:
        super().append(escaped(text) if isinstance(text, str) else text, style)
        return self
