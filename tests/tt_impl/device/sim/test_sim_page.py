"""What `docs/device.md` shows does run, and what it lists is what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tt_impl.device.sim import FaultPlan, schedule_named

PAGE = (Path(__file__).parents[4] / "docs" / "device.md").read_text(encoding="utf-8")


def test_the_plan_on_the_page_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    shown: dict[str, Any] = {}
    exec(example, shown)
    assert shown["device"].faults_struck == (0, 0, 0)


def test_the_file_of_faults_on_the_page_is_one() -> None:
    (example,) = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    assert FaultPlan.from_json(example).to_json() == example


def test_the_schedules_on_the_page_are_those_that_exist() -> None:
    names = re.findall(r"^\| `([a-z]+(?::SEED)?)`[^|]*\| (?:when|at|some)", PAGE, re.MULTILINE)
    assert sorted(names) == ["eager", "lazy", "random:SEED", "reuse"]
    for name in (name.replace("SEED", "3") for name in names):
        assert schedule_named(name).name == name
