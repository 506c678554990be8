"""What a golden holds, for people: prompts and chains, how wide its margins are, and each class's floor."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from oracle.golden.calibration import MARGIN_EDGES, margin_bin
from oracle.golden.format import Golden
from oracle.golden.sensitivity import exposures, measure, weakest
from oracle.report.plain import Text

SUMMARY_SCHEMA = "kolibri-golden-summary/1"


def summarize(golden: Golden) -> dict[str, Any]:
    """The summary as JSON: counts, the margin histogram, near-tie contexts per class, floors."""
    margins = np.concatenate([p.margin for p in golden.prompts]).astype(np.float64)
    histogram = np.bincount(margin_bin(margins), minlength=len(MARGIN_EDGES))
    return {
        "schema": SUMMARY_SCHEMA,
        "digest": golden.digest,
        "checkpoint_digest": golden.document.checkpoint_digest,
        "positions": golden.positions,
        "prompts": [
            {"name": p.name, "prompt_ids": len(p.prompt_ids), "generated": len(p.generated), "text": p.text}
            for p in golden.prompts
        ],
        "margins": {
            "edges": list(MARGIN_EDGES),
            "positions": histogram.tolist(),
            "share above 2 nats": float((margins > 2).mean()),
        },
        "sensitivity": _sensitivity(golden),
        "history": [entry.model_dump(mode="json") for entry in golden.document.history],
        "classes": {
            name: {
                "arms": list(c.arms),
                "flips_near": sum(c.bins.near),
                "flips_router": sum(c.bins.router),
                "largest_regret": max(c.bands.floor_regret, c.bands.floor_router_regret),
                "contexts_below_largest_regret": distinct_contexts_below(
                    golden, max(c.bands.floor_regret, c.bands.floor_router_regret)
                ),
                "bands": c.bands.model_dump(mode="json"),
                "kl_limits": list(c.limits.kl),
                "slope_limit": c.limits.sketch_slope,
                "worst_held_out_ratio": max(h.worst_ratio for h in c.held_out),
            }
            for name, c in golden.document.classes.items()
        },
    }


def _sensitivity(golden: Golden) -> dict[str, Any]:
    """Measured anew: what the stored chains expose by this version's faults."""
    chains = {p.name: (p.prompt_ids, p.generated) for p in golden.prompts}
    worst = weakest(exposures(chains))
    measured = measure(chains)
    weakest_fault = {"fault": worst.fault, "changed": worst.changed, "compared": worst.compared}
    return {**measured.model_dump(mode="json"), "text": str(measured), "weakest": weakest_fault}


def distinct_contexts_below(golden: Golden, margin: float) -> int:
    """How many distinct contexts (the ids up to a position) have a margin below `margin` nats."""
    contexts = {
        p.fed[: position + 1]
        for p in golden.prompts
        for position in np.flatnonzero(p.margin.astype(np.float64) < margin).tolist()
    }
    return len(contexts)


def print_golden(console: Console, summary: dict[str, Any]) -> None:
    """Print a summary made by `summarize`."""
    console.print(Text(f"golden {summary['digest']}"), soft_wrap=True)
    console.print(Text(f"checkpoint {summary['checkpoint_digest']}"), soft_wrap=True)
    prompts = Table("prompt", "prompt ids", "generated", "text")
    for p in summary["prompts"]:
        prompts.add_row(Text(p["name"]), str(p["prompt_ids"]), str(p["generated"]), Text((p["text"] or "(ids)")[:60]))
    console.print(prompts)
    margins = Table("margin from (nats)", "positions", "share")
    for edge, count in zip(summary["margins"]["edges"], summary["margins"]["positions"], strict=True):
        margins.add_row(f"{edge:g}", str(count), f"{count / summary['positions']:.1%}")
    console.print(margins)
    console.print(
        Text(f"{summary['positions']} positions, {summary['margins']['share above 2 nats']:.1%} with a margin above 2 nats")
    )
    sensitivity, worst = summary["sensitivity"], summary["sensitivity"]["weakest"]
    seen = f"{worst['fault']}, {worst['changed']} of {worst['compared']} ids"
    console.print(Text(f"sensitivity {sensitivity['text']}; weakest: {seen}"), soft_wrap=True)
    floors = Table(
        "class", "arms", "flips near", "flips router", "largest regret", "contexts below it", "band", "router band", "held-out"
    )
    for name, c in summary["classes"].items():
        floors.add_row(
            name,
            str(len(c["arms"])),
            str(c["flips_near"]),
            str(c["flips_router"]),
            f"{c['largest_regret']:.4g}",
            str(c["contexts_below_largest_regret"]),
            f"{c['bands']['regret']:.4g}",
            f"gap {c['bands']['router_gap']:.4g}, regret {c['bands']['router_regret']:.4g}",
            f"{c['worst_held_out_ratio']:.2f}",
        )
    console.print(floors)
    for entry in summary["history"]:
        console.print(Text(f"replaced {entry['former']}: {entry['headline']}; reason: {entry['reason']}"), soft_wrap=True)
