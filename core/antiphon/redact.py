"""Keeps keys out of what is logged, recorded or shown: errors of providers like to repeat what they were sent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from antiphon.types import clean

if TYPE_CHECKING:
    from antiphon.descriptor import Endpoint

MARK = "[redacted]"
_LONGEST_ERROR = 500  # characters
_SHORTEST_SECRET = 6  # characters; replacing shorter values would garble the text
_SECRET_NAME = re.compile(r"(key|token|secret|password|passwd|authorization|credential)s?$", re.IGNORECASE)
_SHAPES = re.compile(
    r"(?<=bearer )[^\s\"',;]{6,}"  # an Authorization header
    r"|(?<![A-Za-z0-9])(?:sk|pk|nvapi|gsk|hf|xai|tgp|ghp|AIza)[-_A-Za-z0-9]{16,}"  # keys by their providers' prefixes
    r"|(?<=://)[^\s/@:]+:[^\s/@]+(?=@)",  # user:password of a URL
    re.IGNORECASE,
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """An error text that may be kept: without secrets, encodable, and of at most 500 characters.

    Taken out are the given secrets, the values of environment variables whose names end like a secret's (`…_API_KEY`,
    `…_TOKEN`), and what has the shape of a key.
    """
    known = {*secrets, *(value for name, value in os.environ.items() if _SECRET_NAME.search(name))}
    for secret in sorted((s for s in known if len(s) >= _SHORTEST_SECRET), key=len, reverse=True):
        text = text.replace(secret, MARK).replace(quote(secret, safe=""), MARK)
    text = clean(_SHAPES.sub(MARK, text))
    return text if len(text) <= _LONGEST_ERROR else text[: _LONGEST_ERROR - 1] + "…"


def secrets_of(endpoint: Endpoint) -> frozenset[str]:
    """What must not be repeated of an endpoint: its key, and what options with a secret's name hold."""
    key = os.environ.get(endpoint.api_key_env or "", "").strip()
    return frozenset({key, *_secret_values(endpoint.options)} - {""})


def _secret_values(options: Mapping[str, Any]) -> Iterable[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secret_values(value)
        elif isinstance(value, str) and _SECRET_NAME.search(name):
            yield value
