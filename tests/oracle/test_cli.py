"""The command line: exit codes, one-line errors that change nothing on disk, and interrupts that leave nothing half done."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from oracle import cli
from oracle.commands.golden import golden_app
from oracle.golden.recipe import ReasoningEffort
from oracle.judge.gates import GATE_NAMES
from oracle.kolibri1.synthetic import write_synthetic
from oracle.serialization import canonical_json

SCRIPT = str(Path(sys.executable).parent / "kolibri-oracle")
Snapshot = dict[str, bytes | None]
Call = Callable[..., tuple[int, str, str]]


def snapshot(folder: Path) -> Snapshot:
    """Every file's bytes and every folder's name below `folder`."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def folder(tiny_folder: Path, tiny_golden_folder: Path, tmp_path: Path) -> Path:
    """A working folder with a checkpoint, its golden, and files that must survive."""
    shutil.copytree(tiny_folder, tmp_path / "checkpoint")
    shutil.copytree(tiny_golden_folder, tmp_path / "checkpoint" / "golden")
    (tmp_path / "existing").mkdir()
    (tmp_path / "existing" / "kept").write_text("kept")
    return tmp_path


def refused(call: Call, folder: Path, *arguments: object) -> str:
    """The one line that a command is refused with: exit code 2, nothing on standard output, nothing changed on disk."""
    before = snapshot(folder)
    code, out, err = call(*arguments)
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert snapshot(folder) == before
    return err


GATE = ("gate", "--subject", "perfect", "--jobs", "1")

BAD_GATES: dict[str, tuple[tuple[str, ...], str]] = {
    "an unknown subject": (("--subject", "nobody"), "unknown subject 'nobody'; installed subjects are "),
    "an unknown device": (("--device", "gpu"), "subject 'perfect' has no device 'gpu'"),
    "an unknown arm": (("--arm", "int8"), "subject 'perfect' has no arm 'int8'; it has bf16, fp32"),
    "an unknown device of tt": (("--subject", "tt", "--device", "gpu"), "subject 'tt' has no device 'gpu'"),
    "an unknown arm of tt": (
        ("--subject", "tt", "--arm", "int8"),
        "subject tt has no arm 'int8': its base is 'int8'; an arm is bf16 or exact, ",
    ),
    "a glob that matches nothing": (("--only", "flops*"), f"matches no gate; the gates are {', '.join(GATE_NAMES)}"),
    "a missing folder for the verdict": (("--json", "nowhere/verdict.json"), "nowhere does not exist; create it first"),
    "a folder as the verdict's file": (("--json", "existing"), "existing is a folder; name a file"),
    "a file as the verdict's folder": (("--json", "existing/kept/x"), "kept does not exist"),
    "an existing folder for the run": (("--save-run", "existing"), "existing exists already"),
    "a missing folder for the run": (("--save-run", "nowhere/run"), "nowhere does not exist; create it first"),
    "a replay with a device": (("--replay", "existing", "--device", "sim"), "leave out --device, --arm and --save-run"),
    "a replay with an arm": (("--replay", "existing", "--arm", "bf16"), "leave out --device, --arm and --save-run"),
    "a replay that is saved": (("--replay", "existing", "--save-run", "x"), "leave out --device, --arm and --save-run"),
    "a replay of no run": (("--replay", "existing"), "run.json cannot be read"),
    "a missing golden": (("--golden", "existing"), "golden.json cannot be read"),
    "a missing checkpoint": (("--checkpoint", "existing", "--golden", "checkpoint/golden"), "existing is no checkpoint"),
}


@pytest.mark.parametrize("case", BAD_GATES)
def test_a_gate_that_cannot_be_carried_out_says_so_in_one_line(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(folder)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a subject ran before the options were checked")

    monkeypatch.setattr("oracle.judge.session.run_jobs", never)
    arguments, named = BAD_GATES[case]
    assert named in refused(call, folder, *GATE, "--checkpoint", "checkpoint", *arguments)


def test_a_golden_from_another_checkpoint_is_refused(call: Call, folder: Path) -> None:
    write_synthetic(folder / "other", seed=5)
    golden = folder / "checkpoint" / "golden"
    message = refused(call, folder, *GATE, "--checkpoint", folder / "other", "--golden", golden)
    assert "was made from another checkpoint" in message
    assert "pass the golden and the checkpoint that belong together" in message


@pytest.mark.parametrize("command", [GATE, ("golden", "show"), ("golden", "verify")], ids=lambda c: " ".join(c[:2]))
@pytest.mark.parametrize("file", ["golden.json", "golden.safetensors"])
def test_a_golden_whose_bytes_changed_is_refused(call: Call, folder: Path, command: tuple[str, ...], file: str) -> None:
    path = folder / "checkpoint" / "golden" / file
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert file in refused(call, folder, *command, "--checkpoint", folder / "checkpoint")


def test_a_changed_checkpoint_is_refused(call: Call, folder: Path) -> None:
    (folder / "checkpoint" / "model-00002-of-00002.safetensors").unlink()
    message = refused(call, folder, *GATE, "--checkpoint", folder / "checkpoint")
    assert "model-00002-of-00002.safetensors is missing" in message


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_golden_that_is_not_there_is_refused(call: Call, folder: Path, command: str) -> None:
    assert "cannot be read" in refused(call, folder, "golden", command, "--golden", folder / "none")
    json_file = folder / "nowhere" / "x.json"
    assert "does not exist" in refused(call, folder, "golden", command, "--json", json_file)


@pytest.mark.parametrize(
    "arguments", [("gate", "--jobs", "0"), ("gate", "--jobs", "many"), ("gate", "--nothing"), ("nothing",), ("golden", "x")]
)
def test_options_that_do_not_exist_exit_with_2(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [("gate",), *(("golden", name) for name in ("make", "verify", "show", "diff", "accept")), ("doctor",), ("bench",)],
    ids=" ".join,
)
def test_the_help_of_every_command_shows_an_example(call: Call, command: tuple[str, ...]) -> None:
    code, out, _ = call(*command, "--help")
    assert code == 0
    assert f"Example: kolibri-oracle {' '.join(command)} " in " ".join(out.split())


def test_the_help_of_making_names_every_kind_of_prompt(call: Call) -> None:
    _, out, _ = call("golden", "make", "--help")
    for word in (
        "`text`",
        "`messages`",
        "`reasoning_effort`",
        "`ids`",
        "`new_tokens`",
        "--stop-at-eos",
        *get_args(ReasoningEffort),
    ):
        assert word in out, word


def test_every_command_is_among_those_whose_help_is_checked(call: Call) -> None:
    commands = {"gate"} | {f"golden {c.name or c.callback.__name__}" for c in golden_app.registered_commands if c.callback}
    assert commands == {"gate", "golden make", "golden verify", "golden show", "golden diff", "golden accept"}
    assert {c.callback.__name__ for c in cli.app.registered_commands if c.callback} == {"gate", "doctor", "bench"}


def test_golden_show_writes_what_it_prints(call: Call, folder: Path) -> None:
    code, out, _ = call("golden", "show", "--checkpoint", folder / "checkpoint", "--json", folder / "summary.json")
    assert code == 0
    summary = json.loads((folder / "summary.json").read_bytes())
    assert (folder / "summary.json").read_bytes() == canonical_json(summary)
    assert summary["schema"] == "kolibri-golden-summary/1"
    assert summary["digest"] in out
    assert summary["positions"] == 32 == sum(summary["margins"]["positions"])
    assert [p["name"] for p in summary["prompts"]] == ["first", "second"]
    assert {name: c["arms"] for name, c in summary["classes"].items()} == {n: ["a", "b", "c", "d"] for n in ("bf16", "fp32")}


def test_the_minis_golden_is_shown_without_options(call: Call) -> None:
    code, out, _ = call("golden", "show")
    assert code == 0
    assert re.search(r"\d+ positions, \d+\.\d% with a margin above 2 nats", out)


def test_the_doctor_agrees_with_the_mini_without_options(call: Call) -> None:
    code, out, err = call("doctor")
    assert (code, err) == (0, "")
    assert "geometry: not the release's: hidden_size 256 (release 2560)" in out
    assert out.endswith("AGREES with its inventory, by its headers alone: no tensor was read\n")
    assert re.search(r"^ *python +CPython ", out, re.MULTILINE)


def test_the_doctor_names_every_fault_and_writes_what_it_prints(call: Call, folder: Path) -> None:
    checkpoint = folder / "checkpoint"
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    with (checkpoint / "model-00001-of-00002.safetensors").open("ab") as file:
        file.write(b"\x00")
    before = snapshot(checkpoint)
    code, out, err = call("doctor", "--checkpoint", checkpoint, "--json", folder / "doctor.json")
    assert (code, err) == (1, "")
    assert "model-00002-of-00002.safetensors is missing; restore it" in out
    assert "model-00001-of-00002.safetensors is longer than its header says" in out
    assert snapshot(checkpoint) == before
    summary = judged(folder / "doctor.json")
    assert (folder / "doctor.json").read_bytes() == canonical_json(summary)
    assert (summary["schema"], summary["agrees"]) == ("kolibri-doctor/1", False)
    assert {fault["kind"] for fault in summary["faults"]} == {"missing", "too long"}
    assert f"tensors: {summary['totals']['all']['missing']:,} missing" in out
    assert summary["environment"]["numpy"] in out


def test_the_doctor_prints_the_plans_of_installed_subjects(call: Call, folder: Path) -> None:
    code, out, err = call("doctor", "--plan", "--sequences", "2", "--context", "64", "--json", folder / "doctor.json")
    assert (code, err) == (0, "")
    assert "KV cache, 2 x 64 positions in blocks of 32" in out
    plan = judged(folder / "doctor.json")["plan"]
    assert plan["request"] == {"sequences": 2, "context": 64}
    rows = {row["name"]: row["value"] for section in plan["tt"]["sections"] for row in section["rows"]}
    assert rows["all of them as fp8 with grids"] == 5 * 16 * 196_656
    assert "tt: resident" in out
    assert "tt: resident" not in call("doctor")[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--context", "64"), "--sequences and --context belong to --plan"),
        (("--plan", "--context", "5000"), "a context of 5000 positions; the decoder takes 1 to 4096"),
        (("--plan", "--sequences", "0"), "a plan for 0 sequences"),
        (("--plan", "--sequences", "99999"), "one step of 99999 sequences beside residents and KV cache: needs "),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused_in_one_line(call: Call, options: tuple[str, ...], said: str) -> None:
    code, out, err = call("doctor", *options)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--checkpoint", "nowhere"), "nowhere is no checkpoint: it has no config.json"),
        (("--checkpoint", "existing"), "existing is no checkpoint: it has no config.json"),
        (("--checkpoint", "existing/kept"), "kept is no checkpoint: it is not a folder"),
        (("--checkpoint", "checkpoint", "--json", "existing"), "existing is a folder; name a file"),
        (("--checkpoint", "checkpoint", "--json", "nowhere/x.json"), "nowhere does not exist; create it first"),
        (("--checkpoint", "checkpoint", "--json", "checkpoint/x.json"), "which is read; write results elsewhere"),
    ],
)
def test_a_doctor_that_cannot_look_says_so_in_one_line(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.chdir(folder)
    assert named in refused(call, folder, "doctor", *arguments)


def judged(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes())


def test_a_saved_run_is_judged_again_to_the_same_verdict(call: Call, folder: Path) -> None:
    options = ("--checkpoint", folder / "checkpoint")
    first = call(*GATE, *options, "--save-run", folder / "run", "--json", folder / "first.json")
    again = call("gate", *options, "--jobs", 1, "--replay", folder / "run", "--json", folder / "again.json")
    saved, replayed = judged(folder / "first.json"), judged(folder / "again.json")
    assert first[0] == again[0] == 0, first
    assert saved["verdict"] == "pass"
    assert saved.pop("environment")
    assert replayed.pop("environment")
    for document in (saved, replayed):  # a replay looks at no tokenizer, installed or not
        assert document["gates"][0]["measured"].pop("tokenizer")
    assert saved == replayed
    assert (folder / "first.json").read_bytes() == canonical_json(judged(folder / "first.json"))


def test_a_narrowed_verdict_says_so(call: Call, folder: Path) -> None:
    code, out, _ = call(*GATE, "--checkpoint", folder / "checkpoint", "--only", "flips", "--json", folder / "v.json")
    assert code == 0, out
    assert "partial" in out.lower()
    verdicts = {g["id"].split("@")[0]: g["verdict"] for g in judged(folder / "v.json")["gates"]}
    assert verdicts["flips"] == "pass"
    assert verdicts.get("logits", "not judged") != "pass"


def test_a_run_that_answers_another_golden_is_refused(call: Call, folder: Path, reseal: Callable[..., None]) -> None:
    golden = folder / "checkpoint" / "golden"
    code, *_ = call(*GATE, "--checkpoint", folder / "checkpoint", "--only", "golden", "--save-run", folder / "run")
    assert code == 0
    reseal(golden, lambda document: document["recipe"]["versions"].update(numpy="another"))
    message = refused(call, folder, "gate", "--checkpoint", folder / "checkpoint", "--replay", folder / "run")
    assert "answers another golden" in message


def test_the_installed_script_refuses_bad_input_with_one_line_and_exit_code_2(folder: Path) -> None:
    before = snapshot(folder)
    done = subprocess.run(
        [SCRIPT, *GATE, "--golden", str(folder / "none"), "--json", str(folder / "v.json")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"error: .*none/golden\.json cannot be read .*\n", done.stderr)
    assert snapshot(folder) == before


ANNOUNCED = """
import os, sys
import oracle.judge.session as session
from oracle import cli
def announce():
    print("announced", flush=True)
def hook():
{hook}
if __name__ == "__main__":
    hook()
    cli.main()
"""

WHILE_RUNNING = """
    honest = session.run_jobs
    def run_jobs(*arguments):
        announce()
        return honest(*arguments)
    session.run_jobs = run_jobs
"""

WHILE_WRITING = """
    def fsync(descriptor):
        announce()
        sys.stdin.readline()
    os.fsync = fsync
"""


def interrupted(script: Path, hook: str, arguments: tuple[str, ...], wait: float = 0.0) -> tuple[int, str]:
    """Start the command line, wait until it announces itself, press Ctrl-C; exit code and standard error."""
    script.write_text(ANNOUNCED.format(hook=hook))
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert "announced\n" in iter(process.stdout.readline, "")
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
        try:
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
        return process.returncode, errors


def test_an_interrupt_while_subjects_run_writes_no_verdict(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    arguments = ("gate", "--subject", "tt", "--jobs", "1", "--json", str(out / "v.json"), "--save-run", str(out / "run"))
    code, errors = interrupted(tmp_path / "program.py", WHILE_RUNNING, arguments, wait=1.0)
    assert snapshot(out) == {}
    assert code == 130
    assert errors.endswith("error: interrupted; nothing is half written\n")


@pytest.mark.parametrize("old", [None, b"old"])
def test_an_interrupt_while_the_verdict_is_written_leaves_no_half_of_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, old: bytes | None
) -> None:
    out = tmp_path_factory.mktemp("out")
    if old is not None:
        (out / "v.json").write_bytes(old)
    arguments = (*GATE, "--checkpoint", str(folder / "checkpoint"), "--only", "golden", "--json", str(out / "v.json"))
    code, errors = interrupted(folder / "program.py", WHILE_WRITING, arguments)
    assert snapshot(out) == ({} if old is None else {"v.json": old})
    assert code == 130
    assert errors == "error: interrupted; nothing is half written\n"


@pytest.mark.parametrize("inside", ["config.json", "golden/golden.json", "verdict.json"])
def test_a_result_never_overwrites_what_it_was_computed_from(call: Call, folder: Path, inside: str) -> None:
    arguments = ("--checkpoint", folder / "checkpoint", "--json", folder / "checkpoint" / inside)
    assert "which is read; write results elsewhere" in refused(call, folder, *GATE, *arguments)


@pytest.mark.parametrize("kind", ["pipe", "link", "dangling link"])
def test_what_is_no_regular_file_is_not_replaced_by_one(call: Call, folder: Path, kind: str) -> None:
    path = folder / "odd.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(folder / ("target" if kind == "link" else "nowhere"))
        (folder / "target").touch()
    code, _, err = call(*GATE, "--checkpoint", folder / "checkpoint", "--json", path)
    assert (code, path.is_file() and not path.is_symlink()) == (2, False)
    assert "is no regular file" in err


def test_a_name_that_the_file_system_refuses_is_one_line(call: Call, folder: Path) -> None:
    for option in ("--json", "--save-run"):
        assert "cannot be written" in refused(call, folder, *GATE, option, folder / ("x" * 300))


def test_control_characters_of_a_golden_reach_no_terminal(call: Call, folder: Path, reseal: Callable[..., None]) -> None:
    def with_hostile_text(document: dict[str, Any]) -> None:
        document["recipe"]["prompts"][0].update(text="a\x1b[2Jb\nPASS", ids=None)
        document["prompts"][0].update(text="a\x1b[2Jb\nPASS")

    golden = folder / "checkpoint" / "golden"
    reseal(golden, with_hostile_text)
    code, out, _ = call("golden", "show", "--checkpoint", folder / "checkpoint")
    assert code == 0
    assert r"a\x1b[2Jb\nPASS" in out
    assert "\x1b" not in out
    reseal(golden, lambda document: document.update({"a\x1b[2Jb\nPASS": 1}))
    message = refused(call, folder, "golden", "show", "--checkpoint", folder / "checkpoint")
    assert r"a\x1b[2Jb\nPASS" in message
    assert "\x1b" not in message


def test_golden_show_says_what_the_chains_expose(call: Call, folder: Path) -> None:
    code, out, _ = call("golden", "show", "--checkpoint", folder / "checkpoint", "--json", folder / "summary.json")
    sensitivity = judged(folder / "summary.json")["sensitivity"]
    assert (code, sensitivity["faults"], sensitivity["exposed"], sensitivity["hidden"]) == (0, 38, 38, [])
    weakest = sensitivity["weakest"]
    assert 0 < weakest["changed"] <= weakest["compared"]
    seen = f"weakest: {weakest['fault']}, {weakest['changed']} of {weakest['compared']} ids"
    assert f"sensitivity 38 of 38 (100.0%); {seen}\n" in out
