"""The command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from oracle import cli


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run it: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kolibri-oracle", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run
