"""The release itself is audited in seconds, from its headers alone, and one byte that is missing of 78.8 GB is named.

Its shards are written sparse: true headers and the true apparent size, with holes in place of tensor data.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest

from oracle.kolibri1.audit import audit
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import TensorSpec, inventory
from oracle.kolibri1.release import RELEASE_CONFIG
from oracle.kolibri1.scan import INDEX_FILE

ITEM_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
LAST = "model-00032-of-00032.safetensors"


def write_sparse_release(folder: Path, shards: int = 32) -> Path:
    """The release's files with holes in place of tensor data."""
    specs = list(inventory(Kolibri1Config.model_validate(RELEASE_CONFIG)))
    weight_map: dict[str, str] = {}
    for index in range(shards):
        part = specs[index * len(specs) // shards : (index + 1) * len(specs) // shards]
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        write_sparse_shard(folder / file, part)
        weight_map |= {spec.name: file for spec in part}
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(RELEASE_CONFIG))
    return folder


def write_sparse_shard(path: Path, specs: list[TensorSpec]) -> None:
    entries, end = {}, 0
    for spec in specs:
        begin, end = end, end + ITEM_BYTES[spec.dtype] * prod(spec.shape)
        entries[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + end)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sparse release. Shared: a test that changes it changes it back."""
    folder = write_sparse_release(tmp_path_factory.mktemp("release"))
    files = [path.stat() for path in folder.iterdir()]
    assert sum(file.st_size for file in files) > 78_827_029_120
    assert sum(file.st_blocks * 512 for file in files) < 100_000_000, "this file system has no sparse files"
    yield folder
    shutil.rmtree(folder)


MEASURED = """
import json, os, re
from pathlib import Path
from oracle.cli import main
try:
    main()
finally:
    # Not ru_maxrss: a process inherits that from the one that started it.
    [peak] = re.findall("VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())
    used = {"seconds": sum(os.times()[:2]), "bytes": int(peak) * 1024}
    Path(os.environ["MEASURED"]).write_text(json.dumps(used))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_the_release_agrees_in_seconds_and_little_memory(release: Path, tmp_path: Path) -> None:
    script, measured, report = tmp_path / "measured.py", tmp_path / "measured.json", tmp_path / "doctor.json"
    script.write_text(MEASURED)
    done = subprocess.run(
        [sys.executable, str(script), "doctor", "--plan", "--checkpoint", str(release), "--json", str(report)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"MEASURED": str(measured)},
    )
    assert done.returncode == 0, done.stderr
    assert "geometry: the release's\n" in done.stdout
    summary = json.loads(report.read_bytes())
    assert summary["agrees"] is True
    assert summary["config"] == []
    counts = {name: (t["found"], t["found_bytes"]) for name, t in summary["totals"].items()}
    assert counts == {
        "fp8": (57_950, 77_398_016_000),
        "scales": (57_950, 18_896_000),
        "bf16": (403, 1_410_117_120),
        "all": (116_303, 78_827_029_120),
    }
    for shown in ("3,311,163,520 bytes", "3,801,088,000 bytes", "1,179,936,000 bytes", "refused: the whole model on 1 card"):
        assert shown in done.stdout
    assert len(summary["plan"]["tt"]["tensors"]) == 1_103 + 4 * 50 + 2
    used = json.loads(measured.read_bytes())
    assert used["seconds"] < 30
    assert used["bytes"] < 500_000_000


@pytest.mark.slow
def test_one_byte_that_is_missing_of_the_release_is_named(release: Path) -> None:
    shard = release / LAST
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    try:
        found = audit(release)
    finally:
        os.truncate(shard, size)
    [tensor], [fault] = found.tensors, found.faults
    assert (tensor.name, tensor.what) == ("lm_head.weight", "wrong")
    assert (fault.kind, fault.file) == ("truncated", LAST)
    assert found.totals[-1].found_bytes == found.totals[-1].expected_bytes - 1 == 78_827_029_119
