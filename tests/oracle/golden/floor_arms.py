"""Whole comparisons of the tiny golden, cut into its prompts as `calibrate` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from oracle.golden.compare import Comparison

PROMPTS = {"first": slice(0, 18), "second": slice(18, 32)}
PROBES = {"first": slice(0, 2), "second": slice(2, 3)}


def by_prompt(whole: Comparison) -> dict[str, Comparison]:
    """Each prompt's rows: of its positions, or of its probes."""
    rows = {
        name: {f.name: getattr(whole, f.name)[PROBES[name] if f.name == "router_logit_error" else span] for f in fields(whole)}
        for name, span in PROMPTS.items()
    }
    return {name: Comparison(**arrays) for name, arrays in rows.items()}


def measured(arms: Mapping[str, Comparison]) -> dict[str, dict[str, Comparison]]:
    """Every arm by prompt."""
    return {name: by_prompt(arm) for name, arm in arms.items()}
