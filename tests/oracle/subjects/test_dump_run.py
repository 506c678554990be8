"""The C++ example of `docs/recorded-runs.md`, compiled as its header says: what it dumps is judged as a run of ours is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.golden.evidence import log_sum_exp, top_logits
from oracle.golden.format import Golden
from oracle.golden.sketch import sketch
from oracle.serialization import canonical_json, digest
from oracle.subjects.harness import digest_embedding, drive
from oracle.subjects.perfect import FACTORY
from oracle.subjects.protocol import SubjectRequest
from oracle.subjects.run import PromptRun, load_run, save_run

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[3] / "docs"
WITHOUT = "KOLIBRI_TEST_WITHOUT_CXX"

# The functions that have an answer of their own in Python, each over rows of numbers from a file.
PROBE = """
#define main dump_run_main
#include "dump_run.cpp"
#undef main

int main(int, char** argv) {
    string bytes = read_file(argv[1]);
    auto all = reinterpret_cast<const float*>(bytes.data());
    size_t size = bytes.size() / 4, width = size_t(std::stoi(argv[2]));
    for (size_t row = 0; row < size; row += width) {
        std::vector<float> values(all + row, all + row + width);
        double lse = log_sum_exp(values);
        auto ids = largest(values, 64);
        auto sketched = sketch_of(values, 4, int64_t(width) / 4);
        auto hash = sha256(reinterpret_cast<const uint8_t*>(values.data()), width * 4 - row % 97);
        fwrite(&lse, 8, 1, stdout);
        fwrite(ids.data(), 4, ids.size(), stdout);
        fwrite(sketched.data(), 4, sketched.size(), stdout);
        fwrite(hash.data(), 1, 16, stdout);
    }
    string text(argv[3]);
    fputs(JsonReader(text).document().write().c_str(), stdout);
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs `dump_run` and `probe`."""
    if os.environ.get(WITHOUT):
        pytest.skip(f"{WITHOUT} is set: the C++ example is not compiled")
    if shutil.which("g++") is None:
        pytest.fail(f"g++ is missing: install it (`apt-get install g++`), or set {WITHOUT}=1 to leave the C++ example untested")
    folder = tmp_path_factory.mktemp("dump-run")
    (folder / "probe.cpp").write_text(PROBE)
    for name, source in (("dump_run", DOCS / "dump_run.cpp"), ("probe", folder / "probe.cpp")):
        command = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-I", DOCS, "-o", folder / name, source]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder


def dump(compiled: Path, run: Path, *options: str, golden: Path | None = None) -> tuple[int, str]:
    """The dumper's exit code, and what is on standard error. The shipped golden by default."""
    inputs = (mini_checkpoint(), golden or mini_checkpoint() / "golden")
    done = subprocess.run([compiled / "dump_run", *inputs, run, *options], capture_output=True, text=True)
    return done.returncode, done.stderr


def gate(run: Path) -> tuple[int, dict[str, str], dict, str]:
    """The command's exit code, each gate's verdict, the whole document, and what is on standard error."""
    out = run.with_suffix(".json")
    command = [sys.executable, "-c", "from oracle.cli import main; main()", "gate", "--replay", run, "--json", out]
    done = subprocess.run(command, capture_output=True, text=True)
    document = json.loads(out.read_bytes()) if out.exists() else {}
    verdicts = {gate["id"].split("@")[0]: gate["verdict"] for gate in document.get("gates", [])}
    return done.returncode, verdicts, document, done.stderr


def test_an_honest_engine_passes_with_every_control_behaved(compiled: Path, tmp_path: Path) -> None:
    assert dump(compiled, tmp_path / "run") == (0, "")
    code, verdicts, document, _ = gate(tmp_path / "run")
    assert (code, document["verdict"], document["flips"]) == (0, "pass", [])
    assert {name for name, verdict in verdicts.items() if verdict == "pass"} >= {"alignment", "flips", "residual", "ledger"}
    assert "fail" not in verdicts.values()
    controls = [control for gate in document["gates"] for control in gate["controls"]]
    assert len(controls) > 20
    assert all(control["behaved"] for control in controls)
    assert document["subject"]["name"] == "stand-in"


def test_without_its_control_run_it_is_never_green(compiled: Path, tmp_path: Path) -> None:
    dump(compiled, tmp_path / "run", "--no-control")
    code, verdicts, document, _ = gate(tmp_path / "run")
    assert (code, verdicts["ledger"]) == (3, "incomplete")
    assert "without a control run by the same dumper" in json.dumps(document["gates"])


@pytest.mark.parametrize(("plant", "gates"), [("late", {"flips", "chain"}), ("argmax", {"flips"}), ("nan", {"logits"})])
def test_a_faulty_engine_is_caught_and_its_control_is_not(compiled: Path, tmp_path: Path, plant: str, gates: set[str]) -> None:
    dump(compiled, tmp_path / "run", "--plant", plant)
    code, verdicts, document, _ = gate(tmp_path / "run")
    assert code == 1
    assert gates <= {name for name, verdict in verdicts.items() if verdict == "fail"}
    assert verdicts["alignment"] == "pass"
    assert all(control["behaved"] for gate in document["gates"] for control in gate["controls"])


def test_a_truncated_file_is_refused_by_the_judge_and_by_the_dumper(compiled: Path, tmp_path: Path) -> None:
    dump(compiled, tmp_path / "run")
    golden = shutil.copytree(mini_checkpoint() / "golden", tmp_path / "golden")
    for path in (tmp_path / "run" / "run.safetensors", golden / "golden.safetensors"):
        os.truncate(path, path.stat().st_size // 2)
    code, verdicts, _, error = gate(tmp_path / "run")
    assert (code, verdicts) == (2, {})
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    code, error = dump(compiled, tmp_path / "other", golden=golden)
    assert (code, "golden.safetensors ends before array" in error) == (2, True)
    assert not (tmp_path / "other").exists()


def test_an_existing_run_is_never_written_over(compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    code, error = dump(compiled, tmp_path / "run")
    assert (code, "exists already" in error) == (2, True)
    assert list((tmp_path / "run").iterdir()) == []


def test_it_dumps_the_bits_that_this_harness_records(compiled: Path, tmp_path: Path, golden: Golden) -> None:
    """All but the logsumexp: exponentials of two libraries, and the level of the ids that are not stored."""
    dump(compiled, tmp_path / "run")
    subject = FACTORY.open(SubjectRequest(mini_checkpoint(), mini_checkpoint() / "golden"))
    dumped = load_run(tmp_path / "run")
    assert list(dumped.prompts) == [p.name for p in golden.prompts]
    for prompt in golden.prompts:
        ours, other = drive(subject, prompt, golden.probes_of(prompt.name).positions), dumped.prompts[prompt.name]
        for field in fields(PromptRun):
            mine, its = getattr(ours, field.name), getattr(other, field.name)
            assert (mine is None) == (its is None), field.name
            if field.name == "logsumexp":
                assert np.abs(mine - its).max() < 1e-9
            elif mine is not None:
                assert (mine.dtype, mine.shape) == (its.dtype, its.shape), field.name
                assert mine.tobytes() == its.tobytes(), field.name


def test_its_document_is_in_our_serialization(compiled: Path, tmp_path: Path) -> None:
    dump(compiled, tmp_path / "run")
    raw = (tmp_path / "run" / "run.json").read_bytes()
    assert raw == canonical_json(json.loads(raw))
    save_run(load_run(tmp_path / "run"), tmp_path / "again")
    mine, its = (json.loads((tmp_path / name / "run.json").read_bytes()) for name in ("again", "run"))
    arrays = ("arrays_digest", "digest")  # safetensors does not say in which order arrays are
    assert {k: v for k, v in mine.items() if k not in arrays} == {k: v for k, v in its.items() if k not in arrays}
    assert its.pop("digest") == digest(canonical_json(its))


def test_its_functions_give_our_bits(compiled: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(0, 4, (40, 512)).astype(np.float32)
    rows[1::2] = np.round(rows[1::2])  # many exact ties, at the 64th place too
    rows.tofile(tmp_path / "rows")
    text = '{"b": [1, -2.5e-07, true, null, []], "a": "\\"\\\\\\n\\u001fé/", "": {}}'
    output = subprocess.run([compiled / "probe", tmp_path / "rows", "512", text], capture_output=True, check=True).stdout
    record = np.dtype([("lse", "f8"), ("ids", "i4", 64), ("sketch", "f4", (4, 32)), ("hash", "u1", 16)])
    got, rest = np.frombuffer(output[: 40 * record.itemsize], record), output[40 * record.itemsize :]
    assert np.array_equal(got["ids"], top_logits(rows)[0])
    assert np.array_equal(got["sketch"], sketch(rows.reshape(40, 4, 128)))
    for index, row in enumerate(rows):
        raw = row.view(np.uint8)[: 2048 - (index * 512) % 97]
        assert np.array_equal(got["hash"][index], digest_embedding(raw))
    expected = log_sum_exp(rows)
    assert (np.abs(got["lse"] - expected) <= 4 * np.spacing(np.abs(expected))).all()
    assert rest == canonical_json(json.loads(text)).rstrip(b"\n")
