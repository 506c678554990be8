"""The checkpoint's own tokenizer by the `tokenizers` library alone, where that is installed. No BOS, no added ids.

Enough for judging; `oracle.kolibri1.transformers_tokenizer` is what goldens are made with.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from oracle.errors import CheckpointError, UsageError
from oracle.serialization import parse_json, read_bytes

CHAT_TEMPLATE = "chat_template.jinja"
_ADVICE = "restore it from the release"


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


def transformers_available() -> bool:
    """Whether transformers, and the jinja2 that it renders chat templates with, are installed."""
    return find_spec("transformers") is not None and find_spec("jinja2") is not None


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
        raise CheckpointError(f"{path} cannot be read ({error}); {_ADVICE}") from None

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    return encode


def require_chat_template(folder: Path) -> None:
    """Check that `folder` has a chat template, where transformers looks for one.

    Raises:
        CheckpointError: it has none.
    """
    config = folder / "tokenizer_config.json"
    inside = None
    if config.exists():
        inside = parse_json(read_bytes(config, CheckpointError, _ADVICE), config, CheckpointError, _ADVICE).get("chat_template")
    if not inside and not (folder / CHAT_TEMPLATE).is_file():
        raise CheckpointError(
            f"{folder} has no chat template, neither {CHAT_TEMPLATE} nor one in {config.name}; restore it from the release"
        )
