"""`config.json`: what the forward pass does not implement is refused by name, never ignored."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from oracle.errors import CheckpointError
from oracle.kolibri1.config import Kolibri1Config, read_config
from oracle.kolibri1.synthetic import TINY


def changed(**values: Any) -> dict[str, Any]:
    """`TINY` with some values replaced; `...` takes a key away."""
    config = copy.deepcopy(TINY) | values
    return {key: value for key, value in config.items() if value is not ...}


def read(folder: Path, config: Any) -> Kolibri1Config:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return read_config(folder)


def refusal(folder: Path, config: Any) -> str:
    """The one-line error that this config is refused with."""
    with pytest.raises(CheckpointError) as caught:
        read(folder, config)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tied head": ({"tie_word_embeddings": True}, "tie_word_embeddings"),
    "renormalized router": ({"norm_topk_prob": True}, "norm_topk_prob"),
    "attention bias": ({"attention_bias": True}, "attention_bias"),
    "no sliding window": ({"use_sliding_window": False}, "use_sliding_window"),
    "bf16 head": ({"head_dtype": "bfloat16"}, "head_dtype"),
    "gelu": ({"hidden_act": "gelu"}, "hidden_act"),
    "another model": ({"model_type": "mixtral"}, "model_type"),
    "a begin-of-sequence id": ({"bos_token_id": 1}, "bos_token_id"),
    "window of zero": ({"sliding_window": 0}, "sliding_window"),
    "window of null": ({"sliding_window": None}, "sliding_window"),
    "eps of zero": ({"rms_norm_eps": 0}, "rms_norm_eps"),
    "no rope_theta": ({"rope_theta": ...}, "rope_theta"),
    "odd head_dim": ({"head_dim": 33}, "head_dim"),
    "no layers": ({"num_hidden_layers": 0, "layer_types": []}, "num_hidden_layers"),
    "too few layer types": ({"layer_types": ["full_attention"] * 2}, "layer_types has 2 entries for 3 layers"),
    "too many layer types": ({"layer_types": ["full_attention"] * 4}, "layer_types has 4 entries for 3 layers"),
    "unknown layer type": ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "layer_types.1"),
    "no layer types": ({"layer_types": ...}, "layer_types"),
    "key heads that do not divide the query heads": ({"num_key_value_heads": 4}, "6 query heads are no multiple of 4"),
    "more experts per token than experts": ({"num_experts_per_tok": 9}, "top-9 of 8 experts"),
    "no quantization": ({"quantization_config": ...}, "quantization_config"),
    "yarn": ({"rope_theta": ..., "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "yarn"),
    "linear rope": ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "linear"),
    "scaled rope by the old key": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope"),
    "scaled rope by the old name of its type": ({"rope_parameters": {"type": "yarn", "rope_theta": 1e4}}, "rope"),
    "two values of theta": ({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope"),
    "theta of zero": ({"rope_theta": 0.0}, "rope_theta"),
}


@pytest.mark.parametrize(("values", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_a_value_that_the_forward_pass_does_not_implement_is_refused_by_name(
    tmp_path: Path, values: dict[str, Any], named: str
) -> None:
    assert read(tmp_path, TINY).model_type == "kolibri1"
    assert named in refusal(tmp_path, changed(**values))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"quant_method": "gptq"}, "quant_method"),
        ({"activation_scheme": "static"}, "activation_scheme"),
        ({"weight_block_size": [32]}, "weight_block_size"),
        ({"weight_block_size": [0, 32]}, "weight_block_size must be positive"),
        ({"weight_block_size": [32, 48]}, "does not divide into blocks of 32x48"),
        ({"weight_block_size": [48, 32]}, "does not divide into blocks of 48x32"),
    ],
)
def test_a_quantization_other_than_whole_fp8_blocks_is_refused(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    assert named in refusal(tmp_path, changed(quantization_config=TINY["quantization_config"] | values))


@pytest.mark.parametrize("width", ["hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size"])
def test_every_width_must_divide_into_blocks(tmp_path: Path, width: str) -> None:
    assert "does not divide into blocks of 32x32" in refusal(tmp_path, changed(**{width: 80}))


def test_flat_rope_theta_and_rope_parameters_say_the_same(tmp_path: Path) -> None:
    flat = read(tmp_path, changed(rope_theta=5e5))
    folded = read(tmp_path, changed(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 5e5}))
    untyped = read(tmp_path, changed(rope_theta=..., rope_parameters={"rope_theta": 5e5}))
    assert flat.rope_theta == folded.rope_theta == untyped.rope_theta == 5e5


def test_both_keys_of_theta_may_stand_together_when_they_agree(tmp_path: Path) -> None:
    both = changed(rope_theta=5e5, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert read(tmp_path, both).rope_theta == 5e5


def test_fields_that_change_nothing_are_kept_and_accepted(tmp_path: Path) -> None:
    config = read(tmp_path, changed(initializer_range=0.5, attention_dropout=0.0, rope_scaling=None))
    assert config.model_extra is not None
    assert config.model_extra["initializer_range"] == 0.5


def test_layer_kinds_and_widths_follow_the_config(tmp_path: Path) -> None:
    config = read(tmp_path, TINY)
    assert [config.is_sliding(layer) for layer in range(3)] == [True, False, True]
    assert (config.query_width, config.key_value_width) == (192, 64)
    assert config.fp8_shapes()["self_attn.o_proj"] == (64, 192)


@pytest.mark.parametrize(("eos", "ids"), [(None, ()), (7, (7,)), ([7, 3], (7, 3))])
def test_end_of_sequence_may_be_none_one_or_several(tmp_path: Path, eos: Any, ids: tuple[int, ...]) -> None:
    assert read(tmp_path, changed(eos_token_id=eos)).eos_token_ids == ids


def test_what_follows_from_a_config_may_be_kept_by_it(tmp_path: Path) -> None:
    config = changed(eos_token_id=[7, 3], rope_scaling=None, notes={"lists": [1, 2]})
    kept = {read(tmp_path, config): "this one"}
    assert kept[read(tmp_path, config)] == "this one"
    assert read(tmp_path, config | {"num_experts": TINY["num_experts"] + 1}) not in kept


def test_a_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no checkpoint: it has no config\.json; pass a folder"):
        read_config(tmp_path)
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        read_config(tmp_path / "nowhere")


def test_a_file_in_place_of_the_folder_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="it is not a folder; pass the folder"):
        read_config(tmp_path / "file")


@pytest.mark.parametrize(
    "text", ["", "{", "[1, 2]", "null", '"kolibri1"', "\x00", "[" * 200_000], ids=lambda text: repr(text[:8])
)
def test_text_that_is_no_json_object_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    refusal(tmp_path, text)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_config(tmp_path)
