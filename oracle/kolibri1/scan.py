"""All shards of a checkpoint folder against its index: where every tensor is, and everything that is wrong with the files.

Reads the index and the shards' headers, no tensor. A fault is a value here. `Checkpoint.open` raises the first; `audit`
collects them all, which is why the scan goes on where the index is missing or damaged.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oracle.kolibri1.shard import Fault, StoredTensor, read_shard

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


@dataclass(frozen=True)
class Scan:
    """What the headers of a folder say.

    Attributes:
        tensors: every tensor that a header places, by name; of one that is in two shards, the first by the shards' names.
        repeated: the last shard of each tensor that is in several.
        lost: by name, why a tensor that the index or a header names is not among `tensors`, where that is known.
        faults: everything that is wrong with the files, in the order in which it is found.
    """

    tensors: Mapping[str, StoredTensor]
    repeated: Mapping[str, Path]
    lost: Mapping[str, str]
    faults: tuple[Fault, ...]


def scan_folder(folder: Path) -> Scan:
    """Read the index and every shard's header in `folder`."""
    faults: list[Fault] = []
    weight_map = _read_weight_map(folder, faults)
    paths, unread = _present_shards(folder, weight_map, faults)
    tensors: dict[str, StoredTensor] = {}
    repeated: dict[str, Path] = {}
    lost: dict[str, str] = {}
    for path in paths:
        shard = read_shard(path)
        faults += shard.faults
        if shard.unread:
            unread[path.name] = shard.faults[0].kind
        lost |= dict.fromkeys(shard.damaged, f"its entry in {path.name} is damaged")
        again = [tensor.spec.name for tensor in shard.tensors if tensor.spec.name in tensors]
        faults += _duplicates(again, tensors, path)
        repeated |= dict.fromkeys(again, path)
        for tensor in shard.tensors:
            tensors.setdefault(tensor.spec.name, tensor)
    if weight_map is not None:
        lost |= {name: f"{file}: {unread[file]}" for name, file in weight_map.items() if file in unread}
        faults += _disagreements(folder / INDEX_FILE, weight_map, tensors, lost)
    return Scan(tensors, repeated, {name: why for name, why in lost.items() if name not in tensors}, tuple(faults))


def _read_weight_map(folder: Path, faults: list[Fault]) -> dict[str, str] | None:
    """The index's shard file by tensor name; None where there is no index that can be read."""
    index = folder / INDEX_FILE
    if not index.exists():
        if not (folder / SINGLE_FILE).exists():
            message = f"{folder} has neither {INDEX_FILE} nor {SINGLE_FILE}; restore it from the release"
            faults.append(Fault("index", INDEX_FILE, message))
        return None
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        faults.append(Fault("index", INDEX_FILE, f"{index} cannot be read ({error!r}); restore it from the release"))
        return None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        message = f"{index}: weight_map must map tensor names to shard files; restore it from the release"
        faults.append(Fault("index", INDEX_FILE, message))
        return None
    return weight_map


def _present_shards(folder: Path, weight_map: dict[str, str] | None, faults: list[Fault]) -> tuple[list[Path], dict[str, str]]:
    """The shard files that are there, in name order, and why each of the others that the index names is not."""
    if weight_map is None:
        if (folder / SINGLE_FILE).exists() and not (folder / INDEX_FILE).exists():
            return [folder / SINGLE_FILE], {}
        return sorted(path for path in folder.glob("*.safetensors") if path.is_file()), {}
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name]
    for name in outside:
        message = f"{folder / INDEX_FILE} names {name!r}, which is not a file of this folder; restore it from the release"
        faults.append(Fault("index", INDEX_FILE, message))
    inside = [name for name in names if name not in outside]
    missing = [name for name in inside if not (folder / name).is_file()]
    faults += [Fault("missing", name, f"shard {folder / name} is missing; restore it from the release") for name in missing]
    unread = dict.fromkeys(outside, "outside the folder") | dict.fromkeys(missing, "missing")
    return [folder / name for name in inside if name not in missing], unread


def _duplicates(again: list[str], tensors: Mapping[str, StoredTensor], path: Path) -> list[Fault]:
    """One fault for each earlier shard that also has some of the tensors `again` of the shard at `path`."""
    by_first: defaultdict[str, list[str]] = defaultdict(list)
    for name in again:
        by_first[tensors[name].shard.name].append(name)
    return [
        Fault(
            "duplicate tensors",
            path.name,
            f"{names[0]} is in {first} and again in {path.name}; a shard was copied over another: "
            f"restore {path} from the release",
            more=len(names) - 1,
        )
        for first, names in by_first.items()
    ]


def _disagreements(
    index: Path, weight_map: dict[str, str], tensors: Mapping[str, StoredTensor], lost: Mapping[str, str]
) -> list[Fault]:
    """Where the index and the headers disagree: one fault for each pair of shards, not for each tensor."""
    by_place: defaultdict[tuple[str | None, str], list[str]] = defaultdict(list)
    for name, file in weight_map.items():
        found = tensors[name].shard.name if name in tensors else None
        if found != file and (found is not None or name not in lost):
            by_place[found, file].append(name)
    faults: list[Fault] = []
    for (found, file), names in by_place.items():
        if found is None:
            message = f"{index} names {names[0]} in {file}, but no shard has it; restore the index or the shard"
        else:
            message = f"{names[0]} is in {found}, but {index} puts it in {file}; two shards were swapped: restore them"
        faults.append(Fault("index", INDEX_FILE, message, more=len(names) - 1))
    if surplus := sorted(tensors.keys() - weight_map.keys()):
        message = f"{index} does not name {surplus[0]} ({len(surplus)} such tensors); restore the index"
        faults.append(Fault("index", INDEX_FILE, message))
    return faults
