"""Subjects are found by name; what a subject does not have is refused with what it has, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oracle.errors import SubjectError
from oracle.subjects import perfect
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.registry import check_request, subject_factory, subject_names

REQUEST = SubjectRequest(Path("checkpoint"))


class _Factory:
    arms = {"fast": "bf16", "exact": "fp32"}
    devices = ("sim", "card")
    plants = {"rust": "gate:slots"}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package whose subject needs a library that is not there."""
    (tmp_path / "broken_subject.py").write_text("import a_library_that_is_not_installed\n")
    info = tmp_path / "broken_subject-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-subject\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kolibri_oracle.subjects]\nbroken = broken_subject:FACTORY\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_the_installed_subjects_are_listed_in_order() -> None:
    names = subject_names()
    assert names == tuple(sorted(names))
    assert {"perfect", "reference", "transformers", "tt"} <= set(names)


def test_a_subject_is_found_by_its_name() -> None:
    assert subject_factory("perfect") is perfect.FACTORY


def test_an_unknown_subject_is_refused_with_the_installed_ones() -> None:
    with pytest.raises(SubjectError) as caught:
        subject_factory("nope")
    assert str(caught.value) == f"unknown subject 'nope'; installed subjects are {', '.join(subject_names())}"


@pytest.mark.usefixtures("broken")
def test_a_subject_whose_library_is_missing_is_refused_in_one_line_and_others_still_work() -> None:
    with pytest.raises(SubjectError) as caught:
        subject_factory("broken")
    assert "subject 'broken' cannot be used here: No module named 'a_library_that_is_not_installed'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert subject_factory("perfect") is perfect.FACTORY


@pytest.mark.parametrize(("what", "known"), [("arm", "fast, exact"), ("device", "sim, card"), ("plant", "rust")])
def test_what_a_subject_does_not_have_is_refused_with_what_it_has(what: str, known: str) -> None:
    with pytest.raises(SubjectError) as caught:
        check_request("mine", _Factory, replace(REQUEST, **{what: "none-such"}))  # type: ignore[arg-type]
    assert str(caught.value) == f"subject 'mine' has no {what} 'none-such'; it has {known}"


@pytest.mark.parametrize("what", ["device", "plant"])
def test_a_subject_without_any_says_none(what: str) -> None:
    with pytest.raises(SubjectError, match=f"subject 'perfect' has no {what} 'x'; it has none$"):
        check_request("perfect", perfect.FACTORY, replace(REQUEST, **{what: "x"}))


@pytest.mark.parametrize(
    "request_", [REQUEST, replace(REQUEST, arm="exact", device="card", plant="rust"), replace(REQUEST, device="card:any")]
)
def test_what_a_subject_has_is_accepted(request_: SubjectRequest) -> None:
    check_request("mine", _Factory, request_)  # type: ignore[arg-type]
