"""A run with planted flips whose flip file is kept in `tests/data`: every machine and Python must write the same bytes.

The run is the shipped golden's own evidence with argmaxes, experts and sketches changed by arithmetic that IEEE 754 fixes, so
nothing in the file depends on a library. After the shipped golden was remade, write the file anew and read its difference:
`python tests/oracle/judge/stored_flips.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from oracle.golden.format import Golden
from oracle.subjects.protocol import SubjectIdentity
from oracle.subjects.run import PromptRun, Run

STORED = Path(__file__).parents[2] / "data" / "mini-flips.json"


def with_planted_flips(golden: Golden, run: Run) -> Run:
    """Of each of the first six prompts: a flip at the narrowest margin and one at the widest, each prompt in another way."""
    return replace(
        run,
        identity=SubjectIdentity("planted", "bf16", "bf16", ("golden", "alignment", "chain", "flips")),
        prompts={
            **run.prompts,
            **{p.name: _planted(p.margin, p.top_ids, run.prompts[p.name], way) for way, p in enumerate(golden.prompts[:6])},
        },
    )


def _planted(margin: np.ndarray, top_ids: np.ndarray, run: PromptRun, way: int) -> PromptRun:
    assert run.expert_ids is not None
    assert run.sketch is not None
    argmax, ids, top_logits = run.argmax.copy(), run.top_ids.copy(), run.top_logits.copy()
    experts, sketch = run.expert_ids.copy(), run.sketch.copy()
    layer = way % experts.shape[1]
    for position in (int(margin.argmin()), int(margin.argmax())):
        rank = max(1, way - 1)
        argmax[position] = top_ids[position, rank]
        ids[position, [0, rank]] = top_ids[position, [rank, 0]]
        if way % 3 == 1:
            unused = sorted(set(range(experts[position].max() + 1)) - set(experts[position, layer].tolist()))
            experts[position, layer, 0] = unused[0]
        if way % 3 == 2:
            sketch[position, layer:] *= np.float32(1.25)
    return replace(run, argmax=argmax, top_ids=ids, top_logits=top_logits, expert_ids=experts, sketch=sketch)


if __name__ == "__main__":
    from judge_cases import mini_golden, perfect_run

    from goldens import mini_checkpoint
    from oracle.golden.format import load_golden
    from oracle.judge.flip_file import flip_document
    from oracle.judge.session import Recorded, judge_recorded
    from oracle.kolibri1.checkpoint import Checkpoint
    from oracle.serialization import write_file

    golden = load_golden(mini_golden())
    perfect = perfect_run(golden)
    run = with_planted_flips(golden, perfect)
    recorded = Recorded(golden, Checkpoint.open(mini_checkpoint()), run, perfect, True, ())
    write_file(STORED, flip_document(golden, judge_recorded(recorded, ("flips",), partial=True)).to_json())
    print(f"wrote {STORED}")
