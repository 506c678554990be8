"""The ids at which a checkpoint's chains may stop."""

from __future__ import annotations

from pathlib import Path

from oracle.errors import CheckpointError
from oracle.kolibri1.config import Kolibri1Config
from oracle.serialization import parse_json, read_bytes

_ADVICE = "restore it from the release"


def eos_ids(folder: Path, config: Kolibri1Config) -> tuple[int, ...]:
    """The eos ids that `config.json` and, where there is one, `generation_config.json` name: rising, each once.

    The release names the end of a turn in both and the end of a text in the latter only; engines stop at either.

    Raises:
        CheckpointError: `generation_config.json` is damaged, or an eos id is none of the vocabulary.
    """
    path = folder / "generation_config.json"
    named = None
    if path.exists():
        named = parse_json(read_bytes(path, CheckpointError, _ADVICE), path, CheckpointError, _ADVICE).get("eos_token_id")
    ids = [] if named is None else named if isinstance(named, list) else [named]
    if bad := [i for i in ids if not isinstance(i, int) or isinstance(i, bool)]:
        raise CheckpointError(f"{path}: eos_token_id: {bad[0]!r} is no id; {_ADVICE}")
    found = sorted({*config.eos_token_ids, *ids})
    if bad := [i for i in found if not 0 <= i < config.vocab_size]:
        raise CheckpointError(f"{folder} names the eos id {bad[0]}, outside its vocabulary of {config.vocab_size}; {_ADVICE}")
    return tuple(found)
