"""Finds subjects by the entry points of installed packages, so that the oracle imports none of them."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points

from oracle.errors import SubjectError
from oracle.subjects.protocol import HasExclusiveDevices, ParsesArms, SubjectFactory, SubjectRequest
from oracle.subjects.repeats import Repeats

GROUP = "kolibri_oracle.subjects"


def subject_names() -> tuple[str, ...]:
    """Names of all installed subjects, sorted."""
    return tuple(sorted(_entries()))


def subject_factory(name: str) -> SubjectFactory:
    """The factory of a subject.

    Raises:
        SubjectError: no such subject is installed, or importing it failed.
    """
    entries = _entries()
    if name not in entries:
        raise SubjectError(f"unknown subject {name!r}; installed subjects are {', '.join(sorted(entries)) or 'none'}")
    try:
        return entries[name].load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise SubjectError(
            f"subject {name!r} cannot be used here: {error}; install it with `pip install 'kolibri-oracle[reference]'`"
        ) from None


def is_exclusive(name: str, device: str | None) -> bool:
    """Whether only one process at a time can open the subject's device (its first when None), as a card.

    Raises:
        SubjectError: as `subject_factory`.
    """
    factory = subject_factory(name)
    device = next(iter(factory.devices), "") if device is None else device
    return isinstance(factory, HasExclusiveDevices) and device in factory.exclusive_devices


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


_CAUGHT_BY = re.compile(
    r"device-fault:[a-z-]+|gate:(golden|alignment|chain|flips|logits|residual|routing|staging|slots|operands|ops|census|capture|counters)"
)


def canonical_arm(subject: str, arm: str | None) -> str | None:
    """`arm` as the subject's factory lists it; one that the factory does not parse stays as it is.

    Raises:
        SubjectError: no such subject, or no such arm.
    """
    factory = subject_factory(subject)
    return factory.canonical_arm(arm) if arm is not None and isinstance(factory, ParsesArms) else arm


def check_request(name: str, factory: SubjectFactory, request: SubjectRequest) -> None:
    """Raise `SubjectError` unless the subject has the arm, device and plant asked for: before anything costly runs.

    What stands behind a colon in the device is the subject's own to read and to refuse.
    """
    if not factory.arms:
        raise SubjectError(f"subject {name!r} declares no arm; a subject needs at least one, with its numeric class")
    for plant, caught_by in factory.plants.items():
        if not _CAUGHT_BY.fullmatch(caught_by):
            raise SubjectError(
                f"subject {name!r}: plant {plant!r} says it is caught by {caught_by!r}; say `device-fault:KIND` or `gate:NAME`"
            )
    for what, asked, known in (
        ("arm", request.arm, tuple(factory.arms)),
        ("device", None if request.device is None else request.device.partition(":")[0], factory.devices),
        ("plant", request.plant, tuple(factory.plants)),
        ("variant", request.variant, tuple(factory.variants) if isinstance(factory, Repeats) else ()),
    ):
        if asked is not None and asked not in known:
            raise SubjectError(f"subject {name!r} has no {what} {asked!r}; it has {', '.join(known) or 'none'}")
