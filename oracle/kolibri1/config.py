"""`config.json` of a Kolibri-1 checkpoint, validated. Free of torch and of arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from oracle.errors import CheckpointError

LayerType = Literal["sliding_attention", "full_attention"]


class QuantizationConfig(BaseModel):
    """The fp8 part of the config: e4m3 weights with one fp32 scale per block of `weight_block_size`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    quant_method: Literal["fp8"]
    activation_scheme: Literal["dynamic"]
    weight_block_size: tuple[int, int]

    @field_validator("weight_block_size")
    @classmethod
    def _positive(cls, value: tuple[int, int]) -> tuple[int, int]:
        if min(value) < 1:
            raise ValueError(f"weight_block_size must be positive, got {list(value)}")
        return value


class Kolibri1Config(BaseModel, frozen=True):
    """The fields of `config.json` that change what the model computes.

    Widths are in elements, `sliding_window` in positions including the query's own. Values this project's forward pass
    does not implement (a tied head, renormalized router weights, attention bias, scaled RoPE) are refused, not ignored.
    """

    model_config = ConfigDict(extra="allow")

    model_type: Literal["kolibri1"]
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0, multiple_of=2)
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: int = Field(gt=0)
    rms_norm_eps: float = Field(gt=0)
    rope_theta: float = Field(gt=0)
    sliding_window: int = Field(gt=0)
    layer_types: tuple[LayerType, ...]
    num_experts: int = Field(gt=0)
    num_experts_per_tok: int = Field(gt=0)
    moe_intermediate_size: int = Field(gt=0)
    shared_expert_intermediate_size: int = Field(gt=0)
    norm_topk_prob: Literal[False] = False
    tie_word_embeddings: Literal[False] = False
    attention_bias: Literal[False] = False
    use_sliding_window: Literal[True] = True
    bos_token_id: None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None
    head_dtype: Literal["float32"] = "float32"
    quantization_config: QuantizationConfig

    @model_validator(mode="before")
    @classmethod
    def _fold_rope_parameters(cls, data: Any) -> Any:
        """Accept `rope_parameters`, as transformers writes it, where the release has a flat `rope_theta`."""
        if isinstance(data, dict) and isinstance(rope := data.get("rope_parameters"), dict):
            kind = rope.get("rope_type", rope.get("type", "default"))
            if kind != "default":
                raise ValueError(f"rope_parameters.rope_type must be 'default', got {kind!r}")
            theta = rope.get("rope_theta", data.get("rope_theta"))
            if data.get("rope_theta", theta) != theta:
                raise ValueError(f"rope_theta is {data['rope_theta']} and again {theta} in rope_parameters")
            data = {**data, "rope_theta": theta}
        if isinstance(data, dict) and data.get("rope_scaling") is not None:
            raise ValueError("rope_scaling must be absent or null: Kolibri-1 scales no RoPE")
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Kolibri1Config:
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for {self.num_hidden_layers} layers")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_attention_heads} query heads are no multiple of {self.num_key_value_heads} key heads")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"top-{self.num_experts_per_tok} of {self.num_experts} experts")
        block = self.quantization_config.weight_block_size
        for name, (rows, columns) in self.fp8_shapes().items():
            if rows % block[0] or columns % block[1]:
                raise ValueError(f"{name} [{rows}, {columns}] does not divide into blocks of {block[0]}x{block[1]}")
        return self

    @property
    def query_width(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        eos = self.eos_token_id
        return () if eos is None else (eos,) if isinstance(eos, int) else eos

    def is_sliding(self, layer: int) -> bool:
        return self.layer_types[layer] == "sliding_attention"

    def fp8_shapes(self) -> dict[str, tuple[int, int]]:
        """[out, in] of each kind of fp8 weight, by its name below the layer (`E` stands for an expert's number)."""
        hidden, query, key_value = self.hidden_size, self.query_width, self.key_value_width
        expert, shared = self.moe_intermediate_size, self.shared_expert_intermediate_size
        return {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key_value, hidden),
            "self_attn.v_proj": (key_value, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.experts.E.gate_proj": (expert, hidden),
            "mlp.experts.E.up_proj": (expert, hidden),
            "mlp.experts.E.down_proj": (hidden, expert),
            "mlp.shared_experts.gate_proj": (shared, hidden),
            "mlp.shared_experts.up_proj": (shared, hidden),
            "mlp.shared_experts.down_proj": (hidden, shared),
        }


def read_config(folder: Path) -> Kolibri1Config:
    """Read and validate `folder/config.json`.

    Raises:
        CheckpointError: no such file, not JSON, another model, or a value that the forward pass does not implement.
    """
    try:
        return Kolibri1Config.model_validate(read_config_json(folder))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "config"
        raise CheckpointError(f"{folder / 'config.json'}: {where}: {first['msg']}; pass a Kolibri-1 checkpoint") from None


def read_config_json(folder: Path) -> Any:
    """The JSON value in `folder/config.json`, not validated.

    Raises:
        CheckpointError: no such file, or not JSON.
    """
    path = folder / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} is no checkpoint: it has no config.json; pass a folder with config.json and *.safetensors"
        ) from None
    except NotADirectoryError:
        raise CheckpointError(f"{folder} is no checkpoint: it is not a folder; pass the folder with config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); restore it from the release") from None
