"""DRAM hands out bytes at addresses within its banks' budgets, reuses freed ones at once, and names every misuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16, float8_e4m3fn

from oracle.errors import DeviceFault, UsageError
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import P150, DramGeometry, SimDevice, schedule_named
from tt_impl.device.sim.buffer import POISON, Buffer
from tt_impl.device.sim.dram import Dram
from tt_impl.device.sim.free_list import FreeList
from tt_impl.device.sim.geometry import ALIGNMENT, one_bank
from tt_impl.device.sim.host_memory import FreshRanges, reserve
from tt_impl.device.sim.layout import page_bytes


def dram(nbytes: int = 4096, *, latest: bool = False) -> Dram:
    return Dram(one_bank(nbytes), DeviceFault, latest=latest)


def allocate(memory: Dram, nbytes: int, label: str = "b") -> Buffer:
    return memory.allocate(nbytes, nbytes, label)


def free(memory: Dram, buffer: Buffer) -> None:
    memory.free(buffer, "test", 0)
    memory.addresses.give(buffer.address, buffer.share)


def test_out_of_memory_says_how_much_was_asked_and_how_much_is_free() -> None:
    device = SimDevice(dram_bytes=4096)
    device.allocate_tensor_on_device((1000,), DType.UINT8, Layout.ROW_MAJOR, "first")
    with pytest.raises(DeviceFault, match=r"big asked for 3500 bytes; 3072 of 4096 are free, the largest piece 3072") as caught:
        device.allocate_tensor_on_device((3500,), DType.UINT8, Layout.ROW_MAJOR, "big")
    assert caught.value.kind == "out-of-memory"


def test_out_of_memory_in_banks_says_what_each_bank_would_have_to_give() -> None:
    device = SimDevice(dram=DramGeometry(banks=8, bank_bytes=1024))
    with pytest.raises(DeviceFault, match=r"row asked for 1100 bytes \(1152 in each of 8 banks\); 8192 of 8192 are free"):
        device.allocate_tensor_on_device((1100,), DType.UINT8, Layout.ROW_MAJOR, "row")


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "share"),
    [
        ((3933120,), DType.UINT8, Layout.ROW_MAJOR, 492864),
        ((1, 3933120), DType.UINT8, Layout.ROW_MAJOR, 3933120),
        ((12291, 320), DType.UINT8, Layout.ROW_MAJOR, 491840),
        ((1, 1), DType.INT32, Layout.ROW_MAJOR, 64),
        ((32, 64), DType.BFLOAT16, Layout.TILE, 2048),
        ((1024, 512), DType.BFLOAT16, Layout.TILE, 131072),
        ((32, 32), DType.BFLOAT8_B, Layout.TILE, 1088),
        ((17, 100), DType.BFLOAT16, Layout.ROW_MAJOR, 768),
    ],
)
def test_a_tensor_takes_of_each_bank_what_it_takes_on_a_mock_p150(
    shape: tuple[int, ...], dtype: DType, layout: Layout, share: int
) -> None:
    """Seen as `total_bytes_allocated_per_bank` of ttnn 0.81.1's memory view."""
    device = SimDevice(dram=P150)
    tensor = device.allocate_tensor_on_device(shape, dtype, layout, "t")
    assert tensor.buffer.share == share
    assert device.get_memory_view().allocated_bytes == 8 * share


def test_a_p150_has_the_bytes_that_the_port_had_and_costs_only_what_is_touched() -> None:
    device = SimDevice(dram=P150)
    assert device.get_memory_view().total_bytes == 34_178_731_008
    for index in range(15):  # as many as a mock P150 takes
        device.allocate_tensor_on_device((1 << 20, 32), DType.UINT8, Layout.ROW_MAJOR, f"block{index}")
    assert page_bytes((1 << 20, 32), DType.UINT8, Layout.ROW_MAJOR) == 32


@pytest.mark.parametrize("bad", [{"banks": 0, "bank_bytes": 64}, {"banks": 1, "bank_bytes": 100, "reserved_bytes": 64}])
def test_a_geometry_without_room_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="64 usable bytes"):
        DramGeometry(**bad)


def test_address_space_that_the_system_does_not_grant_is_named() -> None:
    with pytest.raises(UsageError, match="cannot reserve 1152921504606846976 bytes of address space"):
        reserve(1 << 60)


def test_a_freed_address_is_reused_by_the_next_allocation_with_a_new_identity() -> None:
    memory = dram()
    first = allocate(memory, 100)
    allocate(memory, 100)
    free(memory, first)
    again = allocate(memory, 100)
    assert again.address == first.address
    assert again.identity != first.identity


def test_what_was_freed_last_is_handed_out_first_where_the_schedule_says_so() -> None:
    """Also out of the middle of a larger hole, and not again once it is taken."""
    addresses = {}
    for latest in (False, True):
        memory = dram(latest=latest)
        held = [allocate(memory, 64) for _ in range(6)]
        for index in (1, 0, 4, 3):
            free(memory, held[index])
        addresses[latest] = [allocate(memory, 64).address // 64 for _ in range(5)]
    assert addresses == {False: [0, 1, 3, 4, 6], True: [3, 4, 0, 1, 6]}


def test_what_was_freed_last_is_not_handed_out_where_it_was_taken_meanwhile() -> None:
    addresses = FreeList(1024, latest=True)
    a, _, c, d = (addresses.take(64) for _ in range(4))
    addresses.take(1024 - 4 * 64)
    for address in (a, c, d):
        assert address is not None
        addresses.give(address, 64)
    assert addresses.take(128) == c  # both of the last two, which are one hole
    assert addresses.take(64) == a
    assert addresses.take(64) is None


def test_the_reuse_schedule_hands_out_what_was_freed_last() -> None:
    def second(schedule: str) -> bool:
        device = SimDevice(dram_bytes=4096, schedule=schedule_named(schedule))
        a, b, _ = (device.allocate_tensor_on_device((64,), DType.UINT8, Layout.ROW_MAJOR, label) for label in "abc")
        for tensor in (a, b):
            device.deallocate(tensor)
        return device.allocate_tensor_on_device((64,), DType.UINT8, Layout.ROW_MAJOR, "d").buffer.address == b.buffer.address

    assert [second(name) for name in ("lazy", "eager", "random:1", "reuse")] == [False, False, False, True]


def test_double_free_names_the_buffer_the_op_and_both_events() -> None:
    device = SimDevice(dram_bytes=4096)
    tensor = device.allocate_tensor_on_device((8,), DType.UINT8, Layout.ROW_MAJOR, "twice")
    device.deallocate(tensor)
    wanted = r"deallocate of twice \(buffer 1\), which was deallocated at event 2 \[event 2, schedule lazy\]"
    with pytest.raises(DeviceFault, match=wanted) as caught:
        device.deallocate(tensor)
    assert caught.value.kind == "double-free"


def test_a_poke_past_the_buffer_is_out_of_bounds() -> None:
    device = SimDevice(dram_bytes=4096)
    tensor = device.allocate_tensor_on_device((8,), DType.UINT8, Layout.ROW_MAJOR, "small")
    for offset, data in ((7, b"ab"), (-1, b"a"), (8, b"a")):
        with pytest.raises(DeviceFault, match=rf"of {len(data)} bytes at offset {offset} of small \(buffer 1\)") as caught:
            device.poke(tensor, offset, data)
        assert caught.value.kind == "out-of-bounds"
    device.poke(tensor, 7, b"a")


@pytest.mark.parametrize("dtype", [np.dtype(bfloat16), np.dtype(np.float32), np.dtype(float8_e4m3fn)])
def test_poison_is_nan_in_every_float_format(dtype: np.dtype) -> None:
    buffer = allocate(dram(), 64)
    buffer.poison()
    assert np.isnan(buffer.bytes.view(dtype).astype(np.float32)).all()


def test_what_was_never_written_reads_as_poison() -> None:
    device = SimDevice(dram_bytes=4096)
    tensor = device.allocate_tensor_on_device((1, 4), DType.FLOAT32, Layout.ROW_MAJOR, "unwritten")
    assert np.isnan(device.copy_device_to_host_tensor(tensor, blocking=True).array()).all()


def test_a_freed_buffer_holds_poison_once_the_queue_gets_there() -> None:
    device = SimDevice(dram_bytes=4096)
    for count in (4, 5):
        tensor = device.allocate_tensor_on_device((count,), DType.UINT8, Layout.ROW_MAJOR, "freed")
        device.copy_host_to_device_tensor(np.arange(count, dtype=np.uint8), tensor)
        device.deallocate(tensor)
        assert tensor.generation == 0
        device.synchronize_device()
        assert tensor.buffer.bytes.tolist() == [0xFF, 0x7F, 0xFF, 0x7F, 0xFF][:count]


def test_a_buffer_that_the_device_is_done_with_is_poisoned_at_once() -> None:
    device = SimDevice(dram_bytes=4096)
    tensor, other = (device.allocate_tensor_on_device((4,), DType.UINT8, Layout.ROW_MAJOR, label) for label in "ab")
    device.copy_host_to_device_tensor(np.arange(4, dtype=np.uint8), tensor)
    device.synchronize_device()
    device.copy_host_to_device_tensor(np.arange(4, dtype=np.uint8), other)  # pending, but of another buffer
    device.deallocate(tensor)
    assert (tensor.buffer.bytes.view(np.uint16) == POISON).all()


def test_an_output_that_is_freed_before_it_is_computed_is_poison_in_the_end() -> None:
    device = SimDevice(dram_bytes=1 << 18)
    x = device.allocate_tensor_on_device((1, 32), DType.FLOAT32, Layout.TILE, "x")
    device.copy_host_to_device_tensor(np.ones((1, 32), np.float32), x)
    out = device.add(x, x)
    device.deallocate(out)
    device.synchronize_device()
    assert (out.buffer.bytes.view(np.uint16) == POISON).all()


@given(
    st.booleans(), st.lists(st.tuples(st.booleans(), st.integers(1, 400), st.integers(0, 30)), max_size=60), st.integers(1, 8)
)
def test_buffers_never_overlap_are_poison_and_all_comes_back(
    latest: bool, steps: list[tuple[bool, int, int]], banks: int
) -> None:
    bank = 1 << 21  # 60 buffers of 400 pages, each as large as the alignment, fit
    memory = Dram(DramGeometry(banks, bank), DeviceFault, latest=latest)
    live: list[Buffer] = []
    for take, size, which in steps:
        if take or not live:
            buffer = memory.allocate(size, 1 + which, "b")
            assert buffer.address % ALIGNMENT == 0
            assert buffer.share * banks >= buffer.nbytes == buffer.bytes.size == size
            for other in live:
                apart = buffer.address + buffer.share <= other.address or other.address + other.share <= buffer.address
                assert apart
                assert not np.shares_memory(buffer.bytes, other.bytes)
            assert not np.isin(buffer.bytes, [0, 1]).any()
            buffer.bytes[:] = 1
            buffer.changed()
            live.append(buffer)
        else:
            gone = live.pop(which % len(live))
            free(memory, gone)
            gone.poison()
    memory.sentinels.check_touched("test")
    assert all((buffer.bytes == 1).all() for buffer in live)
    assert memory.view().allocated_bytes == banks * sum(buffer.share for buffer in live)
    for buffer in live:
        free(memory, buffer)
    assert memory.view().largest_free_bytes == memory.view().total_bytes == banks * bank


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_memory_is_fresh_once(claims: list[tuple[int, int]]) -> None:
    ranges, seen = FreshRanges(64), set()
    for start, length in claims:
        end = min(64, start + length)
        fresh = [at for low, high in ranges.claim(start, end) for at in range(low, high)]
        assert fresh == [at for at in range(start, end) if at not in seen]
        seen.update(fresh)


def test_a_place_that_was_forgotten_is_not_taken_for_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tt_impl.device.sim.dram._MOST_PLACES", 1)
    device = SimDevice()
    first = device.allocate_tensor_on_device((64,), DType.UINT8, Layout.ROW_MAJOR, "first")
    device.allocate_tensor_on_device((64,), DType.UINT8, Layout.ROW_MAJOR, "second")  # the first's place is forgotten
    device.copy_host_to_device_tensor(np.arange(64, dtype=np.uint8), first)
    device.synchronize_device()
    read = device.copy_device_to_host_tensor(first, blocking=False)
    device.deallocate(first)
    third = device.allocate_tensor_on_device((64,), DType.UINT8, Layout.ROW_MAJOR, "third")  # there; poison would be early
    device.synchronize_device()
    assert read.array().tolist() == list(range(64))
    assert device.copy_device_to_host_tensor(third, blocking=True).array().tolist() == [0xFF, 0x7F] * 32
