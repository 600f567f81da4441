"""A bar is drawn on a terminal and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from antiphon.cli._progress import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_it_is_and_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    with bar(4, 1) as update:
        update(3, lambda: "$1 [spent]")
    assert "3/4" in terminal.getvalue()
    assert "$1 [spent]" in terminal.getvalue()  # what a member is called is no markup


def test_elsewhere_nothing_is_drawn_and_nothing_is_worded(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(4, 1) as update:
        update(3, lambda: pytest.fail("nobody reads it"))
    assert capsys.readouterr() == ("", "")
