"""The chamber's members of plain code: each knows a short form of its own, and says that it does not know all else."""

from __future__ import annotations

import re

from antiphon_pools.chamber.facts import UNKNOWN
from antiphon_pools.chamber.questions import SUMS, WORDS

_LETTERS = re.compile(r"\s*(?:the\s+)?(first\s+|last\s+|)letters?\s+(?:of|in)\s+[\"']?(.*?)[\"']?[\s.?]*", re.I)
_SUM = re.compile(r"\s*(-?\d+)\s*([-*×]|times|minus)\s*(-?\d+)[\s.?=]*", re.I)
_OPERATIONS = {"-": "difference", "minus": "difference", "*": "product", "×": "product", "times": "product"}


def letters(text: str) -> str:
    """`letters of WORD`: how many; `first letter of WORD`, `last letter of WORD`: which."""
    match = _LETTERS.fullmatch(text)
    if match is None or not any(map(str.isalpha, match[2])):
        return UNKNOWN
    return WORDS[match[1].strip().lower() or "letters"](match[2])


def calculator(text: str) -> str:
    """`A * B` and `A - B` of whole numbers; it cannot add."""
    match = _SUM.fullmatch(text)
    return UNKNOWN if match is None else str(SUMS[_OPERATIONS[match[2].lower()]](int(match[1]), int(match[3])))
