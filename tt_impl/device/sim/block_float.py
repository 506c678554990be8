"""BFLOAT8_B: floats that share an exponent, sixteen at a time.

A face row's 16 elements carry one biased exponent, the largest of theirs, and each a sign and a 7-bit mantissa whose top bit
stands for 2^(exponent - 127). A tile is its 64 exponents in face-row order, then its 1,024 elements, one byte each.

The rule is ttnn's host code's, bit for bit (compared with ttnn 0.81.1): a mantissa is shifted down to the shared exponent
first, which drops what falls off, and then rounded to nearest, ties to even, and held at 127; an element that becomes 0
loses its sign. Subnormals count as zeros; infinities and NaNs keep exponent 255, and spoil the other 15.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tt_impl.device.protocol import FACE_SIDE, TILE_SIDE, Bytes

ELEMENTS = TILE_SIDE * TILE_SIDE
EXPONENTS = ELEMENTS // FACE_SIDE
TILE_BYTES = EXPONENTS + ELEMENTS

_MANTISSA_BITS = 7
_DROPPED = 24 - _MANTISSA_BITS  # of a float32's 24 significant bits
_LARGEST = (1 << _MANTISSA_BITS) - 1


def encode_tiles(values: npt.NDArray[np.float32], out: Bytes) -> None:
    """Pack `values`, float32 in face-row order [tiles, 64, 16], into `out`, uint8 [tiles * 1088]."""
    exponents, elements = encode_rows(values)
    tiles = out.reshape(-1, TILE_BYTES)
    tiles[:, :EXPONENTS] = exponents
    tiles[:, EXPONENTS:] = elements.reshape(-1, ELEMENTS)


def decode_tiles(data: Bytes) -> npt.NDArray[np.float32]:
    """The values in packed `data`, uint8 [tiles * 1088], as float32 in face-row order [tiles, 64, 16]."""
    tiles = data.reshape(-1, TILE_BYTES)
    return decode_rows(tiles[:, :EXPONENTS], tiles[:, EXPONENTS:].reshape(-1, EXPONENTS, FACE_SIDE))


def encode_rows(values: npt.NDArray[np.float32]) -> tuple[Bytes, Bytes]:
    """Face rows [..., 16] of float32 as their shared exponents, uint8 [...], and elements, uint8 [..., 16]."""
    bits = values.view(np.uint32)
    exponents = (bits >> 23) & 0xFF
    shared = exponents.max(axis=-1, keepdims=True)
    significand = (bits & 0x7FFFFF) | 0x800000
    significand >>= np.minimum(shared - exponents, 31)
    mantissa = significand >> _DROPPED
    rest = significand & ((1 << _DROPPED) - 1)
    half = 1 << (_DROPPED - 1)
    mantissa += (rest > half) | ((rest == half) & (mantissa & 1).astype(bool))
    np.minimum(mantissa, _LARGEST, out=mantissa)
    mantissa[exponents == 0] = 0
    mantissa |= np.where(mantissa != 0, bits >> 31 << _MANTISSA_BITS, 0)
    return shared[..., 0].astype(np.uint8), mantissa.astype(np.uint8)


def decode_rows(exponents: Bytes, elements: Bytes) -> npt.NDArray[np.float32]:
    """The values of face rows, float32 [..., 16]; what `encode_rows` gave."""
    shared = exponents.astype(np.int32)[..., None]
    mantissa = (elements & _LARGEST).astype(np.uint32)
    special = (shared == 255) & (mantissa > _LARGEST >> 1)  # what ldexp has no number for
    values = np.ldexp(np.where(special, 0, mantissa).astype(np.float32), shared - (127 + _MANTISSA_BITS - 1))
    bits = values.view(np.uint32)
    bits |= np.where(special, 0x7F800000 | (mantissa & _LARGEST >> 1) << _DROPPED, 0).astype(np.uint32)
    bits |= (elements >> _MANTISSA_BITS).astype(np.uint32) << 31
    return values
