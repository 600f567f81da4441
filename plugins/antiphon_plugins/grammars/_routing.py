"""From the name and the query that a policy wrote to a route, or to what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable

from antiphon.names import fold
from antiphon.types import Invalid, Route

from ._replies import blank

# What stands for a name or a query in the examples of our prompts, the paper's, and prompts like them: letters and
# digits only, folded. A policy that repeats the example has asked nothing.
_NAME = r"(?:llm|model|member|candidatellm)name|nameof(?:the)?(?:llm|model|member)"
_NAMES = re.compile(rf"(?:{_NAME}|llm|model|name|member|candidatellm)\d*")
_QUERIES = re.compile(
    rf"(?:{_NAME})?(?:the|a|your|my|insert|write)*(?:specific|exact|search|sub)*(?:query|question)(?:goes|text|here)*\d*"
    rf"|{_NAME}"
)
_LONGEST_PLACEHOLDER = 100  # characters


def routed(name: str, query: str, resolve: Callable[[str], str | None]) -> Route | Invalid:
    """A route to the member that `resolve` knows by that name; both parts stripped."""
    name, query = name.strip(), query.strip()
    if not fold(name):
        return Invalid("empty_name", "no member is named")
    if blank(query.replace(".", "").replace("…", "")):
        return Invalid("empty_query", "the query is empty")
    member = resolve(name)
    if _stands_for(_QUERIES, query) or (member is None and _stands_for(_NAMES, name)):
        return Invalid("placeholder", "that repeats the example of the instructions; write a member's name and a query")
    if member is None:
        return Invalid("unknown_member", f"nobody in the pool is called {name[:100]!r}")
    return Route(member, query)


def _stands_for(placeholders: re.Pattern[str], text: str) -> bool:
    if len(text) > _LONGEST_PLACEHOLDER:
        return False
    return placeholders.fullmatch("".join(char for char in fold(text) if char.isalnum())) is not None
