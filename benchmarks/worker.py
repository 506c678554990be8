"""One job in a process of its own: `python worker.py JOB`, JSON in and JSON out. Started by `processes.run_worker`."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from machine import read_bandwidth
from memory import process_memory

Job = dict[str, Any]


def bandwidth(job: Job) -> dict[str, Any]:
    """The machine's read bandwidth."""
    return {"gb_per_s": read_bandwidth(job["gigabytes"], job["rounds"])}


def measure(job: Job) -> dict[str, Any]:
    """Start-up, prefill and decode of one peer, every variant with the same ids."""
    import numpy as np
    from peers import open_peer

    from oracle.kolibri1.checkpoint import Checkpoint

    say(job, f"{read_files(Path(job['checkpoint'])) / 1e9:.1f} GB of weights are in the page cache")
    begun = time.perf_counter()
    checkpoint = Checkpoint.open(job["checkpoint"])
    peer = open_peer(job["peer"], checkpoint)
    start_s = time.perf_counter() - begun
    say(job, f"ready after {start_s:.1f} s")
    rng = np.random.default_rng(0)
    draw = lambda count: rng.integers(0, checkpoint.config.vocab_size, count).tolist()  # noqa: E731
    prompt, context, warm, timed = draw(job["prefill"]), draw(job["context"]), draw(job["warm"]), draw(job["tokens"])
    variants = {}
    for variant in peer.variants:
        peer.use(variant)
        prefill = []
        for _ in range(1 + job["rounds"]):  # the first compiles, and touches nearly every expert
            peer.start()
            prefill.append(timed_feed(peer, prompt))
            say(job, f"{variant}: prefill of {len(prompt)} tokens in {prefill[-1]:.2f} s")
        peer.start()
        for ids in (context, *([token] for token in warm)):
            peer.feed(ids)
        steps = [timed_feed(peer, [token]) * 1e3 for token in timed]
        say(job, f"{variant}: {statistics.median(steps):.1f} ms a token over {len(steps)} tokens")
        variants[variant] = {
            "decode_ms": statistics.median(steps),
            "decode_ms_all": steps,
            "prefill_s": min(prefill[1:]),
            "first_prefill_s": prefill[0],
        }
    return {"start_s": start_s, "variants": variants}


def large(job: Job) -> dict[str, Any]:
    """Start-up, a few tokens and a prefill of the reference: what it takes, and what it touched."""
    import numpy as np

    from oracle.kolibri1.checkpoint import Checkpoint
    from oracle.kolibri1.reference import Reference

    before = process_memory()["RssAnon"]
    begun = time.perf_counter()
    checkpoint = Checkpoint.open(job["checkpoint"])
    opened_s = time.perf_counter() - begun
    reference = Reference(checkpoint)
    start_s = time.perf_counter() - begun
    opened = process_memory()["RssAnon"]
    say(job, f"open: {len(checkpoint):,} tensors in {start_s:.2f} s")
    ids = np.random.default_rng(0).integers(0, checkpoint.config.vocab_size, job["tokens"] + job["prefill"]).tolist()
    experts: set[tuple[int, int]] = set()

    def feed(ids: list[int], cache: Any) -> float:
        begun = time.perf_counter()
        chosen = reference.forward(ids, cache).expert_ids
        taken = time.perf_counter() - begun
        experts.update((layer, int(i)) for layer in range(chosen.shape[1]) for i in chosen[:, layer].unique())
        return taken

    cache, steps, prefill_s = reference.new_cache(), [], None
    for token in ids[: job["tokens"]]:
        steps.append(feed([token], cache) * 1e3)
        say(job, f"token {len(steps)} of {job['tokens']}: {steps[-1]:.0f} ms")
    if job["prefill"]:
        prefill_s = feed(ids[job["tokens"] :], reference.new_cache())
        say(job, f"prefill of {job['prefill']} tokens in {prefill_s:.2f} s")
    return {
        "tensors": len(checkpoint),
        "opened_s": opened_s,
        "start_s": start_s,
        "anonymous_before": before,
        "anonymous_open": opened,
        "decode_ms": steps,
        "prefill_s": prefill_s,
        "experts_touched": len(experts),
        "resident_file": process_memory()["RssFile"],
    }


def timed_feed(peer: Any, ids: list[int]) -> float:
    """Seconds of one call."""
    begun = time.perf_counter()
    peer.feed(ids)
    return time.perf_counter() - begun


def read_files(folder: Path) -> int:
    """Read every shard once, so that every peer finds the same page cache; bytes read."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while chunk := len(file.read(1 << 23)):
                count += chunk
    return count


def say(job: Job, line: str) -> None:
    print(f"  {job.get('peer', job['kind'])}: {line}", file=sys.stderr, flush=True)


def main() -> int:
    job = json.loads(sys.argv[1])
    # Where memory runs out after all, this process is the one to go.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if limit := job.get("limit_bytes"):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        result = {"bandwidth": bandwidth, "measure": measure, "large": large}[job["kind"]](job)
    except (MemoryError, RuntimeError) as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'out of memory'}", file=sys.stderr)
        return 3
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
