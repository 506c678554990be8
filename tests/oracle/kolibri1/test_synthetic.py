"""Random checkpoints hide no fault: no two tensors, experts or blocks are alike, and a seed gives the same bytes.

They come at any geometry, byte for byte as safetensors' own writer lays them out, in bounded memory, and what was cut
short never opens.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors import deserialize
from safetensors.numpy import save_file

from oracle.errors import CheckpointError, UsageError
from oracle.kolibri1 import synthetic
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import SCALE_SUFFIX, inventory
from oracle.kolibri1.release import RELEASE_CONFIG
from oracle.kolibri1.scan import INDEX_FILE
from oracle.kolibri1.synthetic import TINY, geometry, tensor_bytes, write_hollow, write_synthetic

NUMPY = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "BF16": ml_dtypes.bfloat16, "F32": np.float32}


def test_no_two_tensors_of_one_shape_are_alike(tiny: Checkpoint) -> None:
    bodies = [(tiny.spec(s.name).shape, tiny.raw(s.name).tobytes()) for s in inventory(tiny.config)]
    assert len(set(bodies)) == len(bodies)


def test_no_two_scales_of_a_grid_are_alike_and_none_is_a_power_of_two(tiny: Checkpoint) -> None:
    for spec in inventory(tiny.config):
        if spec.dtype == "F32":
            values = tiny.raw(spec.name).view("<f4")
            assert len(set(values.tolist())) == values.size > 1
            assert not (np.frexp(values)[0] == 0.5).any()


def test_router_biases_are_not_zero_and_differ(tiny: Checkpoint) -> None:
    for layer in range(3):
        raw = tiny.raw(f"model.layers.{layer}.moe.router.expert_bias").view("<u2")
        assert len(set(raw.tolist())) == raw.size
        assert raw.all()


def test_a_seed_gives_the_same_tensors_and_another_seed_others(tiny: Checkpoint, tmp_path: Path) -> None:
    again, other = (Checkpoint.open(write_synthetic(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    names = [spec.name for spec in inventory(tiny.config)]
    assert all(again.raw(name).tobytes() == tiny.raw(name).tobytes() for name in names)
    assert not any(other.raw(name).tobytes() == tiny.raw(name).tobytes() for name in names)


def test_the_same_call_writes_the_same_files(tiny_folder: Path, tmp_path: Path) -> None:
    again = write_synthetic(tmp_path / "again")
    files = sorted(path.name for path in tiny_folder.iterdir())
    assert files == sorted(path.name for path in again.iterdir())
    assert all((again / name).read_bytes() == (tiny_folder / name).read_bytes() for name in files)


def test_the_size_of_a_chunk_is_not_in_the_bytes(tiny: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "_CHUNK_BYTES", 24)
    assert Checkpoint.open(write_synthetic(tmp_path / "small-chunks")).digest() == tiny.digest()


@st.composite
def geometries(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A config of small widths, no two alike if it can be helped, and a number of shards for it."""
    rows, columns = draw(st.sampled_from([(1, 1), (1, 3), (4, 2), (8, 8), (16, 4)]))
    width = st.integers(1, 4).map(lambda blocks: blocks * np.lcm(rows, columns).item())
    heads, group, experts = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    layers = draw(st.integers(1, 6))
    return geometry(
        layer_types=draw(st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=layers, max_size=layers)),
        weight_block_size=(rows, columns),
        hidden_size=draw(width),
        head_dim=2 * draw(width),
        num_key_value_heads=heads,
        num_attention_heads=heads * group,
        moe_intermediate_size=draw(width),
        shared_expert_intermediate_size=draw(width),
        num_experts=experts,
        num_experts_per_tok=draw(st.integers(1, experts)),
        vocab_size=draw(st.integers(1, 9)),
    ), draw(st.integers(1, layers))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(geometries(), st.integers(0, 2**32))
def test_any_geometry_opens_and_is_finite_and_laid_out_as_safetensors_would(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[dict[str, Any], int], seed: int
) -> None:
    config, shards = case
    folder = write_synthetic(tmp_path_factory.mktemp("any") / "checkpoint", config, seed=seed, shards=shards)
    opened = Checkpoint.open(folder)
    specs = list(inventory(opened.config))
    assert len(opened) == len(specs)
    for spec in specs:
        assert opened.raw(spec.name).size == tensor_bytes(spec)  # and neither NaN nor infinity, or it would be refused
    files = sorted(folder.glob("*.safetensors"))
    assert [path.name for path in files] == [f"model-{i:05d}-of-{shards:05d}.safetensors" for i in range(1, shards + 1)]
    for path in files:
        tensors = {
            name: np.frombuffer(e["data"], NUMPY[e["dtype"]]).reshape(e["shape"]) for name, e in deserialize(path.read_bytes())
        }
        save_file(tensors, folder / "theirs")
        assert path.read_bytes() == (folder / "theirs").read_bytes()
    assert json.loads((folder / INDEX_FILE).read_text())["metadata"] == {"total_size": opened.total_bytes()}


def test_layers_are_in_their_shards_in_order_and_what_is_in_no_layer_in_the_first(tmp_path: Path) -> None:
    config = geometry(**{key: TINY[key] for key in ("hidden_size", "num_experts", "vocab_size")}, num_hidden_layers=5)
    config = TINY | {key: config[key] for key in ("num_hidden_layers", "layer_types")}
    folder = write_synthetic(tmp_path / "five", config, shards=3)
    for name, file in json.loads((folder / INDEX_FILE).read_text())["weight_map"].items():
        layer = int(name.split(".")[2]) if "layers" in name else 0
        assert file == f"model-{(1, 1, 2, 2, 3)[layer]:05d}-of-00003.safetensors"


def test_another_geometry_is_written_as_asked(tmp_path: Path) -> None:
    config: dict[str, Any] = copy.deepcopy(TINY)
    config |= {"num_experts": 5, "num_experts_per_tok": 5, "layer_types": ["full_attention"], "num_hidden_layers": 1}
    opened = Checkpoint.open(write_synthetic(tmp_path / "one-layer", config, shards=1))
    assert opened.config.num_experts == 5
    assert opened.spec("model.layers.0.mlp.gate.weight").shape == (5, 64)


def test_weights_have_a_standard_deviation_near_one_over_the_root_of_their_inputs(tmp_path: Path) -> None:
    config = geometry(num_hidden_layers=1, num_experts=6, num_attention_heads=8, vocab_size=300)
    opened = Checkpoint.open(write_synthetic(tmp_path / "wide", config, shards=1))
    seen = 0
    for spec in inventory(opened.config):
        if spec.dtype == "F8_E4M3":
            rows, columns = spec.shape
            codes = opened.raw(spec.name).view(ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(spec.shape)
            scales = opened.raw(spec.name + SCALE_SUFFIX).view("<f4").reshape(rows // 128, columns // 128)
            weights = codes * scales.repeat(128, 0).repeat(128, 1)
            assert 0.9 < weights.std() * columns**0.5 < 1.2, spec.name
            assert abs(weights.mean()) < 0.1 * weights.std(), spec.name
            seen += 1
    assert seen == 4 + 3 * 7


def test_fp8_codes_hold_both_zeros_every_subnormal_and_both_ends(tmp_path: Path) -> None:
    config = geometry(num_hidden_layers=1, num_experts=6, vocab_size=300)
    raw = Checkpoint.open(write_synthetic(tmp_path / "codes", config, shards=1)).raw("model.layers.0.self_attn.q_proj.weight")
    counts = np.bincount(raw, minlength=256)
    assert counts[[*range(8), *range(0x80, 0x88), 0x7E, 0xFE]].all()
    assert not counts[[0x7F, 0xFF]].any()


def test_a_config_that_is_no_kolibri_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        write_synthetic(tmp_path / "none", TINY | {"norm_topk_prob": True})
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("shards", [0, 4])
def test_more_shards_than_layers_are_refused(tmp_path: Path, shards: int) -> None:
    with pytest.raises(UsageError, match=f"^3 layers cannot be spread over {shards} shards; ask for 1 to 3$"):
        write_synthetic(tmp_path / "none", shards=shards)
    assert not (tmp_path / "none").exists()


def test_progress_counts_up_to_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    opened = Checkpoint.open(write_synthetic(tmp_path / "seen", progress=lambda *counts: seen.append(counts)))
    assert [total for _, total in seen] == [opened.total_bytes()] * len(opened)
    done = [0, *(done for done, _ in seen)]
    assert sorted(b - a for a, b in itertools.pairwise(done)) == sorted(map(tensor_bytes, inventory(opened.config)))
    assert done[-1] == opened.total_bytes()


def test_without_overrides_the_geometry_is_the_releases() -> None:
    assert geometry() == RELEASE_CONFIG


def test_what_follows_from_an_override_follows() -> None:
    config = geometry(num_hidden_layers=7, vocab_size=32_000)
    sliding, full = "sliding_attention", "full_attention"
    assert config["layer_types"] == [sliding] * 4 + [full] + [sliding] * 2
    gates = [f"model.layers.{layer}.mlp.gate" for layer in range(7)]
    assert config["quantization_config"] == RELEASE_CONFIG["quantization_config"] | {"modules_to_not_convert": gates}
    assert (config["eos_token_id"], config["pad_token_id"]) == (31_999, 31_998)
    assert geometry(vocab_size=32_000, eos_token_id=None, pad_token_id=3)["pad_token_id"] == 3
    assert geometry(vocab_size=32_000, eos_token_id=None)["eos_token_id"] is None
    assert geometry(layer_types=[full, sliding])["num_hidden_layers"] == 2
    assert len(RELEASE_CONFIG["quantization_config"]["modules_to_not_convert"]) == 50  # the release's is never changed


def test_an_override_of_no_known_key_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^the release's config has no 'hidden'; override one of architectures, "):
        geometry(hidden=3)


def test_a_hollow_checkpoint_opens_with_every_tensor_and_takes_next_to_no_disk(tmp_path: Path) -> None:
    folder = write_hollow(tmp_path / "hollow", geometry(num_hidden_layers=3), shards=2)
    opened = Checkpoint.open(folder)
    assert opened.total_bytes() > 5.9e9
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) > opened.total_bytes()
    assert sum(path.stat().st_blocks * 512 for path in folder.iterdir()) < 8e6
    assert not opened.raw("model.layers.2.mlp.experts.383.down_proj.weight").any()


def test_a_folder_with_shards_is_left_alone(tiny_folder: Path, tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path / "once")
    (folder / INDEX_FILE).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match=r"^.*once already holds model-00001-of-00002\.safetensors; delete it or pass another"):
        write_synthetic(folder, seed=1)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def run_python(code: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """`code` in an interpreter of its own, with `folder` and the arguments in `sys.argv`."""
    start = "import os, resource, signal, sys\nfrom pathlib import Path\n"
    start += "from oracle.kolibri1.synthetic import *\nfolder = Path(sys.argv[1])\n"
    command = [sys.executable, "-c", start + code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_memory_does_not_grow_with_the_checkpoint_nor_with_its_largest_tensor(tmp_path: Path) -> None:
    """About 310 MB, a third of it in one tensor, in at most 48 MB over what the interpreter and its modules take."""
    code = """
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_synthetic(folder / "warm")
before = peak()
write_synthetic(folder / "large", geometry(num_hidden_layers=2, num_experts=6, vocab_size=20_000), shards=2)
print((peak() - before) // 1024)
"""
    ran = run_python(code, tmp_path)
    assert Checkpoint.open(tmp_path / "large").total_bytes() > 300e6
    assert int(ran.stdout) < 48, ran.stderr


@pytest.mark.parametrize("tensors", [1, 180, len(list(inventory(Kolibri1Config.model_validate(TINY))))])
def test_a_kill_leaves_nothing_that_opens(tmp_path: Path, tensors: int) -> None:
    """After the first tensor, in the second shard, and after the last tensor, when only the index is missing."""
    code = """
seen = []
def kill(done, total):
    seen.append(done)
    if len(seen) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
write_synthetic(folder, progress=kill)
"""
    ran = run_python(code, tmp_path / "killed", tensors)
    assert ran.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "killed").glob("*.safetensors"))) == (1 if tensors == 1 else 2)
    with pytest.raises(CheckpointError, match="has neither"):
        Checkpoint.open(tmp_path / "killed")


def test_a_full_disk_is_one_line_and_leaves_nothing_that_opens(tmp_path: Path) -> None:
    code = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_synthetic(folder)
except UsageError as error:
    print(error)
"""
    ran = run_python(code, tmp_path / "full")
    assert ran.stdout == f"{tmp_path / 'full'} cannot be written (File too large); free its disk or pass another folder\n"
    with pytest.raises(CheckpointError, match="has neither"):
        Checkpoint.open(tmp_path / "full")
