"""A golden reads back as it was written, and is refused when any of it was changed."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.errors import GoldenError, UsageError
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import ARRAYS_FILE, JSON_FILE, Golden, Probes, load_golden, write_golden
from oracle.serialization import canonical_json, digest
from oracle.stored_arrays import open_arrays, pack_arrays

Reseal = Callable[[Path, Callable[[dict[str, Any]], Any]], None]
Edit = Callable[[dict[str, Any]], Any]


def refusal(folder: Path) -> str:
    """The one-line error that loading gives: it names the file and says what to do next."""
    with pytest.raises(GoldenError) as caught:
        load_golden(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    assert "kolibri-oracle golden make" in message or "git lfs pull" in message
    return message


def edit_arrays(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    path = folder / ARRAYS_FILE
    arrays = {name: array.copy() for name, array in open_arrays(path, GoldenError, "").items()}
    change(arrays)
    path.write_bytes(pack_arrays(arrays))


def test_a_golden_reads_back_as_it_was_written(tiny_golden: tuple[Golden, bytes], tiny_golden_folder: Path) -> None:
    made, read = tiny_golden[0], load_golden(tiny_golden_folder)
    assert read.document == made.document
    assert read.digest == made.digest == made.document.content_digest()
    assert read.positions == sum(len(p.prompt_ids) + len(p.generated) - 1 for p in read.prompts) == 18 + 14
    for expected, got in zip(made.prompts, read.prompts, strict=True):
        assert (got.name, got.text, got.prompt_ids, got.generated) == (
            expected.name,
            expected.text,
            expected.prompt_ids,
            expected.generated,
        )
        for name in PromptEvidence.ARRAYS:
            assert getattr(got, name).dtype == getattr(expected, name).dtype
            assert np.array_equal(getattr(got, name), getattr(expected, name)), name
    for field in fields(Probes):
        assert np.array_equal(getattr(read.probes, field.name), getattr(made.probes, field.name)), field.name


def test_the_same_golden_gives_the_same_bytes(
    tiny_golden: tuple[Golden, bytes], tiny_golden_folder: Path, tmp_path: Path
) -> None:
    write_golden(tmp_path / "again", *tiny_golden)
    for file in (JSON_FILE, ARRAYS_FILE):
        assert (tmp_path / "again" / file).read_bytes() == (tiny_golden_folder / file).read_bytes()


def test_the_arrays_file_has_no_metadata(tiny_golden_folder: Path) -> None:
    data = (tiny_golden_folder / ARRAYS_FILE).read_bytes()
    assert "__metadata__" not in json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def test_an_existing_folder_is_never_overwritten(tiny_golden: tuple[Golden, bytes], golden_copy: Path) -> None:
    before = {p.name: p.read_bytes() for p in golden_copy.iterdir()}
    with pytest.raises(UsageError, match="exists already"):
        write_golden(golden_copy, *tiny_golden)
    assert {p.name: p.read_bytes() for p in golden_copy.iterdir()} == before


@pytest.fixture(scope="module")
def changed_folder(tiny_golden_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which single bytes are changed and changed back."""
    return shutil.copytree(tiny_golden_folder, tmp_path_factory.mktemp("changed") / "golden")


@settings(max_examples=80, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("file", [JSON_FILE, ARRAYS_FILE])
def test_any_changed_byte_is_refused(changed_folder: Path, file: str, data: st.DataObject) -> None:
    path = changed_folder / file
    original = path.read_bytes()
    offset = data.draw(st.integers(0, len(original) - 1))
    replacement = data.draw(st.integers(0, 255).filter(lambda value: value != original[offset]))
    try:
        path.write_bytes(original[:offset] + bytes([replacement]) + original[offset + 1 :])
        refusal(changed_folder)
    finally:
        path.write_bytes(original)
    assert load_golden(changed_folder).positions > 0


@pytest.mark.parametrize("file", [JSON_FILE, ARRAYS_FILE])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\n",
        lambda data: b"",
        lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
    ids=["one byte short", "half", "one byte long", "empty", "LFS pointer"],
)
def test_a_file_that_is_not_whole_is_refused(golden_copy: Path, file: str, damage: Callable[[bytes], bytes]) -> None:
    path = golden_copy / file
    path.write_bytes(damage(path.read_bytes()))
    assert file in refusal(golden_copy)


@pytest.mark.parametrize("file", [JSON_FILE, ARRAYS_FILE])
def test_a_missing_file_is_refused(golden_copy: Path, file: str) -> None:
    (golden_copy / file).unlink()
    assert f"{file} cannot be read" in refusal(golden_copy)


def test_two_goldens_cannot_be_mixed(golden_copy: Path) -> None:
    edit_arrays(golden_copy, lambda arrays: arrays["sketch"].__imul__(np.float32(2)))
    assert "its bytes changed" in refusal(golden_copy)


def test_an_edit_with_the_right_digest_that_is_not_canonical_is_refused(golden_copy: Path) -> None:
    path = golden_copy / JSON_FILE
    path.write_text(json.dumps(json.loads(path.read_bytes()), sort_keys=True, indent=1))
    assert "not in the canonical serialization" in refusal(golden_copy)


def test_an_edit_without_a_new_digest_is_refused(golden_copy: Path) -> None:
    path = golden_copy / JSON_FILE
    document = json.loads(path.read_bytes())
    document["prompts"][0]["generated"][0] += 1
    path.write_bytes(canonical_json(document))
    assert "does not have its own digest" in refusal(golden_copy)


def test_a_recipe_that_is_not_the_one_named_is_refused(golden_copy: Path) -> None:
    path = golden_copy / JSON_FILE
    document = json.loads(path.read_bytes())
    document["recipe"]["truth"] = "float64"
    del document["digest"]
    document["digest"] = digest(canonical_json(document))
    path.write_bytes(canonical_json(document))
    assert "the recipe does not have the digest it claims" in refusal(golden_copy)


@pytest.mark.parametrize("schema", ["kolibri-golden/1", "kolibri-golden/3", "", None, 1])
def test_another_schema_is_refused_by_name(golden_copy: Path, reseal: Reseal, schema: Any) -> None:
    reseal(golden_copy, lambda document: document.update(schema=schema))
    assert f"has schema {schema!r}, this version reads 'kolibri-golden/2'" in refusal(golden_copy)


def test_a_resealed_golden_without_a_lie_is_accepted(golden_copy: Path, reseal: Reseal) -> None:
    """Otherwise the tests below could not fail for the reason they name."""
    before = (golden_copy / JSON_FILE).read_bytes()
    reseal(golden_copy, lambda document: None)
    assert (golden_copy / JSON_FILE).read_bytes() == before
    assert load_golden(golden_copy).positions == 32


def bf16(document: dict[str, Any]) -> dict[str, Any]:
    return document["classes"]["bf16"]


LIES: dict[str, Edit] = {
    "a band beyond the declared multiple": lambda d: bf16(d)["bands"].update(regret=2.5),
    "a router band beyond the declared multiple": lambda d: bf16(d)["bands"].update(router_gap=1e-3),
    "a router regret beyond the declared multiple": lambda d: bf16(d)["bands"].update(router_regret=9.0),
    "a larger multiple of bands": lambda d: bf16(d)["bands"].update(multiple=6.5),
    "a larger multiple of limits": lambda d: bf16(d)["limits"].update(multiple=100.0),
    "a KL limit beyond the declared multiple": lambda d: bf16(d)["limits"].update(kl=[1.0, 9.0]),
    "a slope limit beyond the declared multiple": lambda d: bf16(d)["limits"].update(sketch_slope=0.5),
    "a prompt without its own floor": lambda d: bf16(d)["prompt_floors"].pop("second"),
    "a floor for a prompt that is not there": lambda d: bf16(d)["prompt_floors"].update(third=bf16(d)["limits"]["floor"]),
    "a prompt's floor for fewer layers": lambda d: bf16(d)["prompt_floors"]["first"]["sketch_p90"].pop(),
    "an arm that failed": lambda d: bf16(d)["held_out"][1].update(passed=False),
    "an arm not held out": lambda d: bf16(d)["held_out"].pop(),
    "two arms": lambda d: bf16(d).update(arms=bf16(d)["arms"][:2], held_out=bf16(d)["held_out"][:2]),
    "a bin too few": lambda d: bf16(d)["bins"]["near"].pop(),
    "more flips than positions": lambda d: bf16(d)["bins"]["near"].__setitem__(0, 10**6),
    "a negative count": lambda d: bf16(d)["bins"]["router"].__setitem__(0, -1),
    "no positions": lambda d: bf16(d).update(positions=0),
    "a class filed under another": lambda d: d["classes"].update(bf16=d["classes"]["fp32"]),
    "an unknown class": lambda d: d["classes"].update(int4=bf16(d)),
    "an unknown logit type": lambda d: bf16(d).update(logit_dtype="float8"),
    "an unknown key": lambda d: d.update(note="trust me"),
    "no prompts": lambda d: d.update(prompts=[]),
    "two prompts of one name": lambda d: d["prompts"][1].update(name="first"),
    "a prompt that the recipe has not": lambda d: d["prompts"][1].update(name="third"),
    "an empty chain": lambda d: d["prompts"][0].update(generated=[]),
    "a chain longer than its rows": lambda d: d["prompts"][0]["generated"].append(3),
    "a chain shorter than its rows": lambda d: d["prompts"][0]["generated"].pop(),
    "ids that the recipe did not give": lambda d: d["prompts"][0]["prompt_ids"].__setitem__(0, 77),
    "a probe prompt that is not there": lambda d: d.update(probe_prompt="third"),
    "a probe prompt of another length": lambda d: d.update(probe_prompt="second"),
    "a missing digest of the checkpoint": lambda d: d.pop("checkpoint_digest"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_resealed_lie_is_refused(golden_copy: Path, reseal: Reseal, lie: str) -> None:
    reseal(golden_copy, LIES[lie])
    refusal(golden_copy)


FORMER = {"former": "sha256:" + "0" * 64, "headline": "arithmetic", "reason": "numpy was updated to 2.4"}


def test_a_history_reads_back_and_an_empty_one_is_not_written(golden_copy: Path, reseal: Reseal) -> None:
    assert load_golden(golden_copy).document.history == ()
    assert "history" not in json.loads((golden_copy / JSON_FILE).read_bytes())
    before = load_golden(golden_copy).digest
    reseal(golden_copy, lambda document: document.update(history=[FORMER]))
    read = load_golden(golden_copy)
    assert [entry.model_dump() for entry in read.document.history] == [FORMER]
    assert read.digest != before


@pytest.mark.parametrize(
    "lie",
    [
        {"reason": ""},
        {"reason": "  "},
        {"reason": "because"},
        {"reason": "a \x1b[2J b c"},
        {"reason": "a\nb c d"},
        {"headline": ""},
        {"former": "sha256:0"},
        {"when": "today"},
    ],
    ids=str,
)
def test_a_history_that_says_nothing_is_refused(golden_copy: Path, reseal: Reseal, lie: dict[str, str]) -> None:
    reseal(golden_copy, lambda document: document.update(history=[FORMER | lie]))
    assert "history.0" in refusal(golden_copy)


def as_chat(document: dict[str, Any]) -> None:
    """The first prompt as if it had been rendered from messages."""
    chat = {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "low", "ids": None}
    document["recipe"]["prompts"][0].update(chat)
    document["prompts"][0].update(text="<|im_start|>user x")


def stopping(*eos: int) -> Edit:
    """The recipe as if its chains ended at these ids."""
    return lambda document: document["recipe"].update(stop_at_eos=True, eos_ids=sorted(eos))


def test_a_chats_rendered_text_and_its_messages_read_back(golden_copy: Path, reseal: Reseal) -> None:
    reseal(golden_copy, as_chat)
    golden = load_golden(golden_copy)
    assert golden.prompts[0].text == "<|im_start|>user x"
    assert golden.document.recipe.prompts[0].turns == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("text", [None, ""])
def test_a_chat_without_its_rendered_text_is_refused(golden_copy: Path, reseal: Reseal, text: str | None) -> None:
    reseal(golden_copy, as_chat)
    reseal(golden_copy, lambda document: document["prompts"][0].update(text=text))
    assert "prompt first does not have the text that its messages were rendered to" in refusal(golden_copy)


def test_a_text_that_is_not_the_recipes_is_refused(golden_copy: Path, reseal: Reseal) -> None:
    def with_text(document: dict[str, Any]) -> None:
        document["recipe"]["prompts"][0].update(text="x", ids=None)
        document["prompts"][0].update(text="x")

    reseal(golden_copy, with_text)
    assert load_golden(golden_copy).prompts[0].text == "x"
    reseal(golden_copy, lambda document: document["prompts"][0].update(text="y"))
    assert "prompt first does not have the recipe's text or ids" in refusal(golden_copy)


def test_a_chain_that_stops_at_its_first_eos_id_may_be_shorter(
    golden_copy: Path, reseal: Reseal, tiny_golden: tuple[Golden, bytes]
) -> None:
    """And one without an eos id before its end has the length asked for."""
    first, second = (p.generated for p in tiny_golden[0].prompts)
    [eos] = {first[-1]} - {*first[:-1], *second}
    reseal(golden_copy, stopping(eos))
    reseal(golden_copy, lambda document: document["recipe"]["prompts"][0].update(new_tokens=99))
    golden = load_golden(golden_copy)
    assert (golden.document.recipe.eos_ids, len(golden.prompts[0].generated)) == ((eos,), 14)


def test_a_chain_shorter_than_asked_that_ends_with_no_eos_id_is_refused(golden_copy: Path, reseal: Reseal) -> None:
    absent = 95
    reseal(golden_copy, stopping(absent))
    assert load_golden(golden_copy).document.recipe.stop_at_eos
    reseal(golden_copy, lambda document: document["recipe"]["prompts"][0].update(new_tokens=99))
    assert "prompt first has 14 generated ids, the recipe asks 99" in refusal(golden_copy)


def test_a_chain_longer_than_asked_is_refused_though_it_ends_with_an_eos_id(
    golden_copy: Path, reseal: Reseal, tiny_golden: tuple[Golden, bytes]
) -> None:
    reseal(golden_copy, stopping(tiny_golden[0].prompts[0].generated[-1]))
    reseal(golden_copy, lambda document: document["recipe"]["prompts"][0].update(new_tokens=13))
    assert "prompt first has 14 generated ids, the recipe asks 13" in refusal(golden_copy)


def test_a_chain_that_goes_on_after_an_eos_id_is_refused_only_where_the_recipe_stops(
    golden_copy: Path, reseal: Reseal, tiny_golden: tuple[Golden, bytes]
) -> None:
    inside = tiny_golden[0].prompts[0].generated[3]
    assert load_golden(golden_copy).document.recipe.eos_ids == ()
    reseal(golden_copy, stopping(inside))
    assert "prompt first goes on after the eos id at generated[3], where the recipe stops" in refusal(golden_copy)


def drop_column(name: str) -> Callable[[dict[str, np.ndarray]], Any]:
    return lambda arrays: arrays.update({name: arrays[name][:, :-1]})


ARRAY_LIES: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "a missing array": lambda a: a.pop("router_gap"),
    "a missing probe": lambda a: a.pop("probe_hidden"),
    "an extra array": lambda a: a.update(extra=np.zeros(1, np.float32)),
    "a row too few": lambda a: a.update(sketch=a["sketch"][:-1]),
    "a row too many": lambda a: a.update(logsumexp=np.append(a["logsumexp"], 0.0)),
    "a probe outside its prompt": lambda a: a["probe_positions"].__setitem__(0, 99),
    "a probe of no prompt": lambda a: a["probe_prompts"].__setitem__(0, 2),
    "a prompt without a probe": lambda a: a["probe_prompts"].__setitem__(2, 0),
    "a negative probe": lambda a: a["probe_positions"].__setitem__(0, -1),
    "layer inputs of another prompt": lambda a: a.update(probe_layer_inputs=a["probe_layer_inputs"][:-1]),
    "fewer probes than places": lambda a: a.update(probe_hidden=a["probe_hidden"][:-1]),
    "router probes of fewer layers": drop_column("probe_router_logits"),
    "logits for fewer ids than are stored": drop_column("top_logits"),
    "weights for fewer layers": drop_column("expert_weights"),
    "gaps for fewer layers": drop_column("router_gap"),
    "experts for fewer layers": drop_column("expert_ids"),
    "sketches for fewer layers": drop_column("sketch"),
    "flat sketches": lambda a: a.update(sketch=a["sketch"].reshape(len(a["sketch"]), -1)),
    "logits in float64": lambda a: a.update(top_logits=a["top_logits"].astype(np.float64)),
    "ids as floats": lambda a: a.update(top_ids=a["top_ids"].astype(np.float32)),
    "a negative id": lambda a: a["top_ids"].__setitem__((0, 5), -1),
    "an id stored twice": lambda a: a["top_ids"].__setitem__((0, 5), a["top_ids"][0, 6]),
    "a negative expert": lambda a: a["expert_ids"].__setitem__((0, 0, 0), -1),
}


@pytest.mark.parametrize("lie", ARRAY_LIES)
def test_resealed_arrays_that_do_not_fit_are_refused(golden_copy: Path, reseal: Reseal, lie: str) -> None:
    edit_arrays(golden_copy, ARRAY_LIES[lie])
    reseal(golden_copy, lambda document: None)
    refusal(golden_copy)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["top_logits", "logsumexp", "sketch", "probe_hidden"])
def test_a_number_that_is_not_finite_is_refused_even_when_resealed(
    golden_copy: Path, reseal: Reseal, name: str, bad: float
) -> None:
    path = golden_copy / ARRAYS_FILE
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start = 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
    code = np.array(bad, "<f8" if name == "logsumexp" else "<f4").tobytes()
    data[start : start + len(code)] = code
    path.write_bytes(data)
    reseal(golden_copy, lambda document: None)
    assert f"array '{name}' holds NaN or infinity" in refusal(golden_copy)


def test_the_digest_covers_every_field(tiny_golden: tuple[Golden, bytes]) -> None:
    document = tiny_golden[0].document
    seen = {document.content_digest()}
    for change in (
        {"checkpoint_digest": "sha256:0"},
        {"recipe_digest": "sha256:0"},
        {"arrays_digest": "sha256:0"},
        {"probe_prompt": "second"},
        {"prompts": document.prompts[::-1]},
        {"classes": {"bf16": document.classes["bf16"]}},
        {"sensitivity": document.sensitivity.model_copy(update={"faults": 1})},
        {"recipe": document.recipe.model_copy(update={"truth": "float64"})},
    ):
        seen.add(document.model_copy(update=copy.deepcopy(change)).content_digest())
    assert len(seen) == 9
