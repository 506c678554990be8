"""Nothing from outside reaches a terminal as it is: no escape sequence, no second line, no reordered text."""

from __future__ import annotations

import ast
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

import oracle.report
from oracle.report.plain import Text, escaped

HOSTILE = "a\x1b[2J\x07\r\n\x9b31m\u202e\u2028[red]\ud800ü"
SHOWN = r"a\x1b[2J\x07\r\n\x9b31m\u202e\u2028[red]\ud800ü"


def printed(*texts: Text) -> str:
    out = StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system=None)
    table = Table()
    for text in texts:
        console.print(text, soft_wrap=True)
        table.add_row(text)
    console.print(table)
    return out.getvalue()


def test_control_and_format_characters_and_lone_surrogates_are_written_out() -> None:
    assert escaped(HOSTILE) == SHOWN


@given(st.text())
def test_what_is_escaped_is_one_printable_line_and_printable_text_stays_as_it_is(text: str) -> None:
    assert escaped(text).isprintable()
    assert escaped(escaped(text)) == escaped(text)
    if text.isprintable():
        assert escaped(text) == text


@pytest.mark.parametrize(
    "text",
    [Text(HOSTILE), Text.assemble((HOSTILE, "red"), HOSTILE), Text("x").append(HOSTILE, "red"), Text(HOSTILE, style="red")],
    ids=["whole", "assembled", "appended", "styled"],
)
def test_no_way_of_building_text_lets_it_through(text: Text) -> None:
    shown = printed(text)
    assert SHOWN in shown
    assert not set(shown) & {"\x1b", "\x07", "\r", "\x9b", "\u202e", "\u2028", "\ud800"}


def test_no_report_builds_text_in_another_way() -> None:
    """The doctor and its plans escape all they show, and then may break lines; all others build their text here."""
    folder = Path(str(oracle.report.__file__)).parent
    imports = {
        path.name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "rich.text"
    }
    assert imports == {"plain.py", "doctor.py", "plans.py"}
