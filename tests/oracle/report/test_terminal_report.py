"""The verdict table as text: the headline, what did not behave, and nothing from outside read as markup."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from oracle.golden.calibration import Bands
from oracle.judge.blame import FlipNumbers, explain
from oracle.judge.control_result import ControlResult
from oracle.judge.facts import SessionFacts
from oracle.judge.flip_record import FlipRecord
from oracle.judge.gate import Finding
from oracle.judge.ledger import LedgerEntry
from oracle.judge.verdict import GateResult, Report
from oracle.report.terminal import print_report
from oracle.subjects.protocol import LibraryRecord, SubjectIdentity
from oracle.subjects.run import Run

BOTH = (ControlResult("perfect", "pass", "pass"), ControlResult("planted", "fire", "fire"))
FLIPS = GateResult("flips@01234567", "flips", "pass", 1234, (), BOTH, {"flips": 0, "smallest band": 0.012345}, "much")
SLOTS = GateResult("slots@89abcdef", "slots", "not applicable", 0, (), (), {}, "more")
FACTS = SessionFacts((16, 17), (1500, 1625), {}, {"kind": "sim"}, (), {})
RUN = Run(SubjectIdentity("tt", "bf16", "exact", ("flips",), {"kind": "sim", "seed": "0"}), "sha256:abc", {})
REPORT = Report("pass", False, "sha256:abc", RUN, (FLIPS, SLOTS), (), "sha256:def", (), FACTS, True)
NO_BANDS = Bands(
    regret=0,
    router_gap=0,
    router_regret=0,
    floor_regret=0,
    floor_router_gap=0,
    floor_router_regret=0,
    near_multiple=1,
    multiple=2,
)


def flip(prompt: str = "p", position: int = 3, rank: int = 1, regret: float = 2.5, **chain: object) -> FlipRecord:
    numbers = FlipNumbers.model_validate(
        {
            "regret": regret,
            "rank": rank,
            "top": 9.0,
            "experts_shown": True,
            "sketches_shown": True,
            "set_layer": 2,
            "set_gap": 0.25,
            "set_before": 0.1,
            "set_before_limit": 0.2,
            "set_after": 0.2,
            "set_after_limit": 0.2,
            "sketch_layer": None,
            "sketch_distance": None,
            "sketch_limit": None,
            "bands": NO_BANDS,
            "logit_dtype": "float32",
            **chain,
        }
    )
    return FlipRecord(
        **dict(numbers),
        prompt=prompt,
        position=position,
        expected=5,
        got=7,
        golden_margin=regret,
        subject_margin=0.5,
        golden_margin_ulps=regret * 16,
        subject_margin_ulps=8,
        label=numbers.kind,
        explanation=explain(numbers),
    )


def shown(report: Report, color: bool = False) -> str:
    out = StringIO()
    print_report(Console(file=out, width=160, force_terminal=color, color_system="standard" if color else None), report)
    return out.getvalue()


def test_the_ledger_says_how_much_was_answered_and_why_a_gate_did_not_run() -> None:
    entries = (
        LedgerEntry("flips", True, True, 1234, "pass", BOTH),
        LedgerEntry("chain", True, True, 0, "incomplete", BOTH, "not compared: the run is not aligned with the golden"),
        LedgerEntry("slots", False, False, 0, "not applicable", (), "narrowed by --only"),
    )
    assert [line for line in shown(replace(REPORT, ledger=entries)).splitlines() if line.startswith("ledger")] == [
        "ledger: answered 16 of 17 prompts, 1,500 of 1,625 positions",
        "ledger: chain: not compared: the run is not aligned with the golden",
        "ledger: slots did not run: narrowed by --only",
    ]
    libraries = (LibraryRecord("a.so", 1, 1), LibraryRecord("b.so", 1, 1))
    faulted = replace(REPORT, facts=replace(FACTS, faults={"p": "hang: 1"}, libraries=libraries))
    assert "1,625 positions, 1 ended by a device fault, 2 native libraries" in shown(faulted)


def test_it_says_who_was_judged_on_what_and_by_which_golden() -> None:
    lines = shown(REPORT).splitlines()
    assert lines[0] == "subject tt, arm exact, class bf16, device: kind sim, seed 0"
    assert lines[1] == "golden sha256:abc"
    host = replace(RUN, identity=replace(RUN.identity, device={}))
    assert shown(replace(REPORT, run=host)).splitlines()[0].endswith("device: host only")


@pytest.mark.parametrize("verdict", ["pass", "fail", "incomplete"])
@pytest.mark.parametrize("partial", [False, True])
def test_the_last_line_is_the_verdict_and_says_partial_where_gates_were_left_out(verdict: str, partial: bool) -> None:
    report = replace(REPORT, verdict=verdict, partial=partial)  # type: ignore[arg-type]
    assert shown(report).splitlines()[-1] == ("PARTIAL " if partial else "") + verdict.upper()


def test_each_gate_has_a_line_with_its_verdict_count_and_controls() -> None:
    text = shown(REPORT)
    [line] = [line for line in text.splitlines() if "flips@01234567" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["flips@01234567", "pass", "1,234", "1 passed, 1 fired"]
    [line] = [line for line in text.splitlines() if "slots@89abcdef" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["slots@89abcdef", "not applicable", "", ""]
    assert "flips: flips 0, smallest band 0.0123" in text


def test_a_control_that_misbehaved_is_said_aloud() -> None:
    dead = replace(FLIPS, controls=(BOTH[0], ControlResult("planted", "fire", "pass")))
    assert "1 passed, 0 fired, 1 MISBEHAVED" in shown(replace(REPORT, gates=(dead,)))


def test_findings_are_printed_whole_on_one_line_each() -> None:
    finding = Finding("hard flips", "story[17]", "9 for 4, regret " + "3" * 200, "0.02 nats", 3, 1637)
    gone = Finding("required gate chain did not run", verdict="incomplete")
    text = shown(replace(REPORT, gates=(replace(FLIPS, findings=(finding, gone)),)))
    assert f"fail flips: {finding}" in text.splitlines()
    assert f"incomplete flips: {gone}" in text.splitlines()


def test_findings_past_the_first_few_are_counted_and_not_dropped_unsaid() -> None:
    many = tuple(Finding(f"violation {i}") for i in range(30))
    text = shown(replace(REPORT, gates=(replace(FLIPS, findings=many),)))
    printed = sum(f"violation {i} " in text for i in range(30))
    assert 0 < printed < 30
    assert f"and {30 - printed} more findings" in text


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("hostile", ["[red]x[/red]", "[/]", "[link=file:///etc]y[/link]", ":boom:", "\\[bold]"])
def test_markup_from_a_golden_or_a_run_is_printed_literally(hostile: str, color: bool) -> None:
    finding = Finding(f"a device fault ended the prompt: {hostile}", where=f"{hostile}[3]", worst=hostile, allowed=hostile)
    identity = SubjectIdentity(hostile, "bf16", hostile, (), {"kind": hostile})
    gate = replace(FLIPS, findings=(finding,), measured={"tokenizer": hostile})
    report = replace(REPORT, gates=(gate,), flips=(flip(prompt=hostile),), run=replace(RUN, identity=identity))
    text = shown(report, color=color)
    assert text.count(hostile) == 3 + 4 + 1 + 2  # identity, finding, measured, flip table and explanation


def test_flips_are_listed_with_the_largest_regret_first() -> None:
    flips = (flip("small", regret=1.0), flip("large", regret=4.0), flip("beyond", rank=-1, regret=2.0))
    lines = [line for line in shown(replace(REPORT, flips=flips)).splitlines() if "[3]" in line and "explained" not in line]
    assert [line.strip("│").split("[")[0].strip() for line in lines] == ["large", "beyond", "small"]
    assert "4.00000" in lines[0]
    assert "> 2.000" in lines[1]
    assert all("layer 2, gap 0.2500" in line and "hard" in line for line in lines)


def test_a_long_list_of_flips_is_cut_and_says_of_how_many() -> None:
    text = shown(replace(REPORT, flips=tuple(flip(position=i) for i in range(50))))
    assert "flips (20 of 50, largest regret first)" in text
    assert sum("p[" in line for line in text.splitlines()) == 2 * 20
    assert "flips: 50, signature sha256:def" in text.splitlines()


def test_a_flip_of_a_router_s_other_choice_and_none_are_told_apart() -> None:
    sets = dict.fromkeys(("set_layer", "set_before", "set_before_limit", "set_after", "set_after_limit"))
    near = flip(regret=1e-9, **sets, set_gap=0.0, sketch_layer=4, sketch_distance=0.5, sketch_limit=0.25)
    [line, _] = [line for line in shown(replace(REPORT, flips=(near,))).splitlines() if "p[3]" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")][5:] == ["no", "layer 4", "near-tie"]


def test_every_flip_listed_has_its_explanation_on_a_line_of_its_own() -> None:
    flips = (flip("small", regret=1.0), flip("large", regret=4.0, set_gap=0.0))
    lines = shown(replace(REPORT, flips=flips)).splitlines()
    assert lines[lines.index(f"large[3] {flips[1].explanation}") + 1] == f"small[3] {flips[0].explanation}"
    assert flips[0].explanation.startswith("not explained: expert set differs at layer 2 across a gap of 0.25 (band 0)")
    assert flips[1].explanation.startswith("explained by an exact router tie at layer 2")
