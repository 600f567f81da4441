"""Where warnings go: to structlog as the embedding program has configured it, else to standard error."""

from __future__ import annotations

import sys


def warn(source: str, event: str, **fields: object) -> None:
    """Log a warning of a part of Antiphon. Fields must hold no secrets."""
    import structlog  # here, since it takes a while to import and most runs warn of nothing

    configured = structlog.is_configured()
    # structlog's own default is standard output, where a program's results go.
    log = structlog.get_logger(source) if configured else structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
    log.warning(event, **fields)
