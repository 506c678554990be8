"""Train the shipped mini checkpoint: `python training/train_mini.py OUT` (about 25 minutes on two cores).

Reads top to bottom: tokenizer, model, training loop, export in the release's on-disk format. The class trained is
transformers' own `Kolibri1ForCausalLM`, so the checkpoint's semantics are upstream's, not this project's.

Three things are done so that no symmetry of the checkpoint hides a fault of a port:

- router biases start apart and are moved by load-balance updates, so they are non-zero and differ per layer;
- every norm weight starts as its own random vector, `q_norm` apart from `k_norm` in the full layer too (without RoPE
  the two are only ever used as a product, so that training alone would keep them equal);
- post norms start at 0.3 and not at 1, so that `w` and `1 + w` are far apart.

Seeded, and repeatable on the same machine with the same torch; other CPUs round differently, so the bytes that ship are
named by digest in the golden, not by this script.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import Kolibri1Config, Kolibri1ForCausalLM

from goldens import mini_checkpoint
from oracle.kolibri1.tokenizer import CHAT_TEMPLATE

SEED = 20261130
DOCUMENTS, EVAL_DOCUMENTS = 60_000, 600
STEPS, WARMUP, BATCH, LENGTH = 1000, 60, 12, 192
PEAK_LR, FINAL_LR, WEIGHT_DECAY = 2e-3, 2e-5, 0.05
BIAS_STEP = 2e-3
BLOCK = 128
SHARDS = 3
# The release's own order of added tokens; the ids are the last of the vocabulary, as there.
SPECIAL = ["<|text|>", "<|endoftext|>", "<|pad|>", "<|chat|>", "<|im_start|>", "<|/role|>", "<|im_end|>"]
PLAIN_ADDED = ["<think>", "</think>"]
VOCABULARY = 512
# The release's pre-tokenizer: Qwen2's expression with single digits.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CONFIG = {
    "architectures": ["Kolibri1ForCausalLM"],
    "model_type": "kolibri1",
    "hidden_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-06,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "num_experts": 16,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "norm_topk_prob": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": True,
    "sliding_window": 33,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "bos_token_id": None,
    "dtype": "bfloat16",
    "head_dtype": "float32",
}


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of 512 ids with the release's pre-tokenizer, no BOS, and its added tokens at the end."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(PLAIN_ADDED),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    plain = (text for text in corpus.documents(SEED, 5_000) if corpus.START_OF_TURN not in text)
    tokenizer.train_from_iterator(plain, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_ADDED])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    return tokenizer


def encode_stream(tokenizer: Tokenizer, seed: int, count: int) -> torch.Tensor:
    """All documents as one id stream, each closed by the end-of-turn token: int64 [N]."""
    texts = [text + corpus.END_OF_TURN for text in corpus.documents(seed, count)]
    return torch.tensor([i for e in tokenizer.encode_batch(texts) for i in e.ids], dtype=torch.int64)


def build_model(eos: int | None, pad: int | None) -> Any:
    """transformers' model with every norm weight and router bias started apart (see the header)."""
    torch.manual_seed(SEED)
    config = Kolibri1Config(**CONFIG, eos_token_id=eos, pad_token_id=pad)
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    model: Any = Kolibri1ForCausalLM(config).float()
    generator = torch.Generator().manual_seed(SEED + 1)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 0.5, generator=generator)
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                centre = 0.3 if "post_self_attn" in name or "post_mlp" in name else 1.0
                weight.copy_(centre * torch.exp(0.15 * torch.randn(weight.shape, generator=generator)))
        for layer in model.model.layers:
            bias = layer.mlp.gate.e_score_correction_bias
            bias.copy_(0.3 * torch.randn(bias.shape, generator=generator))
    return model


def learning_rate(step: int) -> float:
    if step < WARMUP:
        return PEAK_LR * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return FINAL_LR + (PEAK_LR - FINAL_LR) * 0.5 * (1 + math.cos(math.pi * progress))


def train(model: Any, stream: torch.Tensor, steps: int) -> float:
    """AdamW with cosine decay; moves the router biases towards equal expert load. Returns the last mean loss in nats."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=PEAK_LR,
        betas=(0.9, 0.95),
    )
    loads: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        layer.mlp.gate.register_forward_hook(
            lambda _module, _inputs, output, index=index: loads.__setitem__(index, output[2].reshape(-1))
        )
    generator = torch.Generator().manual_seed(SEED + 2)
    recent: list[float] = []
    start = time.monotonic()
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        offsets = torch.randint(0, len(stream) - LENGTH - 1, (BATCH,), generator=generator)
        batch = torch.stack([stream[o : o + LENGTH + 1] for o in offsets])
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for index, layer in enumerate(model.model.layers):
                load = torch.bincount(loads[index], minlength=CONFIG["num_experts"]).float()
                layer.mlp.gate.e_score_correction_bias += BIAS_STEP * torch.sign(load.mean() - load)
        recent = [*recent[-49:], loss.item()]
        if step % 50 == 0 or step == steps - 1:
            spread = max((torch.bincount(v, minlength=16).max() / v.numel() * 16).item() for v in loads.values())
            elapsed = time.monotonic() - start
            print(f"step {step:4d} loss {sum(recent) / len(recent):.3f} worst load {spread:.2f} {elapsed:6.0f} s", flush=True)
    return sum(recent) / len(recent)


@torch.no_grad()
def evaluate(model: Any, stream: torch.Tensor) -> float:
    """Mean next-id loss in nats over a held-out stream, in windows of the training length."""
    model.eval()
    losses = []
    for offset in range(0, len(stream) - LENGTH - 1, LENGTH):
        ids = stream[offset : offset + LENGTH + 1]
        logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[1:]).item())
    return sum(losses) / len(losses)


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 e4m3 blocks of 128 x 128 with fp32 scales that multiply: q = e4m3(w / s), s = amax / 448."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scale = blocks.abs().amax(dim=(1, 3)) / 448.0
    quantized = (blocks / scale[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
    return quantized, scale.contiguous()


def release_tensors(model: Any) -> dict[str, torch.Tensor]:
    """The model's weights under the release's names and dtypes."""
    out: dict[str, torch.Tensor] = {}

    def plain(name: str, weight: torch.Tensor) -> None:
        out[name] = weight.detach().to(torch.bfloat16).contiguous()

    def fp8(name: str, weight: torch.Tensor) -> None:
        out[name], out[name + "_scale_inv"] = quantize(weight.detach())

    plain("model.embed_tokens.weight", model.model.embed_tokens.weight)
    plain("model.norm.weight", model.model.norm.weight)
    plain("lm_head.weight", model.lm_head.weight)
    for index, layer in enumerate(model.model.layers):
        prefix = f"model.layers.{index}"
        attention, mlp = layer.self_attn, layer.mlp
        plain(f"{prefix}.input_layernorm.weight", layer.input_layernorm.weight)
        plain(f"{prefix}.post_attn_norm.weight", layer.post_self_attn_layernorm.weight)
        plain(f"{prefix}.post_attention_layernorm.weight", layer.post_attention_layernorm.weight)
        plain(f"{prefix}.post_ffn_norm.weight", layer.post_mlp_layernorm.weight)
        plain(f"{prefix}.self_attn.q_norm.weight", attention.q_norm.weight)
        plain(f"{prefix}.self_attn.k_norm.weight", attention.k_norm.weight)
        plain(f"{prefix}.mlp.gate.weight", mlp.gate.weight)
        plain(f"{prefix}.moe.router.expert_bias", mlp.gate.e_score_correction_bias)
        for which in ("q", "k", "v", "o"):
            fp8(f"{prefix}.self_attn.{which}_proj.weight", getattr(attention, f"{which}_proj").weight)
        for which in ("gate", "up", "down"):
            fp8(f"{prefix}.mlp.shared_experts.{which}_proj.weight", getattr(mlp.shared_experts, f"{which}_proj").weight)
        for expert in range(CONFIG["num_experts"]):
            gate, up = mlp.experts.gate_up_proj[expert].chunk(2, dim=0)
            fp8(f"{prefix}.mlp.experts.{expert}.gate_proj.weight", gate)
            fp8(f"{prefix}.mlp.experts.{expert}.up_proj.weight", up)
            fp8(f"{prefix}.mlp.experts.{expert}.down_proj.weight", mlp.experts.down_proj[expert])
    return out


def write_checkpoint(folder: Path, tensors: dict[str, torch.Tensor], tokenizer: Tokenizer) -> None:
    """Write shards, index, configs and tokenizer files; layers are spread over the shards in order, as in the release."""
    folder.mkdir(parents=True, exist_ok=True)
    eos, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    per_shard: list[dict[str, torch.Tensor]] = [{} for _ in range(SHARDS)]
    for name, tensor in tensors.items():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else 0
        per_shard[layer * SHARDS // CONFIG["num_hidden_layers"]][name] = tensor
    weight_map = {}
    for index, shard in enumerate(per_shard):
        file = f"model-{index + 1:05d}-of-{SHARDS:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
    gates = [f"model.layers.{i}.mlp.gate" for i in range(CONFIG["num_hidden_layers"])]
    quantization = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": gates,
    }
    write_json(
        folder / "config.json", {**CONFIG, "eos_token_id": eos, "pad_token_id": pad, "quantization_config": quantization}
    )
    write_json(
        folder / "generation_config.json",
        {"do_sample": True, "temperature": 1.0, "top_p": 0.97, "top_k": 128, "eos_token_id": [eos, pad], "pad_token_id": pad},
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONFIG["max_position_embeddings"],
        },
    )
    # Written by hand, and kept where it ships.
    (folder / CHAT_TEMPLATE).write_bytes((mini_checkpoint() / CHAT_TEMPLATE).read_bytes())


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the shipped mini checkpoint.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS, help="fewer for a trial run")
    options = parser.parse_args()
    torch.set_num_threads(2)
    tokenizer = train_tokenizer()
    stream = encode_stream(tokenizer, SEED, DOCUMENTS)
    held_out = encode_stream(tokenizer, SEED + 3, EVAL_DOCUMENTS)
    print(f"{len(stream):,} training ids, {len(held_out):,} held-out ids", flush=True)
    model = build_model(tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>"))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    started = time.monotonic()
    loss = train(model, stream, options.steps)
    tensors = release_tensors(model)
    write_checkpoint(options.out, tensors, tokenizer)
    report = {
        "seconds": round(time.monotonic() - started),
        "train_loss": round(loss, 4),
        "held_out_loss": round(evaluate(model, held_out), 4),
        "parameters": sum(p.numel() for p in model.parameters()),
        "router_bias_std": [
            round(float(np.std(layer.mlp.gate.e_score_correction_bias.numpy())), 3) for layer in model.model.layers
        ],
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
