"""The folder in which an unfinished session grows: each prompt's outcome, whole, so that a later session can go on.

It belongs to one golden, checkpoint, subject, arm, device, code and environment; another is refused by name. Each outcome is
a recorded run of one prompt (`oracle.subjects.run`): whole or absent, and refused where its bytes changed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from oracle.environment import environment_record
from oracle.errors import DeviceFault, RunError, UsageError
from oracle.golden.format import Golden
from oracle.judge.jobs import PromptJob, PromptOutcome
from oracle.serialization import canonical_json, check_new_folder, digest, new_folder, parse_json, read_bytes
from oracle.subjects.captures import CaptureEvidence
from oracle.subjects.registry import subject_factory
from oracle.subjects.repeats import RepeatEvidence
from oracle.subjects.run import Run, load_run, save_run

_JOB = "session.json"


class UnfinishedSession:
    """Outcomes by job, kept in a folder."""

    def __init__(self, folder: Path, golden_digest: str) -> None:
        self._folder, self._golden_digest = folder, golden_digest

    def get(self, job: PromptJob) -> PromptOutcome | None:
        """What came of the job in an earlier session; None where it was not finished.

        Raises:
            RunError: what is stored is damaged, or not that job's.
        """
        name = _name(job)
        path = self._folder / name
        if not path.exists():
            return None
        advice = "remove that folder, and the same command runs its prompt again"
        try:
            run = load_run(path)
        except RunError:
            raise RunError(f"{path} is damaged; {advice}") from None
        if run.environment != {"job": name} or run.golden_digest != self._golden_digest:
            raise RunError(f"{path} holds the outcome of another job; {advice}")
        fault = run.faults.get(job.prompt)
        return PromptOutcome(
            job,
            run.identity,
            run.prompts.get(job.prompt),
            None if fault is None else DeviceFault(*fault.split(": ", 1)),
            run.slots,
            dict(run.stats),
            run.residents,
            run.ops,
            None if run.repeats is None else run.repeats.repeats[0],
            operands=run.operands,
            census=run.census,
            captures=() if run.captures is None else run.captures.regions,
        )

    def put(self, outcome: PromptOutcome) -> None:
        """Keep an outcome, whole, before the next one is looked at."""
        prompt, name = outcome.job.prompt, _name(outcome.job)
        run = Run(
            identity=outcome.identity,
            golden_digest=self._golden_digest,
            prompts={} if outcome.run is None else {prompt: outcome.run},
            faults={} if outcome.fault is None else {prompt: str(outcome.fault)},
            slots=outcome.slots,
            residents=outcome.residents,
            operands=outcome.operands,
            census=outcome.census,
            ops=outcome.ops,
            repeats=None if outcome.repeat is None else RepeatEvidence(prompt, (), (outcome.repeat,)),
            captures=CaptureEvidence(prompt, "", "", (0, 0), outcome.captures) if outcome.captures else None,
            stats=outcome.stats,
            environment={"job": name},
        )
        save_run(run, self._folder / name)


@contextlib.contextmanager
def unfinished_session(folder: Path, golden: Golden, job: PromptJob, *, resume: bool) -> Iterator[UnfinishedSession]:
    """The session's folder, locked for this process. It stays: `forget` removes it once all is judged.

    Args:
        job: any of the session's own; says whose outcomes these are.
        resume: go on with the folder that is there; otherwise there must be none.

    Raises:
        UsageError: no folder to resume, one that would be overwritten, one of another session, or one in use.
        RunError: the folder is no session's.
    """
    if resume and not folder.is_dir():
        raise UsageError(f"{folder} does not exist, so there is nothing to resume; leave out --resume, or name it by --state")
    if not resume and folder.exists():
        raise UsageError(f"{folder} holds an unfinished session; go on with --resume, remove it, or choose another --state")
    if not resume:
        check_new_folder(folder)
    lock_path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(lock_path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"{folder} is in the hands of another session; wait for it, or choose another --state") from None
    try:
        facts = _facts(golden, job)
        if resume:
            _check_facts(folder, facts)
        else:
            with new_folder(folder) as temporary:  # never there without saying whose it is, whenever it is killed
                (temporary / _JOB).write_bytes(canonical_json(facts))
        yield UnfinishedSession(folder, golden.digest)
    finally:
        lock_path.unlink(missing_ok=True)  # while the lock is held, so that nobody waits on a removed file for long
        lock.release()


def forget(folder: Path) -> None:
    """Remove a session's folder: it was judged whole."""
    shutil.rmtree(folder, ignore_errors=True)


def _name(job: PromptJob) -> str:
    """The folder of one job's outcome."""
    plant, variant = job.request.plant, job.request.variant
    if variant is not None:
        return f"variant-{quote(variant, safe='')}"
    if plant is None:
        return "ops" if job.ops else f"prompt-{job.prompt}"
    return f"plant-{quote(plant, safe='')}"


def _facts(golden: Golden, job: PromptJob) -> dict[str, str]:
    """All that decides an outcome besides its prompt, the most telling difference first."""
    factory = subject_factory(job.subject)
    return {
        "checkpoint": golden.document.checkpoint_digest,
        "golden": golden.digest,
        "subject": job.subject,
        "arm": job.request.arm or next(iter(factory.arms)),
        "device": job.request.device or next(iter(factory.devices), "none"),
        "subject's code": _source_digest(type(factory).__module__.split(".")[0]),
        "oracle's code": _source_digest(__name__.split(".")[0]),
        **environment_record(),
    }


def _check_facts(folder: Path, facts: Mapping[str, str]) -> None:
    path = folder / _JOB
    found = parse_json(read_bytes(path, RunError, "choose another --state"), path, RunError, "choose another --state")
    for what in (*facts, *found):
        if facts.get(what) != found.get(what):
            raise UsageError(
                f"{folder} was begun with another {what} ({found.get(what)!s:.26}, now {facts.get(what)!s:.26}); "
                "go on with that one, remove the folder, or choose another --state"
            )


def _source_digest(package: str) -> str:
    """Digest over the Python sources and native modules of an installed package or module; of nothing where it has none."""
    spec = importlib.util.find_spec(package)
    roots = [Path(root) for root in (spec and spec.submodule_search_locations) or ()]
    files = sorted(path for root in roots for end in ("*.py", "*.so") for path in root.rglob(end))
    if not files and spec is not None and spec.origin is not None and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    return digest(b"".join(digest(path.read_bytes()).encode() for path in files))
