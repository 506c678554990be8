"""The reference's KV cache: one sequence's keys and values, bounded by the window on sliding layers."""

from __future__ import annotations

import torch

from oracle.kolibri1.config import Kolibri1Config


class LayerCache:
    """Keys and values of one layer for the positions `first`, `first + 1`, ...: [K, n, D] each, keys after norm and RoPE.

    Args:
        heads: K. head_dim: D.
        window: how many positions a query sees, its own included; None on a full layer.
        dtype: of the values kept.
    """

    def __init__(self, heads: int, head_dim: int, window: int | None, dtype: torch.dtype) -> None:
        self._buffers = torch.empty(2, heads, 0, head_dim, dtype=dtype)
        self._start, self._end = 0, 0
        self._window = window
        self.first = 0

    @property
    def keys(self) -> torch.Tensor:
        return self._buffers[0, :, self._start : self._end]

    @property
    def values(self) -> torch.Tensor:
        return self._buffers[1, :, self._start : self._end]

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Add the keys and values [K, T, D] of the next T positions."""
        tokens, held = keys.shape[1], self._end - self._start
        if self._end + tokens > self._buffers.shape[2]:
            # Sliding layers move down inside two windows; full layers double. Either way a position is copied few times.
            capacity = max(held + tokens, 2 * (held if self._window is None else min(held, self._window)), 64)
            buffers = self._buffers.new_empty(2, self._buffers.shape[1], capacity, self._buffers.shape[3])
            buffers[:, :, :held] = self._buffers[:, :, self._start : self._end]
            self._buffers, self._start, self._end = buffers, 0, held
        self._buffers[0, :, self._end : self._end + tokens] = keys
        self._buffers[1, :, self._end : self._end + tokens] = values
        self._end += tokens

    def rewind(self, length: int) -> None:
        """Drop the positions from `length` on."""
        self._end = self._start + length - self.first

    def forget(self) -> None:
        """Drop what no later query of a sliding layer sees: all but window - 1 positions."""
        if self._window is not None and (dropped := self._end - self._start - (self._window - 1)) > 0:
            self._start += dropped
            self.first += dropped


class KVCache:
    """One sequence's cache; `length` positions were fed so far."""

    def __init__(self, config: Kolibri1Config, dtype: torch.dtype) -> None:
        self.layers = [
            LayerCache(
                config.num_key_value_heads,
                config.head_dim,
                config.sliding_window if config.is_sliding(layer) else None,
                dtype,
            )
            for layer in range(config.num_hidden_layers)
        ]
        self.length = 0

    def rewind(self) -> None:
        """Drop what a pass left that did not end: positions beyond `length`."""
        for layer in self.layers:
            layer.rewind(self.length)

    def advance(self, tokens: int) -> None:
        """Count the positions that every layer was given, and let sliding layers forget."""
        self.length += tokens
        for layer in self.layers:
            layer.forget()

    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(layer._buffers.nbytes for layer in self.layers)
