"""Warnings go to standard error, or where the embedding program has pointed structlog; never to standard output."""

from __future__ import annotations

import subprocess
import sys

WARN = "from antiphon.log import warn; warn('antiphon.pool', 'another model answered', served='m-2')"
CONFIGURED = "import structlog; structlog.configure(logger_factory=structlog.PrintLoggerFactory()); "


def said(code: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, done.stderr


def test_by_default_warnings_leave_standard_output_alone() -> None:
    out, err = said(WARN)
    assert out == ""
    assert "another model answered" in err
    assert "m-2" in err


def test_a_program_that_has_configured_structlog_gets_them_its_own_way() -> None:
    out, err = said(CONFIGURED + WARN)
    assert "another model answered" in out
    assert err == ""
