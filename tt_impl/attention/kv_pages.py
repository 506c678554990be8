"""Which block a position lies in, for the layers of one kind: page table and positions as the device is told them.

Each user has a ring of n blocks: logical block b lies in block b mod n of it, over what no query can see any more. ttnn takes
no page table with more entries for a sequence than the cache has blocks, so the device sees the n blocks that end with the
present one, and positions counted from the first of them; that far back reaches a window wherever it begins. Attention only
compares positions with each other, and RoPE has turned queries and keys before, so nothing else changes. With a block for the
whole context the first is always 0.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from tt_impl.device.protocol import Device, DType, Layout, Tensor

Numbers = npt.NDArray[np.int32]


class Pages:
    """Of all users, in caches of `users` x `blocks` blocks.

    Args:
        label: what the tensors' names begin with.

    Attributes:
        table: INT32 ROW_MAJOR [users, blocks], the physical block of each that the device sees.
        written: INT32 ROW_MAJOR [1, users], where each user's key and value go; -1 for one that idles, which writes nothing.
        queried: the same for its query, but 0 for one that idles. It is the same tensor where there is one user. ttnn leaves
            the rows of a user at -1 unspecified, and the experts' outputs of all users are multiplied by zeros and ones where
            each takes its own: there a row that is no number would spread. So whoever idles sees one position, the first of
            the present blocks, which always holds numbers.
    """

    def __init__(
        self, device: Device, label: str, *, users: int, blocks: int, block_size: int, rng: np.random.Generator
    ) -> None:
        self._device = device
        self._block_size = block_size
        self._blocks = scattered(users, blocks, rng)
        self._told: Numbers = np.full_like(self._blocks, -1)
        self.table = self._new((users, blocks), f"{label}page_table")
        self.written = self.queried = self._new((1, users), f"{label}position")
        if users > 1:
            self.queried = self._new((1, users), f"{label}query_position")
        self.tell([-1] * users, ())

    @property
    def tensors(self) -> list[Tensor]:
        """For the caller to free."""
        return [self.table, self.written, *([] if self.queried is self.written else [self.queried])]

    def tell(self, positions: Sequence[int], active: Container[int]) -> None:
        """Tell the device the users' positions, -1 for one that has not begun, of whom those of `active` take part."""
        users, blocks = self._blocks.shape
        present = np.maximum(np.array(positions, np.int32), 0)
        first = np.maximum(present // self._block_size - blocks + 1, 0)
        seen = np.take_along_axis(self._blocks, (first[:, None] + np.arange(blocks)) % blocks, axis=1)
        if not np.array_equal(seen, self._told):
            self._told = seen
            self._write(self.table, seen)
        here = present - first * self._block_size
        takes_part = np.array([user in active for user in range(users)])
        self._write(self.written, np.where(takes_part, here, -1)[None])
        if self.queried is not self.written:
            self._write(self.queried, np.where(takes_part, here, 0)[None])

    def _write(self, tensor: Tensor, numbers: npt.NDArray[np.integer]) -> None:
        self._device.copy_host_to_device_tensor(numbers.astype(np.int32), tensor)

    def _new(self, shape: tuple[int, int], label: str) -> Tensor:
        return self._device.allocate_tensor_on_device(shape, DType.INT32, Layout.ROW_MAJOR, label)


def scattered(users: int, blocks: int, rng: np.random.Generator) -> Numbers:
    """int32 [users, blocks]: each user's physical blocks, a permutation over those of all; never in their own order.

    With one block of one user there is no other order.
    """
    order = rng.permutation(users * blocks)
    if (order == np.arange(users * blocks)).all():
        order = np.roll(order, 1)
    return order.reshape(users, blocks).astype(np.int32)
