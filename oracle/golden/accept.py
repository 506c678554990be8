"""Put a new golden in the place of an old one: by a person, for a reason, whole, and never by a test run.

A golden is what everything else is judged by. Refreshed without looking it hides the fault that moved it, so what a test
run, a CI job or half a golden could do by accident is refused here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from oracle.errors import GoldenError, UsageError
from oracle.exchange import replacement
from oracle.golden.diff import GoldenDiff
from oracle.golden.format import ARRAYS_FILE, JSON_FILE, Golden, load_golden
from oracle.golden.history import HistoryEntry
from oracle.golden.unfinished import SUFFIX
from oracle.serialization import read_bytes, write_file

CI_VARIABLES = (
    "CI",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "BUILDKITE",
    "CIRCLECI",
    "TRAVIS",
    "TF_BUILD",
    "JENKINS_URL",
    "TEAMCITY_VERSION",
)
TEST_VARIABLES = ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")
_FALSE = ("", "0", "false", "no", "off")
LEAST_DIGITS = 12
"""Of a digest's 64 hex digits, as many say which golden is meant."""


def check_by_a_person(environment: Mapping[str, str]) -> None:
    """Refuse where no person decides.

    Raises:
        UsageError: in CI, or within a test run.
    """
    for name in CI_VARIABLES:
        if environment.get(name, "").strip().lower() not in _FALSE:
            raise UsageError(f"goldens are not accepted in CI ({name} is set); run `golden accept` in a shell and commit")
    for name in TEST_VARIABLES:
        if name in environment:
            raise UsageError(f"goldens are not accepted by a test run ({name} is set); run `golden accept` in a shell")


def check_reason(reason: str) -> str:
    """The reason without outer spaces.

    Raises:
        UsageError: it says nothing.
    """
    try:
        return HistoryEntry(former="sha256:" + "0" * 64, headline="-", reason=reason.strip()).reason
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--reason: {told}; say what moved the golden and why that is right") from None


def check_folders(place: Path, new: Path) -> None:
    """Refuse what is no finished golden, and a place that holds more than one.

    Raises:
        UsageError: which of both, and why.
    """
    if new.name.endswith(SUFFIX):
        raise UsageError(f"{new} is unfinished; run the same `golden make` again, which goes on where it stopped")
    if place.resolve() == new.resolve():
        raise UsageError(f"{new} is the golden that is in place; name the new one, and the place with --golden")
    if place.is_dir() and (others := sorted(set(os.listdir(place)) - {JSON_FILE, ARRAYS_FILE})):
        raise UsageError(f"{place} holds {others[0]!r} beside the golden, which replacing it would remove; move that away")


def check_successor(old: Golden, new: Golden, diff: GoldenDiff) -> None:
    """Refuse a golden that is no whole successor: equal, of another checkpoint, or made of less.

    Raises:
        UsageError: the first reason.
    """
    if old.document.checkpoint_digest != new.document.checkpoint_digest:
        raise UsageError(
            f"the new golden was made from another checkpoint ({new.document.checkpoint_digest[:19]}...); it succeeds nothing: "
            "move the old one away and run `kolibri-oracle golden make --golden` with its place"
        )
    if diff.same:
        raise UsageError("both goldens are the same: there is nothing to accept")
    if new.document.history:
        raise UsageError("the new golden has a history of its own; accept what `kolibri-oracle golden make` wrote")
    again = "make it of all the old prompts, at least as long"
    if diff.removed:
        raise UsageError(f"the new golden lacks prompt {', '.join(diff.removed)}; {again}")
    if others := [p.name for p in diff.prompts if not p.same_ids]:
        raise UsageError(f"prompt {others[0]} was given other ids, so that the old one is lost; {again}")
    asked, asks = ({spec.name: spec.new_tokens for spec in g.document.recipe.prompts} for g in (old, new))
    stops = new.document.recipe.stop_at_eos and not old.document.recipe.stop_at_eos
    for prompt in diff.prompts:
        shorter = prompt.generated[1] < prompt.generated[0]
        if asks[prompt.name] < asked[prompt.former_name] or (stops and shorter):
            raise UsageError(
                f"prompt {prompt.name} has {prompt.generated[1]} generated ids, before {prompt.generated[0]}; {again}"
            )
    if new.document.recipe.top_n < old.document.recipe.top_n:
        raise UsageError(f"the new golden stores {new.document.recipe.top_n} logits per position, before more; make it anew")
    if lost := [each.numeric_class for each in diff.classes if each.kind == "removed"]:
        raise UsageError(f"the new golden has no floor of class {', '.join(lost)}; make it with all classes of the old one")


def check_digest(stated: str, new: Golden) -> None:
    """Refuse unless `stated` is the new golden's digest, or at least `LEAST_DIGITS` leading digits of it.

    Raises:
        UsageError: it is another's, or too short to tell.
    """
    digits = stated.removeprefix("sha256:")
    if len(digits) < LEAST_DIGITS or not new.digest.removeprefix("sha256:").startswith(digits):
        raise UsageError(f"--digest {stated} is not the new golden's, which is {new.digest}; review it by `golden diff`")


def accept(place: Path, old: Golden, source: Path, new: Golden, *, headline: str, reason: str) -> Golden:
    """Put `new`, with its history, in the place of `old`; returns what is in place then.

    Everything is checked again on what was written, before it takes the place. To be called within `locked_folder(place)`.

    Args:
        place, source: the folders that `old` and `new` were loaded from; `source` stays as it is.
        headline: what moved, on one line.
        reason: the maintainer's.

    Raises:
        GoldenError: the source changed while it was looked at.
        UsageError: the place cannot be written; it is as it was.
    """
    entry = HistoryEntry(former=old.digest, headline=headline, reason=reason)
    document = new.document.model_copy(update={"history": (*old.document.history, entry)}).sealed()
    arrays = read_bytes(source / ARRAYS_FILE, GoldenError, "make it again")
    with replacement(place) as temporary:
        write_file(temporary / ARRAYS_FILE, arrays)
        write_file(temporary / JSON_FILE, document.to_json())
        written = load_golden(temporary)
    return written
