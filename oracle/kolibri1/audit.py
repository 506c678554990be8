"""Everything in which a checkpoint folder differs from its inventory, from its headers alone. Free of torch and of arithmetic.

`Checkpoint.open` refuses at the first fault; an audit finds them all and counts them by kind of tensor. It agrees exactly
where `Checkpoint.open` succeeds. The inventory is that of the folder's own `config.json`; how that differs from the
release's is told beside it and is no fault. Not looked at: the bytes of tensors (a `Checkpoint` refuses NaN and infinity when
it reads them, and has a digest), the tokenizer, and files that neither the index nor the inventory speaks of.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oracle.kolibri1.config import read_config, read_config_json
from oracle.kolibri1.inventory import TensorSpec, inventory
from oracle.kolibri1.release import ConfigDifference, config_differences
from oracle.kolibri1.scan import Scan, scan_folder
from oracle.kolibri1.shard import ITEM_BYTES, Fault
from oracle.kolibri1.tensor_kind import KINDS, UNKNOWN_KIND, DtypeGroup, tensor_kind

Difference = Literal["missing", "surplus", "wrong", "repeated"]


@dataclass(frozen=True)
class TensorDifference:
    """One tensor that is not as the inventory says: `detail` says what was found, where, and what must be."""

    name: str
    kind: str
    what: Difference
    detail: str


@dataclass(frozen=True)
class KindCount:
    """How many tensors and data bytes of one kind must be there, and are.

    A group's total has no `must_be`. `found` counts names, wrong and surplus ones too; `found_bytes` what the files have of
    them. `otherwise` counts the wrong and the surplus by what was found, where that is another dtype or shape.
    """

    kind: str
    group: DtypeGroup | None
    must_be: str | None
    expected: int
    found: int
    expected_bytes: int
    found_bytes: int
    missing: int
    surplus: int
    wrong: int
    repeated: int
    otherwise: Mapping[str, int]


@dataclass(frozen=True)
class Audit:
    """What `audit` found. `totals` are those of fp8, scales, bf16 and all tensors, in this order."""

    config: tuple[ConfigDifference, ...]
    kinds: tuple[KindCount, ...]
    totals: tuple[KindCount, ...]
    tensors: tuple[TensorDifference, ...]
    faults: tuple[Fault, ...]

    @property
    def agrees(self) -> bool:
        """Whether nothing differs from the inventory; the config may differ from the release's."""
        return not self.tensors and not self.faults

    @property
    def geometry(self) -> tuple[ConfigDifference, ...]:
        """The differences from the release's config that the inventory follows from."""
        return tuple(difference for difference in self.config if difference.is_geometry)


def audit(folder: str | Path) -> Audit:
    """Compare the headers of the checkpoint in `folder` with the inventory of its config.

    Raises:
        CheckpointError: no such folder, or no config of a Kolibri-1 in it, so that there is nothing to compare with.
    """
    folder = Path(folder)
    expected = {spec.name: spec for spec in inventory(read_config(folder))}
    scan = scan_folder(folder)
    tensors = tuple(_differences(expected, scan))
    kinds = _count(expected, scan, tensors)
    return Audit(
        config=tuple(config_differences(read_config_json(folder))),
        kinds=kinds,
        totals=(
            *(_total(group, group, [k for k in kinds if k.group == group]) for group in ("fp8", "scales", "bf16")),
            _total("all", None, kinds),
        ),
        tensors=tensors,
        faults=scan.faults,
    )


def describe(spec: TensorSpec) -> str:
    """Dtype and shape as one text."""
    return f"{spec.dtype} {list(spec.shape)}"


def _differences(expected: Mapping[str, TensorSpec], scan: Scan) -> Iterable[TensorDifference]:
    """In the inventory's order, then surplus tensors by name."""
    for name in (*expected, *sorted(scan.tensors.keys() - expected.keys())):
        must, stored, kind = expected.get(name), scan.tensors.get(name), tensor_kind(name)
        if stored is None:
            why = scan.lost.get(name, "in no shard")
            yield TensorDifference(name, kind, "missing", f"{why}; must be {describe(expected[name])}")
            continue
        found, shard = describe(stored.spec), stored.shard.name
        if must is None:
            yield TensorDifference(name, kind, "surplus", f"{found} in {shard}, which Kolibri-1 has not")
        elif stored.spec != must:
            yield TensorDifference(name, kind, "wrong", f"{found} in {shard}; must be {describe(must)}")
        elif stored.on_disk != stored.end - stored.start:
            cut = f"{shard} has {stored.on_disk:,} of its {stored.end - stored.start:,} bytes"
            yield TensorDifference(name, kind, "wrong", cut)
        if name in scan.repeated:
            yield TensorDifference(name, kind, "repeated", f"in {shard} and again in {scan.repeated[name].name}")


def _count(expected: Mapping[str, TensorSpec], scan: Scan, tensors: tuple[TensorDifference, ...]) -> tuple[KindCount, ...]:
    must: dict[str, TensorSpec] = {}
    sizes: dict[str, Counter[str]] = {kind: Counter() for kind in (*KINDS, UNKNOWN_KIND)}
    otherwise: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, spec in expected.items():
        kind = tensor_kind(name)
        must.setdefault(kind, spec)
        sizes[kind]["expected"] += 1
        sizes[kind]["expected_bytes"] += math.prod(spec.shape) * ITEM_BYTES[spec.dtype]
    for name, stored in scan.tensors.items():
        kind = tensor_kind(name)
        sizes[kind]["found"] += 1
        sizes[kind]["found_bytes"] += stored.on_disk
        if kind not in must or (stored.spec.dtype, stored.spec.shape) != (must[kind].dtype, must[kind].shape):
            otherwise[kind][describe(stored.spec)] += 1
    for difference in tensors:
        sizes[difference.kind][difference.what] += 1
    return tuple(
        _kind_count(kind, KINDS.get(kind), describe(must[kind]) if kind in must else None, counts, otherwise[kind])
        for kind, counts in sizes.items()
    )


def _total(name: str, group: DtypeGroup | None, kinds: Iterable[KindCount]) -> KindCount:
    counts: Counter[str] = Counter()
    for kind in kinds:
        counts.update({field: getattr(kind, field) for field in _COUNTED})
    return _kind_count(name, group, None, counts, {})


_COUNTED = ("expected", "found", "expected_bytes", "found_bytes", "missing", "surplus", "wrong", "repeated")


def _kind_count(
    kind: str, group: DtypeGroup | None, must_be: str | None, counts: Counter[str], otherwise: Mapping[str, int]
) -> KindCount:
    return KindCount(kind, group, must_be, otherwise=dict(otherwise), **{field: counts[field] for field in _COUNTED})
