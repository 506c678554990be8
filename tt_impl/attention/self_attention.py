"""Self-attention of one decode step, over the paged KV cache."""

from __future__ import annotations

from oracle.kolibri1.config import Kolibri1Config
from tt_impl.attention.kv_cache import PagedKvCache
from tt_impl.attention.rope import RopeTables
from tt_impl.device.protocol import Device, Tensor
from tt_impl.lifetimes import Scratch
from tt_impl.staging import LayerWeights


class Attention:
    """One layer's attention: q/k norm per head before RoPE; RoPE and the window on sliding layers only (facts section 5)."""

    def __init__(self, device: Device, config: Kolibri1Config, layer: int, weights: LayerWeights) -> None:
        self._device = device
        self._config = config
        self._layer = layer
        self._weights = weights
        self._sliding = config.is_sliding(layer)

    def forward(self, scratch: Scratch, x: Tensor, cache: PagedKvCache, rope: RopeTables) -> Tensor:
        """x [users, hidden], normalized -> the same; writes these positions' keys and values first, so a query sees itself.

        Args:
            rope: these positions' rows.
        """
        device, config, weights = self._device, self._config, self._weights
        layer_cache = cache.layers[self._layer]
        qkv = scratch.own(device.linear(x, weights.qkv))
        heads = device.nlp_create_qkv_heads_decode(
            qkv, num_heads=config.num_attention_heads, num_kv_heads=config.num_key_value_heads
        )
        q, k, v = (scratch.own(part) for part in heads)
        q = scratch.own(device.rms_norm(q, weights.q_norm, epsilon=config.rms_norm_eps))
        k = scratch.own(device.rms_norm(k, weights.k_norm, epsilon=config.rms_norm_eps))
        if self._sliding:
            q, k = (scratch.own(device.rotary_embedding_hf(heads, *rope)) for heads in (q, k))
        pages = layer_cache.pages
        for paged, new in ((layer_cache.keys, k), (layer_cache.values, v)):
            device.paged_update_cache(paged, new, update_idxs_tensor=pages.written, page_table=pages.table)
        attended = scratch.own(
            device.paged_scaled_dot_product_attention_decode(
                q,
                layer_cache.keys,
                layer_cache.values,
                page_table=pages.table,
                cur_pos_tensor=pages.queried,
                scale=config.head_dim**-0.5,
                sliding_window_size=config.sliding_window if self._sliding else None,
            )
        )
        return scratch.own(device.linear(scratch.own(device.nlp_concat_heads_decode(attended)), weights.o_proj))
