"""The doctor's report: one table, what differs by name, never more than fits, nothing read as markup."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oracle.accelerator import Level
from oracle.kolibri1.audit import Audit, KindCount, TensorDifference
from oracle.kolibri1.release import ConfigDifference
from oracle.kolibri1.shard import Fault
from oracle.report.doctor import print_doctor, summarize
from oracle.serialization import canonical_json

NOTHING: Mapping[str, int] = {}
ROUTER = KindCount("router", "bf16", "BF16 [8, 64]", 3, 3, 3072, 3072, 0, 0, 0, 0, NOTHING)
SCALES = KindCount("routed down, scales", "scales", "F32 [2, 2]", 24, 24, 384, 384, 0, 0, 0, 0, NOTHING)
UNKNOWN = KindCount("not Kolibri-1's", None, None, 0, 0, 0, 0, 0, 0, 0, 0, NOTHING)


def total(name: Any, *kinds: KindCount) -> KindCount:
    sums = [sum(getattr(kind, field) for kind in kinds) for field in COUNTED]
    return KindCount(name, None if name == "all" else name, None, *sums, otherwise=NOTHING)


COUNTED = ("expected", "found", "expected_bytes", "found_bytes", "missing", "surplus", "wrong", "repeated")


def counted(*kinds: KindCount) -> dict[str, Any]:
    groups = [total(group, *(k for k in kinds if k.group == group)) for group in ("fp8", "scales", "bf16")]
    return {"kinds": kinds, "totals": (*groups, total("all", *kinds))}


AGREEING = Audit(config=(), tensors=(), faults=(), **counted(ROUTER, SCALES, UNKNOWN))


def summary(audit: Audit) -> dict[str, Any]:
    return summarize(
        Path("folder"), audit, {"numpy": "2.0"}, [Level("silicon", False, "no card"), Level("mock", True, "asked")]
    )


def shown(audit: Audit, color: bool = False) -> str:
    out = StringIO()
    console = Console(file=out, width=120, force_terminal=color, color_system="standard" if color else None)
    print_doctor(console, summary(audit))
    return out.getvalue()


def row(text: str, begin: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.strip().startswith(begin)]
    return line.split()


def test_an_agreeing_checkpoint_is_one_table_and_says_what_was_not_read() -> None:
    lines = shown(AGREEING).splitlines()
    assert lines[:2] == ["checkpoint folder", "geometry: the release's"]
    assert lines[-1] == "AGREES with its inventory, by its headers alone: no tensor was read"
    assert row(shown(AGREEING), "router") == ["router", "BF16", "[8,", "64]", "3", "3", "3,072", "3,072"]
    assert row(shown(AGREEING), "total all") == ["total", "all", "27", "27", "3,456", "3,456"]
    assert row(shown(AGREEING), "total bf16") == ["total", "bf16", "3", "3", "3,072", "3,072"]
    assert row(shown(AGREEING), "total fp8") == ["total", "fp8", "0", "0", "0", "0"]
    assert row(shown(AGREEING), "numpy") == ["numpy", "2.0"]
    for absent in ("not Kolibri-1's", "DIFFERS", "tensor ", "file ", "config.json"):
        assert absent not in "\n".join(lines[:-1])


def test_a_row_says_how_many_differ_and_what_was_found_instead() -> None:
    wrong = replace(SCALES, found=23, missing=2, surplus=1, wrong=20, found_bytes=100, otherwise={"BF16 [2, 2]": 20})
    foreign = replace(UNKNOWN, found=7, surplus=7, found_bytes=14, otherwise={"BF16 [1]": 7})
    repeated = replace(ROUTER, repeated=3)
    text = shown(replace(AGREEING, faults=(Fault("index", "i", "m"),), **counted(repeated, wrong, foreign)))
    assert "24     23             384          100  2 missing, 1 surplus, 20 wrong" in text
    assert "found 20 BF16 [2, 2]" in text
    assert row(text, "router")[-2:] == ["3", "repeated"]
    assert row(text, "not Kolibri-1's")[2:8] == ["0", "7", "0", "14", "7", "surplus"]
    assert text.splitlines()[-1] == (
        "DIFFERS: file faults: 1; tensors: 2 missing, 8 surplus, 20 wrong, 3 repeated; "
        "restore what is named above and run doctor again"
    )


def test_of_many_other_shapes_the_most_frequent_are_named_and_the_rest_is_counted() -> None:
    otherwise = {f"BF16 [{size}]": size for size in (1, 5, 3, 4, 2)}
    text = shown(replace(AGREEING, **counted(replace(UNKNOWN, found=15, surplus=15, otherwise=otherwise))))
    named = [line.split("found ")[1].strip() for line in text.splitlines() if "found " in line and "BF16 [" in line]
    assert named == ["5 BF16 [5]", "4 BF16 [4]", "3 BF16 [3]"]
    assert "and 2 other shapes" in text


def test_differences_are_named_up_to_a_dozen_and_the_rest_is_counted() -> None:
    tensors = tuple(TensorDifference(f"t{i}", "router", "missing", f"because {i}") for i in range(1015))
    faults = tuple(Fault("missing", f"s{i}", f"shard s{i} is missing", more=0) for i in range(14))
    text = shown(replace(AGREEING, tensors=tensors, faults=faults))
    named = [line for line in text.splitlines() if line.startswith("tensor ")]
    assert named == [f"tensor missing: t{i}: because {i}" for i in range(12)]
    assert "tensor: and 1,003 more; --json FILE has them all" in text.splitlines()
    assert sum(line.startswith("file missing: shard s") for line in text.splitlines()) == 12
    assert "file: and 2 more; --json FILE has them all" in text.splitlines()
    assert len(summary(replace(AGREEING, tensors=tensors))["tensors"]) == 1015
    assert "more; --json" not in shown(replace(AGREEING, tensors=tensors[:12], faults=faults[:12]))


def test_a_fault_that_is_said_of_many_tensors_counts_them() -> None:
    text = shown(replace(AGREEING, faults=(Fault("index", "index", "a is in x, but y", more=1234),)))
    assert "file index: a is in x, but y (and 1,234 more tensors alike)" in text.splitlines()
    assert "DIFFERS: file faults: 1; tensors: as they must be; " in text


def test_another_geometry_is_told_with_the_releases_values() -> None:
    config = (ConfigDifference("hidden_size", "256", "2560"), ConfigDifference("sliding_window", "33", "513"))
    text = shown(replace(AGREEING, config=config))
    assert text.splitlines()[1] == (
        "geometry: not the release's: hidden_size 256 (release 2560); checked against the inventory of its own config.json"
    )
    assert row(text, "sliding_window") == ["sliding_window", "33", "513"]
    assert text.splitlines()[-1].startswith("AGREES")
    assert [d["geometry"] for d in summary(replace(AGREEING, config=config))["config"]] == [True, False]
    assert shown(replace(AGREEING, config=config[1:])).splitlines()[1] == "geometry: the release's"


@pytest.mark.parametrize("place", [0, 37, 49])
def test_long_values_show_where_they_begin_to_differ(place: int) -> None:
    release = ["sliding_attention"] * 50
    here = [*release[:place], "full_attention", *release[place + 1 :]]
    text = shown(replace(AGREEING, config=(ConfigDifference("layer_types", json.dumps(here), json.dumps(release)),)))
    [line] = [line for line in text.splitlines() if line.strip().startswith("layer_types")]
    assert '"full_a' in line
    assert '"slidin' in line.split("full_a")[1]


def test_the_json_is_the_audit_and_can_be_written() -> None:
    difference = TensorDifference("t", "router", "wrong", "detail")
    audit = replace(AGREEING, tensors=(difference,), faults=(Fault("index", "i", "m"),))
    value = json.loads(canonical_json(summary(audit)))
    assert value == summary(audit)
    assert value["schema"] == "kolibri-doctor/1"
    assert (value["agrees"], value["geometry"], value["checkpoint"]) == (False, "release", "folder")
    assert value["tensors"] == [{"name": "t", "kind": "router", "what": "wrong", "detail": "detail"}]
    assert value["faults"] == [{"kind": "index", "file": "i", "message": "m", "more": 0}]
    assert value["totals"]["all"]["expected"] == 27
    assert value["environment"] == {"numpy": "2.0"}
    assert value["levels"][0] == {"name": "silicon", "available": False, "why": "no card"}


HOSTILE = ["[red]x[/red]", "[/]", ":boom:", "a\x1b[2Jb", "one\ntwo", "\ud800", "\u202eabc", "\0"]


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_names_from_a_header_or_a_config_are_printed_as_plain_text(hostile: str, color: bool) -> None:
    audit = replace(
        AGREEING,
        config=(ConfigDifference(hostile, "1", "2"),),
        tensors=(TensorDifference(hostile, "router", "surplus", "detail"),),
        faults=(Fault("index", hostile, f"message of {hostile}"),),
        **counted(replace(UNKNOWN, found=1, otherwise={hostile: 1})),
    )
    text = shown(audit, color=color)
    text.encode("utf-8")
    canonical_json(summary(audit))
    expected = hostile if hostile.isprintable() else hostile.encode("unicode_escape").decode()
    assert text.count(expected) == 4
    assert expected == hostile or hostile not in text


def test_each_level_of_ttnn_is_a_row_with_its_reason() -> None:
    assert row(shown(AGREEING), "silicon") == ["silicon", "no", "no", "card"]
    assert row(shown(AGREEING), "mock") == ["mock", "yes", "asked"]
