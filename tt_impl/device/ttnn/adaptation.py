"""What the ops share: operands in and results out, the forms that ttnn's decode ops take, and what is kept while capturing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from oracle.errors import DeviceFault, SubjectError
from tt_impl.device.protocol import FACE_SIDE, TILE_SIDE, DType, Layout, Tensor
from tt_impl.device.ttnn.guards import refusals, require
from tt_impl.device.ttnn.held import four_dimensions
from tt_impl.device.ttnn.memory import TtnnMemory, TtnnTensor


class TtnnAdaptation(TtnnMemory):
    """Between `protocol`'s operands and ttnn's."""

    @contextlib.contextmanager
    def _op(self, name: str, operands: Iterable[Tensor]) -> Iterator[list[Any]]:
        """ttnn's tensors of live operands; ttnn's refusals as faults; and an op in the log if there was none."""
        values, taken = [], tuple(operands)
        for operand in taken:
            values.append(self._live(operand, name).value)
            if operand.dtype is DType.FP8_E4M3:
                raise DeviceFault("bad-operand", f"{name} of {operand.label}: no op takes fp8_e4m3")
        with refusals(name):
            yield values
        self._log.note_op(name, operands=taken)

    def _result(self, name: str, value: Any, shape: Sequence[int], dtype: DType) -> TtnnTensor:
        """An op's TILE output, known by `shape`: ttnn's swiglu and nlp_concat_heads_decode call padding rows their own."""
        shape = tuple(shape)
        wanted = four_dimensions(shape)
        if tuple(value.shape) != wanted:
            padded = [*wanted[:-2], *(-(-n // TILE_SIDE) * TILE_SIDE for n in wanted[-2:])]
            if np.prod(tuple(value.padded_shape)) != np.prod(padded):
                raise DeviceFault("bad-result", f"{name} gave {list(value.shape)} for {list(shape)}")
            value = self.ttnn.reshape(value, self.ttnn.Shape(list(wanted)), self.ttnn.Shape(padded))
        return self._adopt(value, shape, dtype, Layout.TILE, name)

    def _filled(
        self, name: str, output: Tensor, shape: tuple[int, ...], dtype: DType, operands: Sequence[Tensor]
    ) -> TtnnTensor:
        """A tensor that an op is to write, whose bytes then are new; it is none of the operands."""
        fits = output.shape == shape and output.dtype is dtype and output.layout is Layout.TILE
        require(name, fits and all(output is not operand for operand in operands), output)
        into = self._live(output, name)
        into.generation += 1
        return into

    def _on_the_way(self, value: Any) -> Any:
        """An intermediate of an op in DRAM: freed with its last reference, unless a trace being captured names it by address.

        One in L1 is never kept: a trace's commands run in order, and nothing lies in L1 from one op to the next. A sliding
        layer's of the release take 155,648 of the 1,428,352 bytes that a core has (measured on ttnn 0.81.1's mock P150).
        """
        if self._capturing is not None:
            self._capturing.kept.append(value)
        return value

    def _by_user(self, value: Any, shape: Sequence[int]) -> Any:
        """[users, rows, width] height-sharded in L1, one core for each user."""
        users, rows, width = shape
        grid = self._mesh.compute_with_storage_grid_size()
        config = self.ttnn.create_sharded_memory_config(
            (-(-rows // TILE_SIDE) * TILE_SIDE, width),
            self.ttnn.num_cores_to_corerangeset(users, grid, True),
            self.ttnn.ShardStrategy.HEIGHT,
            self.ttnn.ShardOrientation.ROW_MAJOR,
            use_height_and_width_as_shard_shape=True,
        )
        return self.ttnn.to_memory_config(value, config)

    def _interleaved(self, value: Any) -> Any:
        return self.ttnn.to_memory_config(value, self.ttnn.DRAM_MEMORY_CONFIG)

    def _precise(self) -> Any:
        return self.ttnn.WormholeComputeKernelConfig(  # ttnn's name for it on Blackhole too
            math_fidelity=self.ttnn.MathFidelity.HiFi4, math_approx_mode=False, fp32_dest_acc_en=True, packer_l1_acc=True
        )

    def _require_cache(self, name: str, cache: Tensor) -> None:
        """A paged cache, with blocks of a face or of whole tiles: ttnn refuses no other."""
        fits = cache.layout is Layout.TILE and len(cache.shape) == 4 and cache.shape[3] % TILE_SIDE == 0
        require(name, fits and (cache.shape[2] == FACE_SIDE or cache.shape[2] % TILE_SIDE == 0), cache)

    def _require_pages(self, name: str, users: int, positions: Tensor, page_table: Tensor) -> None:
        """Positions and page table of `users`: int32, row-major, [1, B] and [B, n]."""
        plain = all(t.dtype is DType.INT32 and t.layout is Layout.ROW_MAJOR for t in (positions, page_table))
        fits = positions.shape == (1, users) and len(page_table.shape) == 2 and page_table.shape[0] == users
        require(name, plain and fits, positions, page_table)

    def _require_memory(self) -> None:
        """Write bytes and read them back: what calls itself a card must hold them. Closes the device where it does not.

        Raises:
            SubjectError: it does not.
        """
        pattern = np.arange(1, 257, dtype=np.uint32).reshape(8, 32)
        probe = self.allocate_tensor_on_device(pattern.shape, DType.UINT32, Layout.ROW_MAJOR, "probe")
        self.copy_host_to_device_tensor(pattern, probe)
        held = self.copy_device_to_host_tensor(probe, blocking=True).array()
        same = np.array_equal(held, pattern)
        self.deallocate(probe)
        if not same:
            self.close()
            raise SubjectError(
                "the device that ttnn opened does not hold what is written to it, as a mock device does not: no gate can be "
                "judged on it; `kolibri-oracle doctor` shows what is there"
            )
