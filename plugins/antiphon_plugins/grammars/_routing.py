"""From the name and the query that a policy wrote to a route, or to what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.names import fold
from antiphon.types import Invalid, Route

from ._replies import blank

# What stands for a name or a query in the examples of our prompts, the paper's, and prompts like them: letters and
# digits only, folded. A policy that repeats the example has asked nothing.
_NAMES = frozenset(
    {"llmname", "modelname", "membername", "nameofllm", "nameofmodel", "nameofmember", "candidatellm", "name", "member"}
)
_QUERIES = frozenset(
    {"yourquery", "yourquestion", "yoursubquestion", "yoursubquery", "query", "question", "subquestion", "subquery"}
)


def routed(name: str, query: str, resolve: Callable[[str], str | None]) -> Route | Invalid:
    """A route to the member that `resolve` knows by that name; both parts stripped."""
    name, query = name.strip(), query.strip()
    if not fold(name):
        return Invalid("empty_name", "no member is named")
    if blank(query):
        return Invalid("empty_query", "the query is empty")
    member = resolve(name)
    if _bare(query) in _QUERIES or (member is None and _bare(name) in _NAMES):
        return Invalid("placeholder", "that repeats the example of the instructions; write a member's name and a query")
    if member is None:
        return Invalid("unknown_member", f"nobody in the pool is called {name[:100]!r}")
    return Route(member, query)


def _bare(text: str) -> str:
    return "".join(char for char in fold(text[:100]) if char.isalnum())
