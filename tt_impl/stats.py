"""The decoder's own counters; a judge compares them with the device's event log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

_LEVEL = {"level": True}
"""Marks what is held at once, or at most: over prompts it does not add up, and the largest is kept."""


@dataclass
class StepStats:
    """Counts since `reset`. L layers; after the arrow, what the device's own log must say (`event_log.EventLog`).

    Attributes:
        steps: decode steps finished, of one user or of several together: what is counted once a step below is counted once for
            all of them.
        companion_steps: users that a step decoded beside its first: tokens consumed are `steps` and these.
        round_trips: times the host waited for the device: each step's L router reads and its logits, each drain, reread
            and bias read -> `round_trips`.
        slot_hits, slot_misses: experts asked for, each once a step, that a slot held, or not.
        slot_swaps: experts evicted from a slot to make room. `lru_swaps`: of them, those that the policy `lru` named: all, or
            none where another policy ran.
        fills: experts staged; equals `slot_misses` -> part of `writes`.
        staged_bytes: written by fills. `verified_bytes`: of them, read back and compared; equal to `staged_bytes` after
            every drain, but for an expert's bytes for each of `trusted_fills`.
        trusted_fills: fills that were not compared, since an earlier one of their expert was (`verify=first`).
        drains: waits that settled and verified outstanding read-backs -> `synchronizes`. At most one per layer and step,
            but for the two kinds counted apart, with `drain=fill`, where each fill is one, and where several users need more
            experts of a layer than there are slots: then one for each group that fits.
        early_drains: of them, those made since read-backs had reached their limit.
        single_drains: of them, those made behind one fill for it alone (`drain=fill`): all, or none.
        on_demand_drains: of them, those for an expert that was used without having been asked for; 0 in a decoder's steps.
        rereads: slots read again to dequantize them (`dequant=reread`) -> with L + 1 a step and `bias_reads`,
            `blocking_reads`.
        bias_reads: router biases fetched from the device by a step.
        device_topks: layers of steps whose experts the device chose (`topk=device`) -> `op.topk`.
        expert_uses: experts that took part in compute, once a step however many users one serves.
        memo_hits, memo_misses: dequantized experts found on the device, or made.
        memo_evictions: memos of resident experts dropped for want of room; `memo_releases`: memos that no longer count
            since their expert left its slot, or was filled anew.
        memo_bytes, memo_bytes_peak: device bytes that memos hold now, and at most so far.
        epoch_resets: steps that found the slots' content changed since the step before began.
        bytes_written, bytes_read: host to device and back, packed, counted on the decoder's side of the device's interface
            -> the same names.
        captures, replays: traces captured and executed (`dispatch=captured`), one for each stretch of a step
            -> `traces_captured`, `traces_executed`.
        trace_bytes: device bytes that traces hold now.
        kv_bytes: device bytes that keys and values take, by the device's own account of its memory: what `plans.kv_plan`
            plans for the settings, whatever has been decoded.
        small_blocks: blocks of less than 32 positions that the keys of all layers have, and the values as many (`block=16`).
        memory_before, memory_after: allocated device bytes once the state was opened, and after the latest step; the
            difference is `memo_bytes` and `trace_bytes`.
        memory_leaked: the most by which they were off that after any step; 0.
    """

    steps: int = 0
    companion_steps: int = 0
    round_trips: int = 0
    slot_hits: int = 0
    slot_misses: int = 0
    slot_swaps: int = 0
    lru_swaps: int = 0
    fills: int = 0
    staged_bytes: int = 0
    verified_bytes: int = 0
    trusted_fills: int = 0
    drains: int = 0
    early_drains: int = 0
    single_drains: int = 0
    on_demand_drains: int = 0
    rereads: int = 0
    bias_reads: int = 0
    device_topks: int = 0
    expert_uses: int = 0
    memo_hits: int = 0
    memo_misses: int = 0
    memo_evictions: int = 0
    memo_releases: int = 0
    memo_bytes: int = field(default=0, metadata=_LEVEL)
    memo_bytes_peak: int = field(default=0, metadata=_LEVEL)
    epoch_resets: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    captures: int = 0
    replays: int = 0
    trace_bytes: int = field(default=0, metadata=_LEVEL)
    kv_bytes: int = field(default=0, metadata=_LEVEL)
    small_blocks: int = field(default=0, metadata=_LEVEL)
    memory_before: int = field(default=0, metadata=_LEVEL)
    memory_after: int = field(default=0, metadata=_LEVEL)
    memory_leaked: int = field(default=0, metadata=_LEVEL)

    def note_memory(self, allocated: int) -> None:
        """How many bytes the device has allocated at the end of a step."""
        self.memory_after = allocated
        self.memory_leaked = max(self.memory_leaked, abs(allocated - self.memory_before - self.memo_bytes - self.trace_bytes))

    def counts(self) -> Mapping[str, int]:
        return asdict(self)


LEVELS = frozenset(f.name for f in fields(StepStats) if f.metadata.get("level"))
"""Counters that do not add up over prompts."""
