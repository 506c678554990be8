"""One decoder layer alone, over hidden states that are given: for a judge that asks which layer is wrong."""

from __future__ import annotations

import numpy as np

from oracle.subjects.protocol import Float32
from tt_impl.attention.kv_cache import PagedKvCache
from tt_impl.attention.rope import RopeTables
from tt_impl.device.protocol import Device, DType, Layout
from tt_impl.experts.memo import upload
from tt_impl.layers import DecoderLayer
from tt_impl.lifetimes import Scratch
from tt_impl.stretches import Scopes


def run_layer(
    device: Device, layer: DecoderLayer, cache: PagedKvCache, rope: RopeTables, inputs: Float32, activation: DType
) -> Float32:
    """The residual stream [T, hidden] after `layer`, position by position, from the one before it.

    Args:
        cache: empty; holds the layer's keys and values of the T positions afterwards.
        rope: the tables of all positions.
        inputs: [T, hidden], rounded to `activation` once, as a layer's input on the device is.
    """
    outputs, users = [], cache.rope_positions.shape[1]
    for row in inputs:
        cache.advance()  # of the first user; the others' rows are the same, and idle
        with Scratch(device) as scratch:
            scopes = Scopes(scratch, scratch, scratch)
            hidden = scratch.own(
                upload(
                    device, "layer_input", np.repeat(row[None], users, axis=0).astype(activation.host), activation, Layout.TILE
                )
            )
            entered = layer.enter(scopes, hidden, cache, rope.rows(device, scratch, cache.rope_positions))
            routed, _ = layer.route(scratch, entered, cache.active)
            read = device.copy_device_to_host_tensor(layer.leave(scopes, entered, routed), blocking=True)
            outputs.append(read.array()[0].astype(np.float32))
    return np.stack(outputs)
