"""A golden is replaced by a person, for a reason, by a whole successor; whatever ends the process, one of both is in place."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from changed_goldens import rebuilt, rebuilt_with_bytes, with_noise, with_other_choice, with_tie

from oracle.errors import GoldenError, UsageError
from oracle.exchange import locked_folder
from oracle.golden import accept
from oracle.golden.diff import diff_goldens
from oracle.golden.format import ARRAYS_FILE, JSON_FILE, Golden, load_golden, write_golden
from oracle.golden.history import HistoryEntry

REASON = "numpy sums in another order"


@pytest.fixture
def golden(tiny_golden: tuple[Golden, bytes]) -> Golden:
    return tiny_golden[0]


@pytest.fixture
def place(golden_copy: Path) -> Path:
    """The golden that is in place."""
    return golden_copy


@pytest.fixture
def source(golden: Golden, tmp_path: Path) -> Path:
    """A new one, whose values moved within the floor."""
    write_golden(tmp_path / "new", *rebuilt_with_bytes(with_noise(golden, 1e-7)))
    return tmp_path / "new"


def accepted(place: Path, source: Path, reason: str = REASON) -> Golden:
    with locked_folder(place):
        old, new = load_golden(place), load_golden(source)
        return accept.accept(place, old, source, new, headline=diff_goldens(old, new).line, reason=reason)


def test_the_new_golden_is_in_place_with_what_it_replaced_and_why(place: Path, source: Path) -> None:
    former, new = load_golden(place), load_golden(source)
    before = {p.name: p.read_bytes() for p in source.iterdir()}
    placed = accepted(place, source)
    read = load_golden(place)
    assert read.digest == placed.digest != new.digest
    assert read.document.history == (HistoryEntry(former=former.digest, headline="arithmetic", reason=REASON),)
    assert diff_goldens(new, read).same
    assert (place / ARRAYS_FILE).read_bytes() == before[ARRAYS_FILE]
    assert {p.name: p.read_bytes() for p in source.iterdir()} == before
    assert sorted(p.name for p in place.parent.iterdir()) == ["golden", "new"]


def test_the_history_grows_and_the_same_acceptance_gives_the_same_bytes(
    place: Path, source: Path, golden: Golden, tmp_path: Path
) -> None:
    twin = shutil.copytree(place, tmp_path / "twin")
    first = accepted(place, source)
    assert accepted(twin, source).digest == first.digest
    write_golden(tmp_path / "third", *rebuilt_with_bytes(with_noise(golden, 1e-7, seed=2)))
    second = accepted(place, tmp_path / "third", "another seed of noise")
    history = second.document.history
    assert [entry.former for entry in history] == [golden.digest, first.digest]
    assert [entry.reason for entry in history] == [REASON, "another seed of noise"]


def test_a_linked_place_and_its_permissions_stay(place: Path, source: Path, tmp_path: Path) -> None:
    place.chmod(0o750)
    link = tmp_path / "link"
    link.symlink_to(place)
    placed = accepted(link.resolve(), source)
    assert link.is_symlink()
    assert place.stat().st_mode & 0o777 == 0o750
    assert load_golden(link).digest == placed.digest


def test_a_source_that_changed_meanwhile_leaves_the_old_golden(place: Path, source: Path) -> None:
    old, new = load_golden(place), load_golden(source)
    arrays = bytearray((source / ARRAYS_FILE).read_bytes())
    arrays[-1] ^= 1
    (source / ARRAYS_FILE).write_bytes(arrays)
    with pytest.raises(GoldenError), locked_folder(place):
        accept.accept(place, old, source, new, headline="moved", reason=REASON)
    assert load_golden(place).digest == old.digest
    assert sorted(p.name for p in place.parent.iterdir()) == ["golden", "new"]


@pytest.mark.parametrize("name", [*accept.CI_VARIABLES, "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_VERSION"])
def test_no_machine_accepts_a_golden(name: str) -> None:
    accept.check_by_a_person({"HOME": "/"})
    with pytest.raises(UsageError, match=rf"\({name} is set\).*`golden accept` in a shell"):
        accept.check_by_a_person({name: "1"})


@pytest.mark.parametrize("value", ["", "0", "false", "False", " no ", "off"])
def test_a_variable_that_says_no_is_no_ci(value: str) -> None:
    accept.check_by_a_person({"CI": value, "GITHUB_ACTIONS": value})


@pytest.mark.parametrize("reason", ["", "   ", "\t\n", "update", "fix tests", "a b\nc", "a b \x1b[2J c"])
def test_a_reason_that_says_nothing_is_refused(reason: str) -> None:
    with pytest.raises(UsageError, match=r"^--reason: .*; say what moved the golden and why that is right$") as caught:
        accept.check_reason(reason)
    assert "\n" not in str(caught.value)
    assert accept.check_reason(f"  {REASON}\n") == REASON


def test_an_unfinished_golden_the_one_in_place_and_a_place_with_more_are_refused(place: Path, source: Path) -> None:
    accept.check_folders(place, source)
    with pytest.raises(UsageError, match="is unfinished; run the same `golden make` again"):
        accept.check_folders(place, place.with_name("new.unfinished"))
    with pytest.raises(UsageError, match="is the golden that is in place"):
        accept.check_folders(place, place / ".." / place.name)
    (place / "README.md").touch()
    with pytest.raises(UsageError, match=r"holds 'README.md' beside the golden"):
        accept.check_folders(place, source)


def with_lengths(golden: Golden, asked: int, kept: int, **recipe: object) -> Golden:
    """The first prompt cut to `kept` ids of `asked`; the rest of the recipe as given. For the rules only: nothing is stored."""
    first = golden.document.recipe.prompts[0].model_copy(update={"new_tokens": asked})
    changed = golden.document.recipe.model_copy(update={"prompts": (first, *golden.document.recipe.prompts[1:]), **recipe})
    prompt = golden.prompts[0]
    cut = replace(prompt, generated=prompt.generated[:kept])
    document = golden.document.model_copy(update={"recipe": changed})
    return replace(golden, document=document, prompts=(cut, *golden.prompts[1:]))


def only(golden: Golden, count: int) -> Golden:
    kept = golden.probes.prompts < count
    rows = {name: getattr(golden.probes, name)[kept] for name in ("prompts", "positions", "hidden", "router_logits")}
    return replace(golden, prompts=golden.prompts[:count], probes=replace(golden.probes, **rows))


def with_history(golden: Golden) -> Golden:
    entry = HistoryEntry(former=golden.digest, headline="moved", reason=REASON)
    return replace(golden, document=golden.document.model_copy(update={"history": (entry,)}))


def with_other_ids(golden: Golden) -> Golden:
    prompt = golden.prompts[1]
    return replace(golden, prompts=(golden.prompts[0], replace(prompt, prompt_ids=(95, *prompt.prompt_ids[1:]))))


NO_SUCCESSORS: dict[str, tuple[Callable[[Golden], Golden], str]] = {
    "the same": (lambda g: rebuilt(g), "both goldens are the same"),
    "another checkpoint's": (lambda g: rebuilt(g, checkpoint_digest="sha256:1"), "made from another checkpoint"),
    "one prompt less": (lambda g: only(with_noise(g, 1e-7), 1), "lacks prompt second"),
    "other ids": (lambda g: with_other_ids(with_noise(g, 1e-7)), "prompt second was given other ids"),
    "a shorter chain": (lambda g: with_lengths(with_noise(g, 1e-7), 8, 8), "prompt first has 8 generated ids, before 14"),
    "a chain that stops": (
        lambda g: with_lengths(with_noise(g, 1e-7), 14, 8, stop_at_eos=True, eos_ids=(1,)),
        "prompt first has 8 generated ids, before 14",
    ),
    "fewer logits": (lambda g: with_lengths(with_noise(g, 1e-7), 14, 14, top_n=8), "stores 8 logits per position"),
    "a class less": (
        lambda g: rebuilt(with_noise(g, 1e-7), classes={"fp32": g.document.classes["fp32"]}),
        "has no floor of class bf16",
    ),
    "a history": (lambda g: with_history(with_noise(g, 1e-7)), "has a history of its own"),
}


@pytest.mark.parametrize("why", NO_SUCCESSORS)
def test_what_is_no_whole_successor_is_refused(golden: Golden, why: str) -> None:
    change, named = NO_SUCCESSORS[why]
    new = change(golden)
    with pytest.raises(UsageError, match=named) as caught:
        accept.check_successor(golden, new, diff_goldens(golden, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "new",
    [
        lambda g: with_noise(g, 1e-7),
        lambda g: with_noise(g, 1e-2),
        lambda g: with_other_choice(with_tie(g, 0, 9, 1e-6), 0, 5),
        lambda g: with_lengths(with_noise(g, 1e-7), 20, 14),
    ],
    ids=["arithmetic", "moved", "re-rolled", "longer"],
)
def test_a_golden_whose_values_moved_may_be_accepted(golden: Golden, new: Callable[[Golden], Golden]) -> None:
    """However far: that is for the maintainer to judge, who sees it."""
    successor = new(golden)
    accept.check_successor(golden, successor, diff_goldens(golden, successor))


def test_a_chain_that_ends_sooner_at_its_eos_id_is_as_long_as_asked(golden: Golden) -> None:
    old = with_lengths(golden, 14, 14, stop_at_eos=True, eos_ids=(1,))
    new = with_lengths(with_noise(golden, 1e-7), 14, 8, stop_at_eos=True, eos_ids=(1,))
    accept.check_successor(old, new, diff_goldens(old, new))


def test_a_digest_must_be_the_new_goldens_and_long_enough(golden: Golden) -> None:
    digits = golden.digest.removeprefix("sha256:")
    for stated in (golden.digest, digits, digits[:12], golden.digest[: 7 + 12]):
        accept.check_digest(stated, golden)
    for stated in ("", "sha256:", digits[:11], digits[::-1], digits + "0", "0" * 64):
        with pytest.raises(UsageError, match=f"is not the new golden's, which is {golden.digest}"):
            accept.check_digest(stated, golden)


PROGRAM = """
import os, shutil, sys
from pathlib import Path
import oracle.exchange as exchange
import oracle.golden.accept as accept
from oracle.golden.format import load_golden

def pause(where):
    print(where, flush=True)
    sys.stdin.readline()

def around(module, name):
    honest = getattr(module, name)
    def announced(*arguments, **options):
        pause("before " + name)
        result = honest(*arguments, **options)
        pause("after " + name)
        return result
    setattr(module, name, announced)

around(accept, "write_file")
around(accept, "load_golden")
around(exchange, "_sync")
around(os, "rename")
around(exchange.shutil, "rmtree")
honest = exchange._exchange
exchange._exchange = (lambda one, other: False) if sys.argv[1] == "renames" else honest
around(exchange, "_exchange")
place, source = Path("golden").resolve(), Path("new").resolve()
with exchange.locked_folder(place):
    old, new = load_golden(place), load_golden(source)
    accept.accept(place, old, source, new, headline="arithmetic", reason="numpy sums in another order")
print("done", flush=True)
"""
"""Accepts a golden, and stops before and after every step that touches the disk."""


def steps(folder: Path, way: str, kill_at: int | str | None) -> Iterator[str]:
    """What the program announces; it is killed at that step, by number or name, or goes on to its end."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM, way]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            yield line.strip()
            if kill_at in (number, line.strip()):
                process.send_signal(signal.SIGKILL)
            elif line != "done\n":
                process.stdin.write("\n")
                process.stdin.flush()
    assert process.returncode == (0 if kill_at is None else -signal.SIGKILL)


@pytest.fixture(params=["exchange", "renames"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_the_old_or_the_new_golden_whole(place: Path, source: Path, tmp_path: Path, way: str) -> None:
    def workplace(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(place, folder / "golden")
        shutil.copytree(source, folder / "new")
        return folder

    old = load_golden(place).digest
    whole = workplace("whole")
    announced = list(steps(whole, way, None))
    new = load_golden(whole / "golden").digest
    assert announced[-1] == "done"
    seen = set()
    for number, step in enumerate(announced[:-1]):
        folder = workplace(f"{number}")
        assert list(steps(folder, way, number))[-1] == step
        if way == "renames" and not (folder / "golden").exists():
            assert step in ("after rename", "before rename")  # the one gap, which the next acceptance closes
        with locked_folder(folder / "golden"):
            seen.add(load_golden(folder / "golden").digest)
            assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["golden", "new"]
        assert load_golden(folder / "new").digest == load_golden(source).digest
        assert accepted_or_same(folder) == new
    assert seen == {old, new}


def accepted_or_same(folder: Path) -> str:
    """Try again after a kill: accepts what was not accepted yet."""
    with locked_folder(folder / "golden"):
        placed, new = load_golden(folder / "golden"), load_golden(folder / "new")
    return placed.digest if diff_goldens(placed, new).same else accepted(folder / "golden", folder / "new").digest


def test_a_kill_before_and_after_the_exchange(place: Path, source: Path) -> None:
    """Two steps of the slow test above, on every run."""
    old = load_golden(place).digest
    for step, expected in (("before _exchange", True), ("after _exchange", False)):
        folder = shutil.copytree(place.parent, place.parent.parent / step)
        assert list(steps(folder, "exchange", step))[-1] == step
        assert (load_golden(folder / "golden").digest == old) is expected
        assert len(list(folder.glob(".golden.replacement.*"))) == 1
        with locked_folder(folder / "golden"):  # the next one clears it away
            assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["golden", "new"]


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_both_ways_of_replacing_do_the_same(place: Path, source: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "renames":
        monkeypatch.setattr("oracle.exchange._exchange", lambda one, other: False)
    placed = accepted(place, source)
    assert load_golden(place).digest == placed.digest
    assert {p.name for p in place.iterdir()} == {JSON_FILE, ARRAYS_FILE}
    assert sorted(p.name for p in place.parent.iterdir()) == ["golden", "new"]


def test_a_place_that_cannot_be_replaced_stays_and_is_one_line(
    place: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    old = load_golden(place).digest
    monkeypatch.setattr(accept, "write_file", full)
    with pytest.raises(UsageError, match=r"golden cannot be replaced \(No space left on device\)"):
        accepted(place, source)
    assert load_golden(place).digest == old
    assert sorted(p.name for p in place.parent.iterdir()) == ["golden", "new"]


def test_two_at_once_are_refused_and_a_missing_parent_is_not_made(place: Path, tmp_path: Path) -> None:
    with locked_folder(place), pytest.raises(UsageError, match="is being replaced by another process"), locked_folder(place):
        pass
    with pytest.raises(UsageError, match="its folder does not exist"), locked_folder(tmp_path / "nowhere" / "golden"):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_nothing_but_making_and_accepting_writes_a_golden() -> None:
    """In all that is installed: who calls what puts a golden on disk, and who names its files."""
    root = Path(str(accept.__file__)).parents[2]
    sources = {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for folder in ("oracle", "tt_impl", "goldens")
        for path in (root / folder).rglob("*.py")
    }

    def users(*words: str) -> set[str]:
        return {name for name, text in sources.items() if any(word in text for word in words)}

    assert users("write_golden") == {"oracle/golden/format.py", "oracle/commands/golden.py"}
    assert sources["oracle/commands/golden.py"].count("write_golden(") == 1
    assert users("replacement(", "replace_folder(", "import exchange") == {"oracle/exchange.py", "oracle/golden/accept.py"}
    assert users("JSON_FILE", "ARRAYS_FILE") == {"oracle/golden/format.py", "oracle/golden/accept.py"}
    assert users('"golden.json"', '"golden.safetensors"') == {"oracle/golden/format.py"}
