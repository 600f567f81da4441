"""What a provider's `Retry-After` header asks for, in seconds."""

from __future__ import annotations

import re
import time
from datetime import UTC
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_LONGEST_S = 10 * 365.25 * 24 * 3600.0  # keeps dates made from it within what datetime can hold


def retry_after_seconds(header: str | None, now: float | None = None) -> float | None:
    """Seconds to wait, at least 0; None where the header is absent or is neither seconds nor an HTTP date.

    Args:
        header: the header's value.
        now: Unix time that a date is measured from; default: this moment.
    """
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), _LONGEST_S)
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if when.tzinfo is None:  # RFC 9110 dates are in GMT, whatever their suffix
        when = when.replace(tzinfo=UTC)
    return min(max(0.0, when.timestamp() - (time.time() if now is None else now)), _LONGEST_S)
