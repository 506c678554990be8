"""Tiny checkpoints and a tiny golden for the oracle's own tests. No torch: every number comes from a seeded stream."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracle import cli
from oracle.golden.calibration import ClassCalibration
from oracle.golden.compare import Comparison, compare
from oracle.golden.evidence import PromptEvidence, PromptProbes, log_sum_exp, top_logits
from oracle.golden.floor import calibrate
from oracle.golden.format import Golden, Probes, assemble, write_golden
from oracle.golden.recipe import PromptSpec, Recipe
from oracle.golden.sensitivity import measure
from oracle.judge.shown_router import selection_bias
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.synthetic import TINY, write_synthetic
from oracle.serialization import canonical_json, digest
from oracle.subjects.harness import PassEvidence, digest_embedding, record
from oracle.subjects.run import PromptRun

LENGTHS = {"first": (5, 14), "second": (3, 12)}
Reseal = Callable[[Path, Callable[[dict[str, Any]], None]], None]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kolibri-oracle", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of `TINY`'s geometry in two shards. Shared: copy it before changing it (`tiny_copy`)."""
    return write_synthetic(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Checkpoint:
    """The shared tiny checkpoint, opened."""
    return Checkpoint.open(tiny_folder)


@pytest.fixture
def tiny_copy(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that the test may damage."""
    return shutil.copytree(tiny_folder, tmp_path / "damaged")


@pytest.fixture(scope="session")
def tiny_golden(tiny: Checkpoint) -> tuple[Golden, bytes]:
    """A golden of the tiny checkpoint with invented numbers: whole and consistent, though no model computed them."""
    return invent_golden(tiny)


@pytest.fixture(scope="session")
def tiny_golden_folder(tiny_golden: tuple[Golden, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_golden` on disk. Shared: copy it before changing it (`golden_copy`)."""
    folder = tmp_path_factory.mktemp("tiny-golden") / "golden"
    write_golden(folder, *tiny_golden)
    return folder


@pytest.fixture
def golden_copy(tiny_golden_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny golden that the test may damage."""
    return shutil.copytree(tiny_golden_folder, tmp_path / "golden")


@pytest.fixture(scope="session")
def reseal() -> Reseal:
    """Edit a golden's document as a careful forger would: canonical again, and with the digest of its new content."""

    def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
        path = folder / "golden.json"
        document = json.loads(path.read_bytes())
        change(document)
        document["recipe_digest"] = digest(canonical_json(document["recipe"]))
        document["arrays_digest"] = digest((folder / "golden.safetensors").read_bytes())
        del document["digest"]
        document["digest"] = digest(canonical_json(document))
        path.write_bytes(canonical_json(document))

    return edit


@pytest.fixture(scope="session")
def perturbed_run() -> Callable[..., PromptRun]:
    """The function `perturb`, for tests of comparisons and floors."""
    return perturb


@pytest.fixture(scope="session")
def invented_golden() -> Callable[..., tuple[Golden, bytes]]:
    """The function `invent_golden`, for goldens of other prompts than `tiny_golden`'s."""
    return invent_golden


def invent_golden(
    checkpoint: Checkpoint, seed: int = 0, lengths: Mapping[str, tuple[int, int]] = LENGTHS
) -> tuple[Golden, bytes]:
    """A consistent golden: chains are the argmax of the stored logits, floors come from small noise.

    Args:
        lengths: by prompt name, ids given and generated; the first is probed at its position 17.
    """
    rng = np.random.default_rng(seed)
    specs = tuple(
        PromptSpec(name=name, ids=tuple(rng.integers(0, 96, given).tolist()), new_tokens=generated)
        for name, (given, generated) in lengths.items()
    )
    prompts = tuple(invent_evidence(spec, rng) for spec in specs)
    places = [(0, 4), (0, 17), *((index, 2) for index in range(1, len(prompts)))]  # of the probes
    hidden = rng.normal(size=(len(places), 3, 64)).astype(np.float32)
    router_logits = rng.normal(size=(len(places), 3, 8)).astype(np.float32)
    for (index, position), logits in zip(places, router_logits, strict=True):
        prompts[index].expert_ids[position] = np.argsort(-(logits + selection_bias(checkpoint)), axis=1)[..., :3]
        chosen = np.take_along_axis(logits, prompts[index].expert_ids[position], axis=1)
        prompts[index].expert_weights[position] = 1 / (1 + np.exp(-chosen))
    recipe = Recipe(prompts=specs, truth="float32", floor_arms={"bf16": ("a", "b", "c")}, versions={"numpy": "any"})
    probes = Probes(
        prompts=np.array([index for index, _ in places], dtype=np.int32),
        positions=np.array([position for _, position in places], dtype=np.int32),
        hidden=hidden,
        router_logits=router_logits,
        layer_inputs=rng.normal(size=(len(prompts[0].fed), 3, 64)).astype(np.float32),
    )
    probed = tuple(
        PromptProbes(tuple(place for index, place in places if index == mine), router_logits[probes.prompts == mine])
        for mine in range(len(prompts))
    )
    return assemble(
        recipe=recipe,
        checkpoint_digest=checkpoint.digest(),
        prompts=prompts,
        classes={"fp32": invent_class("fp32", prompts, probed, 1e-7), "bf16": invent_class("bf16", prompts, probed, 1e-4)},
        sensitivity=measure({p.name: (p.prompt_ids, p.generated) for p in prompts}),
        probe_prompt=specs[0].name,
        probes=probes,
    )


def invent_evidence(spec: PromptSpec, rng: np.random.Generator) -> PromptEvidence:
    """Random evidence at `TINY`'s geometry: 96 ids, 3 layers, top-3 of 8 experts."""
    prompt = spec.ids or ()
    positions, layers = len(prompt) + spec.new_tokens - 1, TINY["num_hidden_layers"]
    logits = rng.normal(0, 3, (positions, TINY["vocab_size"])).astype(np.float32)
    ids, values = top_logits(logits)
    return PromptEvidence(
        name=spec.name,
        text=None,
        prompt_ids=prompt,
        generated=tuple(ids[len(prompt) - 1 :, 0].tolist()),
        top_ids=ids,
        top_logits=values,
        logsumexp=log_sum_exp(logits),
        expert_ids=np.argsort(rng.random((positions, layers, 8)), axis=2)[:, :, :3].astype(np.int32),
        expert_weights=rng.random((positions, layers, 3)).astype(np.float32),
        router_gap=rng.uniform(0.01, 0.5, (positions, layers)).astype(np.float32),
        sketch=rng.normal(0, 8, (positions, layers, 32)).astype(np.float32),
    )


def invent_class(
    name: Any, prompts: tuple[PromptEvidence, ...], probed: tuple[PromptProbes, ...], noise: float
) -> ClassCalibration:
    """A calibration on four arms that differ from the prompts by relative noise."""
    arms: dict[str, dict[str, Comparison]] = {}
    for seed, arm in enumerate(("a", "b", "c", "d")):
        rng = np.random.default_rng([99, seed])
        pairs = zip(prompts, probed, strict=True)
        arms[arm] = {p.name: compare(p, perturb(p, rng, noise, probes), probes) for p, probes in pairs}
    return calibrate(name, arms)


def perturb(prompt: PromptEvidence, rng: np.random.Generator, noise: float, probes: PromptProbes | None = None) -> PromptRun:
    """A run that answers `prompt` with all numbers off by relative `noise`; ids, positions and experts are exact."""
    others = TINY["vocab_size"] - prompt.top_ids.shape[1]
    rest = 1.0 - np.exp(prompt.top_logits - prompt.logsumexp[:, None]).sum(axis=1)
    level = (prompt.logsumexp + np.log(rest / others)).astype(np.float32)  # of each id that is not stored
    logits = np.repeat(level[:, None], TINY["vocab_size"], axis=1)
    np.put_along_axis(logits, prompt.top_ids.astype(np.int64), prompt.top_logits, axis=1)

    def off(values: np.ndarray) -> np.ndarray:
        return (values * (1 + noise * rng.normal(size=values.shape))).astype(np.float32)

    shown = PassEvidence(
        consumed=np.array(prompt.fed, dtype=np.int32),
        positions=np.arange(len(prompt.fed), dtype=np.int32),
        embedding_digest=np.stack([digest_embedding(np.zeros(2, dtype=np.uint8)) for _ in prompt.fed]),
        logits=off(logits),
        sketch=off(prompt.sketch),
        expert_ids=prompt.expert_ids,
        expert_weights=off(prompt.expert_weights),
        router_logits=None if probes is None else off(probes.router_logits),
        probes=() if probes is None else probes.positions,
    )
    return record(prompt, shown, prompt.fed, prompt.generated, list(prompt.expert_ids))
