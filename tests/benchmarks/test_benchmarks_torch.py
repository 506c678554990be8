"""The benchmark scripts: what they compare is the same model, their arithmetic is the release's, and they do run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tables import Mark
from touched import kv_bytes_per_token, parameters, touched_bytes
from transformers import AutoModelForCausalLM
from transformers_loading import load_transformers

from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.release import RELEASE_CONFIG
from oracle.kolibri1.synthetic import write_synthetic

ROOT = Path(__file__).parents[2]
RELEASE = Kolibri1Config.model_validate(RELEASE_CONFIG)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_filled_model_is_the_one_that_transformers_loads(tmp_path: Path, dtype: torch.dtype) -> None:
    tiny = Checkpoint.open(write_synthetic(tmp_path / "tiny"))
    theirs: Any = AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=dtype, attn_implementation="eager")
    ours = load_transformers(tiny, dtype)
    expected, got = theirs.state_dict(), ours.state_dict()
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        assert torch.equal(got[name], value), name
    buffers = dict(theirs.named_buffers())
    assert all(torch.equal(value, buffers[name]) for name, value in ours.named_buffers())
    ids = torch.tensor([[5, 80, 17, 3, 3, 95, 41, 0, 12, 60, 7]])
    for experts in ("eager", "grouped_mm"):
        for model in (theirs, ours):
            model.set_experts_implementation(experts)
        with torch.no_grad():
            assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_a_token_of_the_release_touches_what_its_shapes_say() -> None:
    touched = touched_bytes(RELEASE)
    expert = 3 * 512 * 2560
    assert touched["attention and shared expert, fp8"] == 50 * (34_078_720 + expert)
    assert touched["selected experts, fp8"] == 50 * 6 * expert
    assert touched["scales, fp32"] == 4 * (50 * ((2 * 6144 + 2 * 512) * 2560 + 7 * expert)) // 128**2
    assert touched["routers, bf16"] == 50 * 384 * 2560 * 2
    assert touched["head, bf16"] == 128_000 * 2560 * 2


def test_the_releases_parameters_and_its_cache_are_the_published_ones() -> None:
    assert parameters(RELEASE) == 78_103_074_560
    assert kv_bytes_per_token(RELEASE, sliding=False) == 2 * 20 * 1024  # 20 KiB in bf16
    assert 513 * kv_bytes_per_token(RELEASE, sliding=True) == 2 * 42_024_960


@pytest.mark.parametrize(
    ("value", "limit", "at_most", "met"),
    [(0.5, 0.5, False, True), (0.49, 0.5, False, False), (2.0, 2.0, True, True), (2.1, 2.0, True, False)],
)
def test_a_mark_is_met_from_its_limit_on(value: float, limit: float, at_most: bool, met: bool) -> None:
    assert Mark("figure", value, limit, at_most).met == met


@pytest.mark.parametrize("at_most", [True, False])
def test_what_was_not_measured_meets_no_mark(at_most: bool) -> None:
    assert not Mark("figure", None, 0.0, at_most).met


def start(script: str, temporary: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--small", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left(temporary: Path) -> list[str]:
    return [path.name for path in temporary.iterdir() if path.name.startswith("kolibri")]


@pytest.mark.slow
def test_the_benchmark_runs_end_to_end_and_leaves_nothing(tmp_path: Path) -> None:
    report_file, temporary = tmp_path / "report.json", tmp_path / "temporary"
    temporary.mkdir()
    process = start("reference.py", temporary, "--large", "--threads", "1", "--json", str(report_file))
    out, progress = process.communicate()
    assert process.returncode == 0, progress
    report = json.loads(report_file.read_text())
    variants = [(name, variant) for name, peer in report["peers"].items() for variant in peer["variants"]]
    assert variants == [
        ("reference", "alone"),
        ("reference", "with taps"),
        *((f"transformers-{dtype}", experts) for dtype in ("bf16", "fp32") for experts in ("eager", "grouped_mm")),
    ]
    for peer in report["peers"].values():
        assert peer["failure"] is None
        assert peer["peak_resident"] >= peer["peak_anonymous"] > 50e6
        assert all(v["decode_ms"] > 0 < v["prefill_s"] for v in peer["variants"].values())
    assert all(rate > 0.1 for rate in report["read_gb_per_s"])
    assert report["large"]["slice"]["experts_touched"] == 32 > report["large"]["headers"]["experts_touched"] == 12
    assert len(report["marks"]) == 7
    assert all(mark["value"] is not None for mark in report["marks"])
    assert all(f"| {mark['what']} " in out for mark in report["marks"])
    assert not left(temporary)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_benchmark_takes_its_checkpoint_and_its_worker_along(tmp_path: Path, how: int, code: int) -> None:
    process = start("reference.py", tmp_path)
    assert process.stderr is not None
    while "ready after" not in (line := process.stderr.readline()):
        assert line, "ended before its first peer was ready"
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert left(tmp_path)
    assert len(workers) == 1
    process.send_signal(how)
    assert process.wait() == code  # not until its pipes close: the worker holds them too
    assert not Path(f"/proc/{workers[0]}").exists()
    assert not left(tmp_path)
    process.communicate()


@pytest.mark.slow
def test_the_invariance_table_has_every_engine_and_every_change(tmp_path: Path) -> None:
    process = start("invariance.py", tmp_path)
    out, _ = process.communicate()
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| ")]
    assert [row[0].strip() for row in rows[2:]] == [
        "reference alone",
        "reference with taps",
        *(f"transformers-{dtype} {experts}" for dtype in ("fp32", "bf16") for experts in ("eager", "grouped_mm")),
    ]
    assert all(row[1].strip() == "0" for row in rows[2:])  # the same run twice
    assert {cell.strip() for row in rows[2:4] for cell in row[1:]} == {"0"}
    assert process.returncode == 0
    assert not left(tmp_path)
