"""How replies, failures and invalid actions are put to the policy, so that no reply can speak a grammar's language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

from antiphon.names import fold
from antiphon.types import Call, Invalid, Outcome

# An opening bracket, what follows it up to the next bracket, and that one if it closes.
_BRACKETED = re.compile(r"[<＜﹤]([^<＜﹤>＞﹥]*)([>＞﹥]?)")

_WHY: dict[Outcome, str] = {
    "empty_response": "it gave an empty reply",
    "rate_limited": "it is receiving too many requests just now",
    "auth": "it refused our access",
    "not_found": "its model is not available any more",
    "bad_request": "it refused the request",
    "unavailable": "it is out of service just now",
    "connection": "it could not be reached",
    "bad_response": "its reply could not be read",
    "timeout": "it did not reply in time",
    "not_recorded": "there is no recorded reply to this question",
    "over_budget": "asking it could cost more than is left",
    "cancelled": "the call was cancelled",
    "error": "something went wrong on the way",
}


def told(item: Call | Invalid, members: Sequence[str], tags: tuple[str, ...], cut: Callable[[str], str]) -> str:
    """What the policy reads of a call or an invalid action; a reply is harmless and at most as long as `cut` allows."""
    if isinstance(item, Invalid):
        said = item.detail.rstrip(".")
        return harmless(f"That could not be carried out: {said}. Members you can ask: {', '.join(members)}.", tags)
    if item.ok and not blank(item.reply or ""):
        return cut(harmless(item.reply or "", tags)) + (
            "\n[The reply stops here: it reached the member's length limit.]" if item.truncated else ""
        )
    why = _WHY["empty_response"] if item.ok else _WHY.get(item.outcome, _WHY["error"])
    others = ", ".join(name for name in members if name != item.member)
    hint = f" You can ask another member: {others}." if others else ""
    return f"No reply from {item.member}: {why}.{hint}"


def harmless(text: str, tags: tuple[str, ...]) -> str:
    """The text with the angle brackets of anything like one of our tags turned into ‹ and ›; the rest as it is.

    Like a tag is: an opening bracket (full-width and small forms too), then the letters of a tag's name in any case or
    compatibility form, whatever else but letters and brackets stands before and between them: spaces, slashes,
    punctuation, invisible and combining characters. It need not be closed, and may go on (`<answer id=1`).
    """
    name = _names(tags)

    def swapped(match: re.Match[str]) -> str:
        return f"‹{match[1]}{'›' if match[2] else ''}" if name.match(match[1]) else match[0]

    return _BRACKETED.sub(swapped, text)


def blank(text: str) -> bool:
    """Nothing in it that a reader sees."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") or not fold(char) for char in text)


@cache
def _names(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Matches what follows an opening bracket, where it is like one of the tags. No part overlaps the next: linear."""
    forms = _letter_forms()
    between = r"[\W_\u115f\u1160\u3164\uffa0]*"  # the last four are letters that show nothing
    names = (between.join(f"[{forms[letter]}]" for letter in tag if letter.isalpha()) for tag in tags)
    return re.compile(f"{between}(?:{'|'.join(names)})")


@cache
def _letter_forms() -> dict[str, str]:
    """ASCII letter -> every letter that folds to it: case, full-width, mathematical, superscript."""
    forms: dict[str, str] = {}
    for start, stop in ((0x41, 0x250), (0x1D2C, 0x1E00), (0x2070, 0x2190), (0xFF21, 0xFF5B), (0x1D400, 0x1D800)):
        for char in map(chr, range(start, stop)):
            folded = unicodedata.normalize("NFKC", char).casefold()
            if len(folded) == 1 and "a" <= folded <= "z" and char.isalnum():
                forms[folded] = forms.get(folded, "") + char
    return forms
