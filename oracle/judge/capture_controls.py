"""Controls of what is gathered of captured regions: merging may lose no fault, whatever honest regions stand beside it."""

from __future__ import annotations

from dataclasses import replace

from oracle.judge.capture import HONEST, SPOILED, region_findings
from oracle.judge.control_result import ControlResult
from oracle.subjects.captures import CapturedRegion, merged


def capture_controls() -> tuple[ControlResult, ...]:
    """Honest regions merged; and one with a fault among them."""
    beside = (HONEST, replace(HONEST, replays=7), HONEST)
    whole = merged(beside) == (replace(HONEST, replays=9, alike=3),)
    return (
        ControlResult("capture honest", "pass", _shown(*beside) if whole else "merged wrongly"),
        *(ControlResult(f"capture {name}", "fire", _shown(*beside, region, HONEST)) for name, region in SPOILED.items()),
    )


def _shown(*regions: CapturedRegion) -> str:
    return "fire" if region_findings(merged(regions)) else "pass"
