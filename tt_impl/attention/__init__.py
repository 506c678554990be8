"""Attention of a decode step: `self_attention` over the paged KV cache (`kv_cache`, `kv_pages`), with RoPE tables (`rope`)."""
