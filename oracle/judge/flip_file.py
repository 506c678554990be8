"""The flip file: every flip of one run as a sealed document that anyone can check, compare and hand on.

`kolibri-oracle gate --flips FILE` writes it, live or from a stored run, with the same bytes. What it says of itself is
recomputed when it is read: its digest, each record's label and explanation, the signature, the bands. What only the golden
and the run know (that a logit was what it was) a replay of the run shows.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from oracle.errors import FlipFileError
from oracle.golden.calibration import Bands, LogitDtype
from oracle.golden.format import Golden
from oracle.judge.flip_record import FlipRecord, signature
from oracle.judge.verdict import Report, require_class
from oracle.serialization import Sealed, parse_json, read_bytes
from oracle.subjects.protocol import SubjectIdentity

FLIPS_SCHEMA = "kolibri-flips/1"
_ADVICE = "write it again with `kolibri-oracle gate --flips FILE`"


class FlipDocument(Sealed):
    """The content of a flip file.

    Attributes:
        golden_digest: the golden that the run was compared with.
        subject: who was judged; `subject.numeric_class` is the class whose floor gave the bands.
        bands, logit_dtype: of that class; every record was classified with them.
        aligned: whether the run was fed what the golden was. If not, nothing was compared, and that is not "no flips".
        flips: sorted by prompt and position, at most one each.
        flip_signature: over the golden's digest and the flips' prompts, positions and ids.
    """

    format: Literal["kolibri-flips/1"] = Field(alias="schema")
    golden_digest: str
    subject: SubjectIdentity
    bands: Bands
    logit_dtype: LogitDtype
    aligned: bool
    flips: tuple[FlipRecord, ...]
    flip_signature: str

    @model_validator(mode="after")
    def _consistent(self) -> FlipDocument:
        places = [(flip.prompt, flip.position) for flip in self.flips]
        for before, after in pairwise(places):
            if before >= after:
                twice = "twice" if before == after else "out of order"
                raise ValueError(f"the flip at {after[0]}[{after[1]}] is listed {twice}")
        for flip in self.flips:
            if (flip.bands, flip.logit_dtype) != (self.bands, self.logit_dtype):
                raise ValueError(f"the flip at {flip.prompt}[{flip.position}] was classified with other bands than the file's")
        if self.flips and not self.aligned:
            raise ValueError("a run that is not aligned has no flips to compare")
        if self.flip_signature != signature(self.golden_digest, self.flips):
            raise ValueError("flip_signature is not that of the flips")
        return self


def flip_document(golden: Golden, report: Report) -> FlipDocument:
    """The flip file of a session that was judged by `golden`."""
    calibration = require_class(golden, report.run.identity.numeric_class)
    return FlipDocument.model_validate(
        {
            "schema": FLIPS_SCHEMA,
            "golden_digest": report.golden_digest,
            "subject": report.run.identity,
            "bands": calibration.bands,
            "logit_dtype": calibration.logit_dtype,
            "aligned": report.aligned,
            "flips": sorted(report.flips, key=lambda flip: (flip.prompt, flip.position)),
            "flip_signature": report.flip_signature,
        }
    ).sealed()


def load_flips(path: Path) -> FlipDocument:
    """Read a flip file.

    Raises:
        FlipFileError: no flip file there, another schema, bytes that changed, or a record that contradicts itself.
    """
    raw = read_bytes(path, FlipFileError, _ADVICE)
    value = parse_json(raw, path, FlipFileError, _ADVICE)
    if value.get("schema") != FLIPS_SCHEMA:
        raise FlipFileError(f"{path} has schema {value.get('schema')!r}, this version reads {FLIPS_SCHEMA!r}; {_ADVICE}")
    try:
        document = FlipDocument.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise FlipFileError(f"{path}: {where}: {first['msg']}; {_ADVICE}") from None
    if raw != document.to_json():
        raise FlipFileError(f"{path} is not in the canonical serialization: it was edited; {_ADVICE}")
    if document.content_digest() != document.digest:
        raise FlipFileError(f"{path} does not have its own digest: it was changed; {_ADVICE}")
    return document
