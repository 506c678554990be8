"""The checkpoint's own tokenizer, where the `tokenizers` library is installed. No BOS, no added ids."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from oracle.errors import CheckpointError, UsageError


class Encode(Protocol):
    """Text to ids."""

    def __call__(self, text: str) -> tuple[int, ...]: ...


def tokenizer_available() -> bool:
    """Whether the `tokenizers` library can be imported."""
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        return False
    return True


def open_tokenizer(folder: Path) -> Encode:
    """The encoder of `folder/tokenizer.json`.

    Raises:
        UsageError: the `tokenizers` library is not installed.
        CheckpointError: the file is missing or damaged.
    """
    if not tokenizer_available():
        raise UsageError("text prompts need the tokenizers library; install it with `pip install 'kolibri-oracle[reference]'`")
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} cannot be read ({error}); restore it from the release") from None

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    return encode
