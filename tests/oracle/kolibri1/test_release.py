"""How a config differs from the release's, and which keys the inventory follows from."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import inventory
from oracle.kolibri1.release import GEOMETRY_KEYS, RELEASE_CONFIG, config_differences


def with_value(key: str, value: Any) -> dict[str, Any]:
    """The release's config with one value replaced; `...` takes the key away."""
    config = copy.deepcopy(RELEASE_CONFIG)
    *parents, last = key.split(".")
    place = config
    for parent in parents:
        place = place[parent]
    place[last] = value
    if value is ...:
        del place[last]
    return config


def tensors(config: dict[str, Any]) -> list[Any]:
    """The inventory, with at most 8 experts: they are alike, and 384 take long."""
    return list(inventory(Kolibri1Config.model_validate(config | {"num_experts": min(8, config["num_experts"])})))


def test_the_releases_config_differs_nowhere_from_itself() -> None:
    assert config_differences(json.loads(json.dumps(RELEASE_CONFIG))) == []


OTHER_VALUES: dict[str, Any] = {
    "hidden_size": 1280,
    "num_hidden_layers": 1,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 1000,
    "num_experts": 7,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 1024,
    "quantization_config.weight_block_size": [64, 128],
    "sliding_window": 512,
    "rope_theta": 5e5,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1048576,
    "num_experts_per_tok": 8,
    "layer_types": ["full_attention"] * 50,
    "eos_token_id": None,
    "pad_token_id": 0,
    "attention_dropout": 0.1,
    "use_cache": False,
    "dtype": "float16",
    "architectures": [],
    "quantization_config.modules_to_not_convert": [],
}


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_a_key_is_named_and_is_geometry_exactly_where_the_inventory_follows_from_it(key: str) -> None:
    config = with_value(key, OTHER_VALUES[key])
    [difference] = config_differences(config)
    assert difference.key == key
    assert json.loads(difference.here) == OTHER_VALUES[key]
    if key == "num_hidden_layers":
        config["layer_types"] = ["full_attention"]
    assert difference.is_geometry == (tensors(config) != tensors(RELEASE_CONFIG)) == (key in GEOMETRY_KEYS)


def test_every_geometry_key_was_tried() -> None:
    assert set(GEOMETRY_KEYS) <= set(OTHER_VALUES)


def test_a_key_of_one_side_only_is_absent_on_the_other() -> None:
    [gone] = config_differences(with_value("head_dtype", ...))
    assert (gone.key, gone.here, gone.release) == ("head_dtype", "absent", '"float32"')
    [added] = config_differences(with_value("quantization_config.scale_fmt", "ue8m0"))
    assert (added.key, added.here, added.release) == ("quantization_config.scale_fmt", '"ue8m0"', "absent")
    [null] = config_differences(with_value("rope_scaling", None))
    assert (null.here, null.release) == ("null", "absent")


def test_values_that_json_cannot_write_back_are_still_named() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    [difference] = config_differences(with_value("nested", nested))
    assert difference.here == "nested beyond reason"
    [nan] = config_differences(with_value("initializer_range", float("nan")))
    assert nan.here == "NaN"
