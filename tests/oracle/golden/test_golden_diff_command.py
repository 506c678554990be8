"""`golden diff` on the command line: exit codes, what it prints and writes, and nothing hostile on the terminal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from changed_goldens import (
    rebuilt,
    rebuilt_with_bytes,
    with_class,
    with_noise,
    with_other_choice,
    with_recipe,
    with_rows,
    with_tie,
)
from rich.console import Console

from oracle import cli
from oracle.golden.diff import diff_goldens
from oracle.golden.format import Golden, write_golden
from oracle.report.golden_diff import print_golden_diff
from oracle.serialization import canonical_json

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run `golden diff` in this process: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kolibri-oracle", "golden", "diff", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def shown(old: Golden, new: Golden) -> str:
    out = StringIO()
    print_golden_diff(Console(file=out, width=200, color_system=None), diff_goldens(old, new))
    return out.getvalue()


def test_the_same_golden_exits_with_0(call: Call, tiny_golden_folder: Path, tmp_path: Path) -> None:
    twin = shutil.copytree(tiny_golden_folder, tmp_path / "twin")
    code, out, err = call(tiny_golden_folder, twin)
    assert (code, err) == (0, "")
    assert out.endswith("\nSAME\n")


def test_another_golden_exits_with_1_and_the_json_has_all_of_it(
    call: Call, tiny_golden: tuple[Golden, bytes], tiny_golden_folder: Path, tmp_path: Path
) -> None:
    new = rebuilt_with_bytes(with_noise(tiny_golden[0], 1e-7))
    write_golden(tmp_path / "new", *new)
    code, out, err = call(tiny_golden_folder, tmp_path / "new", "--json", tmp_path / "diff.json")
    assert (code, err) == (1, "")
    assert out.endswith("\nARITHMETIC\n")
    written = (tmp_path / "diff.json").read_bytes()
    document = json.loads(written)
    assert written == canonical_json(document)
    assert (document["schema"], document["headline"]) == ("kolibri-golden-diff/1", "arithmetic")
    assert (document["old"], document["new"]) == (tiny_golden[0].digest, new[0].digest)
    assert [m["beyond"] for m in document["multiples"]] == [False] * len(document["multiples"])
    assert len(document["prompts"]) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("none", "golden"), "none/golden.json cannot be read"),
        (("golden", "none"), "none/golden.json cannot be read"),
        (("golden", "golden", "--json", "golden/diff.json"), "which is read; write results elsewhere"),
        (("golden", "golden", "--json", "nowhere/diff.json"), "nowhere does not exist; create it first"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_exits_with_2(
    call: Call, golden_copy: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.chdir(golden_copy.parent)
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert named in err


def test_a_re_roll_shows_where_the_chains_part_and_how_near_the_tie_was(tiny_golden: tuple[Golden, bytes]) -> None:
    old = with_tie(tiny_golden[0], 0, 9, 1e-6)
    new = with_other_choice(old, 0, 5)
    out = shown(old, new)
    first, second = (g.prompts[0].generated[5] for g in (old, new))
    assert f"generated[5]: {first} became {second}" in out
    assert f"first[9]: argmax {first} became {second}, regret 9.54e-07 nat, allowed" in out
    assert "near tie" in out
    assert "BEYOND" not in out
    assert out.endswith("TIE RE-ROLL\n")


def test_what_moved_beyond_the_floor_is_shown_with_its_multiple(tiny_golden: tuple[Golden, bytes]) -> None:
    out = shown(tiny_golden[0], with_noise(tiny_golden[0], 1e-4))
    assert "beyond the floor: first: a logit moved by" in out
    assert "beyond the floor: sketch median, layer 0 is " in out
    assert out.endswith("MOVED\n")


def test_an_expert_set_that_differs_is_shown_with_its_router_gap(tiny_golden: tuple[Golden, bytes]) -> None:
    def swap(rows: dict[str, Any]) -> None:
        rows["expert_ids"][6, 1, 2] = next(e for e in range(8) if e not in rows["expert_ids"][6, 1])

    gap = tiny_golden[0].prompts[1].router_gap[6, 1]
    out = shown(tiny_golden[0], with_rows(tiny_golden[0], 1, swap))
    assert f"second[6]: expert set differs first at layer 1, router gap {gap:.2e}, allowed 1.00e-04: BEYOND" in out


def test_a_band_that_grew_stands_right_above_the_headline(tiny_golden: tuple[Golden, bytes]) -> None:
    old = with_class(tiny_golden[0], "bf16", "bands", regret=0.03)
    out = shown(old, with_class(with_noise(old, 1e-7), "bf16", "bands", regret=0.054))
    assert "class bf16 bands.regret: 0.03 became 0.054 (x1.8)" in out
    assert out.endswith("band regret of class bf16 grew from 0.03 to 0.054 (x1.8)\nARITHMETIC\n")


def test_checkpoints_and_recipes_that_differ_are_shown(tiny_golden: tuple[Golden, bytes]) -> None:
    golden = tiny_golden[0]
    assert f"checkpoint {golden.document.checkpoint_digest} became sha256:0" in shown(
        golden, rebuilt(golden, checkpoint_digest="sha256:0")
    )
    assert "recipe versions.numpy: any became 3\n" in shown(golden, with_recipe(golden, versions={"numpy": "3"}))
    assert "recipe versions.torch: added '2'\n" in shown(golden, with_recipe(golden, versions={"numpy": "any", "torch": "2"}))


def test_nothing_hostile_reaches_the_terminal(tiny_golden: tuple[Golden, bytes]) -> None:
    out = shown(tiny_golden[0], with_recipe(tiny_golden[0], versions={"numpy": "a\x1b[2J\nSAME", "\x1b[2J\n": "b"}))
    assert "\x1b" not in out
    assert "\nSAME" not in out
    assert r"a\x1b[2J\nSAME" in out
