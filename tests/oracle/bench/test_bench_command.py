"""`kolibri-oracle bench`: what it prints and writes, its exit codes, and what it refuses in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from fake_subjects import FakeFactory, FakeSubject
from typer.testing import CliRunner

from goldens import mini_checkpoint
from oracle.bench import session
from oracle.bench.document import BenchDocument
from oracle.bench.session import BenchOptions
from oracle.cli import app
from oracle.errors import UsageError
from oracle.serialization import canonical_json

Call = Callable[..., tuple[int, str, str]]
SHORT = ("--prompt-ids", "6", "--steps", "3", "--runs", "2")
SLOW_ARM = "bf16,drain=fill,dequant=reread"


@pytest.fixture(autouse=True)
def _short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oracle.bench.machine._SECONDS", 0.01)


@pytest.fixture(scope="module")
def two_arms(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Of the decoder under test on the tiny checkpoint: JSON and what was printed."""
    file = tmp_path_factory.mktemp("two-arms") / "bench.json"
    arms = ("--arm", "bf16", "--arm", "bf16,dequant=reread,drain=fill")
    done = CliRunner().invoke(app, ["bench", "--checkpoint", str(tiny_folder), *SHORT, *arms, "--json", str(file)])
    assert done.exit_code == 0, done.output
    data = file.read_bytes()
    assert data == canonical_json(json.loads(data)) == BenchDocument.model_validate_json(data).to_json()
    return json.loads(data), done.stdout


def test_two_arms_take_turns_and_the_slower_one_waits_more(two_arms: tuple[dict[str, Any], str]) -> None:
    document, out = two_arms
    assert (document["schema"], document["verdict"], document["subject"]) == ("kolibri-bench/1", "pass", "tt")
    assert document["settings"]["order"] == ["bf16", SLOW_ARM] * 2
    fast, slow = document["arms"]
    assert fast["chain_digest"] == slow["chain_digest"]
    assert fast["logits_digest"] == slow["logits_digest"]
    for stage, steps in (("prefill", 6), ("decode", 3)):
        ours, theirs = fast["counts"][stage]["total"], slow["counts"][stage]["total"]
        assert ours["steps"] == theirs["steps"] == steps
        assert theirs["drains"] == theirs["fills"] == ours["fills"]
        waits = theirs["round_trips"] - ours["round_trips"]
        assert waits == theirs["drains"] - ours["drains"] + theirs["rereads"]
        quick, late = fast["modelled_ms"][stage], slow["modelled_ms"][stage]
        assert (late["total"] > quick["total"]) == (waits > 0)
        more = late["causes"]["verification"]["round_trips"] - quick["causes"]["verification"]["round_trips"]
        assert more == pytest.approx(0.02 * (theirs["drains"] - ours["drains"]))
        assert late["causes"]["dequantization"]["round_trips"] == pytest.approx(0.02 * theirs["rereads"])
        assert [late["parts"][part] for part in ("router", "fills", "compute")] == [
            quick["parts"][part] for part in ("router", "fills", "compute")
        ]
    assert slow["counts"]["prefill"]["total"]["rereads"] > 0
    assert "compared: chain, logits, counts and modelled time of 2 runs of each arm; " in out
    assert "; chain and logits of 2 arms of arithmetic bf16\n" in out
    assert out.endswith("PASS\n")


def test_parts_causes_and_steps_add_up_to_the_totals_written(two_arms: tuple[dict[str, Any], str]) -> None:
    for arm in two_arms[0]["arms"]:
        for stage, times in arm["modelled_ms"].items():
            assert sum(times["parts"].values()) == pytest.approx(times["total"])
            for part, causes in times["causes"].items():
                assert sum(causes.values()) == pytest.approx(times["parts"][part])
            steps = arm["counts"][stage]["steps"]
            assert times["per_step"] * steps == pytest.approx(times["total"])
            assert len(arm["wall_ms"][stage]["runs"]) == 2
        assert arm["memory"]["after"] - arm["memory"]["before"] > 0


def test_what_is_printed_says_which_time_is_which_and_how_the_machine_was(two_arms: tuple[dict[str, Any], str]) -> None:
    document, out = two_arms
    assert "wall time is the simulation's, not the device's; it is not judged" in out
    assert "chain digests: sha256 of the ids as a JSON array of decimal numbers without spaces, then one newline" in out
    assert re.search(r"^machine: \d+ CPUs, allowed [\d, ]+, governor [\w ,]+, load [\d. ]+, busy \d+%$", out, re.MULTILINE)
    assert ("BUSY START" in out) == bool(document["machine"]["busy"])
    for name in ("decode, per step", "prefill, per step", "modelled ms", *document["model"]["parts"], "round_trips", "fills"):
        assert re.search(rf"^ +{name} ", out, re.MULTILINE), name
    for arm in document["arms"]:
        assert f"{arm['arm']}: chain {arm['chain_digest']}, logits {arm['logits_digest']}" in out
    assert document["model"]["constants"]["round_trip_ns"] == 20_000
    assert document["environment"]["numpy"]


def test_a_second_bench_writes_the_same_but_for_wall_time_and_machine(
    call: Call, tiny_folder: Path, tmp_path: Path, two_arms: tuple[dict[str, Any], str]
) -> None:
    arms = ("--arm", "bf16", "--arm", SLOW_ARM)
    assert call("bench", "--checkpoint", tiny_folder, *SHORT, *arms, "--json", tmp_path / "again.json")[0] == 0
    again, first = json.loads((tmp_path / "again.json").read_bytes()), deepcopy(two_arms[0])
    for document in (first, again):
        del document["machine"]
        for arm in document["arms"]:
            del arm["wall_ms"]
    assert again == first


def test_without_a_checkpoint_it_is_the_mini_by_its_golden(call: Call, tmp_path: Path) -> None:
    narrowed = ("--prompt-ids", "4", "--steps", "2", "--runs", "1")
    code, _, err = call("bench", *narrowed, "--json", tmp_path / "b.json")
    assert (code, err) == (0, "")
    document = json.loads((tmp_path / "b.json").read_bytes())
    assert document["prompt"]["source"].startswith("prompt 'one-id' and its chain, of golden sha256:")
    assert [arm["arm"] for arm in document["arms"]] == ["bf16"]


def test_without_any_option_it_is_three_runs_of_128_ids_and_64_steps(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BenchOptions] = []

    def instead(options: BenchOptions, _: object) -> BenchDocument:
        asked.append(options)
        raise UsageError("enough")

    monkeypatch.setattr("oracle.commands.bench.run_bench", instead)
    assert call("bench")[0] == 2
    mini = mini_checkpoint()
    assert asked == [BenchOptions(mini, mini / "golden", "tt", None, (), prompt_ids=128, steps=64, runs=3)]


def test_a_difference_between_runs_ends_with_1_and_is_written(
    call: Call, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(subject: FakeSubject) -> None:
        subject.skew = 1

    factory = FakeFactory(wrong, nth=2)
    monkeypatch.setattr("oracle.subjects.registry.subject_factory", lambda _: factory)
    monkeypatch.setattr(session, "subject_factory", lambda _: factory)
    code, out, _ = call("bench", "--checkpoint", tiny_folder, *SHORT, "--json", tmp_path / "b.json")
    assert code == 1
    assert re.search(r"^fail chain: arm plain, run 2 against run 1: id 0 of 4 is \d+ against \d+$", out, re.MULTILINE)
    assert out.endswith("FAIL\n")
    document = json.loads((tmp_path / "b.json").read_bytes())
    assert (document["verdict"], len(document["differences"])) == ("fail", 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--subject", "nobody"), "unknown subject 'nobody'; installed subjects are "),
        (("--device", "gpu"), "subject 'tt' has no device 'gpu'; it has sim, ttnn"),
        (("--device", "sim:never"), "never"),
        (("--arm", "bf16", "--arm", "int8"), "subject tt has no arm 'int8': its base is 'int8'"),
        (("--checkpoint", "nowhere"), "nowhere is no checkpoint"),
        (("--steps", "4000"), "128 prompt ids and 4000 steps are more than the 512 positions"),
        (("--json", "nowhere/b.json"), "nowhere does not exist; create it first"),
        (("--json", "checkpoint/b.json"), "which is read; write results elsewhere"),
        (("--golden", "golden"), "golden.json is damaged"),
        (("--golden", "nowhere"), "nowhere is no golden: it is not a folder; name one with golden.json, or leave --golden out"),
        (("--golden", "golden/golden.json"), "golden/golden.json is no golden: it is not a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(
    call: Call,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").symlink_to(tiny_folder)
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "golden.json").write_text("none")
    before = sorted(tmp_path.iterdir())
    given = () if arguments[0] == "--checkpoint" else ("--checkpoint", "checkpoint")
    code, out, err = call("bench", *given, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("option", ["--runs", "--steps", "--prompt-ids"])
def test_nothing_at_all_cannot_be_measured(call: Call, option: str) -> None:
    code, out, err = call("bench", option, "0")
    assert (code, out) == (2, "")
    assert option in err
    assert "Traceback" not in err


ANNOUNCED = """
import oracle.bench.session as session
from oracle import cli
honest = session.measure
def measure(*arguments):
    print("announced", flush=True)
    return honest(*arguments)
session.measure = measure
cli.main()
"""


def test_an_interrupt_leaves_nothing_half_written(tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    program = tmp_path / "program.py"
    program.write_text(ANNOUNCED)
    arguments = ("bench", "--checkpoint", str(tiny_folder), "--steps", "300", "--json", str(out / "b.json"))
    with subprocess.Popen(
        [sys.executable, str(program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "announced\n"
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors == "error: interrupted; nothing is half written\n"
    assert list(out.iterdir()) == []
