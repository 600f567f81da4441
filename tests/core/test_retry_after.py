"""`Retry-After` is read as seconds or as an HTTP date, and nonsense is nothing; nor is a retry policy made of it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.pool import RetryPolicy
from antiphon.retry_after import retry_after_seconds

NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("2", 2.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun Nov  6 08:50:37 1994", 60.0),
        ("Sun, 06 Nov 1994 09:50:37 +0100", 60.0),
        ("sun, 06 nov 1994 08:50:37 gmt", 60.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),  # already past
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("+5", None),
        ("1_000", None),
        ("1e3", None),
        ("inf", None),
        ("nan", None),
        ("5 seconds", None),
        ("٣", None),
        ("Wed, 99 Foo 2037 07:28:00 GMT", None),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
    ],
)
def test_a_header_says_how_long_to_wait(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, NOW) == seconds


@given(st.text() | st.from_regex(r"[0-9]{1,400}(\.[0-9]+)?", fullmatch=True))
def test_whatever_it_holds_the_wait_is_none_or_finite(header: str) -> None:
    seconds = retry_after_seconds(header)
    assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"attempt_timeout_s": 0}, {"call_timeout_s": float("inf")}, {"backoff_s": -1}],
)
def test_a_retry_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RetryPolicy(**wrong)
