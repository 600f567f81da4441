"""Judges an answer against the golden ones: SQuAD's exact match and token F1, and a stricter, Unicode-aware match."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

# ---- SQuAD --------------------------------------------------------------------------------------------------------

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_VERDICTS = frozenset({"yes", "no", "noanswer"})


def squad(text: str) -> str:
    """SQuAD's normal form: lower case, no ASCII punctuation, no word a/an/the, single spaces."""
    return " ".join(_ARTICLE.sub(" ", str(text).lower().translate(_PUNCTUATION)).split())


class ExactMatch:
    """1 where the prediction equals one of the golden answers in SQuAD's normal form."""

    name = "em"

    def __call__(self, prediction: str, golden: Sequence[str]) -> float:
        said = squad(prediction)
        return float(any(said == squad(answer) for answer in golden))


class F1:
    """Token F1 in SQuAD's normal form, best over the golden answers; 0 where a yes/no verdict differs."""

    name = "f1"

    def __call__(self, prediction: str, golden: Sequence[str]) -> float:
        said = squad(prediction)
        return max((_f1(said, squad(answer)) for answer in golden), default=0.0)


def _f1(said: str, right: str) -> float:
    if said != right and not _VERDICTS.isdisjoint((said, right)):
        return 0.0
    ours, theirs = said.split(), right.split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


# ---- strict -------------------------------------------------------------------------------------------------------

_CHARACTERS = {
    **dict.fromkeys("\u00ad\u200b\u200e\u200f\u2060\ufe0e\ufe0f\ufeff\u202a\u202b\u202c\u202d\u202e", ""),  # invisible
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"),
    **dict.fromkeys("‘’‚‛′´`＇", "'"),
    **dict.fromkeys("“”„‟«»″＂「」『』", '"'),
    **dict.fromkeys("™®©", ""),  # legal marks name nothing else
    "♯": "#",
    "⁄": "/",
}
# Compatibility forms that only look different. <super> and <fraction> mean something and are spelled out instead;
# <circle> and the letter-like symbols of <font> (ℝ, ℂ) are signs of their own.
_LOOKS = frozenset({"<compat>", "<wide>", "<narrow>", "<small>", "<square>", "<noBreak>", "<sub>", "<vertical>"})
_LOOKS |= {"<initial>", "<medial>", "<final>", "<isolated>"}
_WIDE_GROUPS = re.compile(r"(?<![\w.,])([1-9]\d{0,2}(?:[\u00a0\u2009\u202f]\d{3})+)(?!\d)")
_GROUPS = re.compile(r"(?<![\w.,])([1-9]\d{0,2}(?:,\d{3})+)(?![\d,])")
_DOUBLE_QUOTED = re.compile(r'(?<!\w)"([^"]*)"(?!\w)')
_SINGLE_QUOTED = re.compile(r"(?<!\w)'([^']*)'(?!\w)")
_STRAY_QUOTE = re.compile(r'(?<!\d)"')  # after a digit it is inches or seconds
_INITIALS = re.compile(r"(?<![\w.])(?:[^\W\d_]\.){2,}")
_PAUSES = re.compile(r"(?<![.,;:])[.,;:]++(?=\s|$)")
_CRIES = re.compile(r"(?<=[^\W\d_]{2})[!?]++(?=\s|$)")  # after a digit or a lone letter it is a factorial
_BRACKETED = re.compile(r"(?<!\S)\(([^()]*[^\W\d_][^()]*)\)(?!\S)")  # around a bare number it can be a minus
_BARE_DECIMAL = re.compile(r"(?<![\w.])\.(?=\d)")
_SPACED_SIGN = re.compile(r"(?<!\S)([-+±$€£¥₹])\s+(?=\d)")
_SPACED_UNIT = re.compile(r"(?<=\d)\s+(?=[%‰°])")
_THE = re.compile(r"(?<!\S)(?:the|an)\s+(?=\S)")
_LEADING_A = re.compile(r"^a\s+(?=\S)")


def strict(text: str) -> str:
    """A normal form that keeps what changes the meaning.

    Folded: case, canonical and look-alike Unicode forms, dashes, quotation marks, pauses and a trailing full stop,
    dots of initials, brackets around words, grouped thousands, articles before a word. Kept: signs, decimal points,
    currency, per cent, `#`, `+`, accents, superscripts (`²` is `^2`), fractions (`½` is `1/2`), a final `A`.
    """
    text = _WIDE_GROUPS.sub(lambda match: re.sub(r"\D", "", match[1]), str(text))
    text = unicodedata.normalize("NFC", _fold(unicodedata.normalize("NFC", text))).lower()
    text = _SPACED_SIGN.sub(r"\1", _GROUPS.sub(lambda match: match[1].replace(",", ""), text))
    text = _STRAY_QUOTE.sub("", _SINGLE_QUOTED.sub(r"\1", _DOUBLE_QUOTED.sub(r"\1", text)))
    text = _INITIALS.sub(lambda match: match[0].replace(".", ""), text)
    text = _BRACKETED.sub(r"\1", _CRIES.sub("", _PAUSES.sub("", _CRIES.sub("", text))))
    text = _SPACED_UNIT.sub("", _BARE_DECIMAL.sub("0.", text))
    text = " ".join(text.split())
    return _LEADING_A.sub("", _THE.sub("", text))


def _fold(text: str) -> str:
    """Character by character: what only looks different becomes the plain form."""
    out: list[str] = []
    raised = False
    for char in text:
        mapped = _CHARACTERS.get(char)
        if mapped is not None:
            out.append(mapped)
            continue
        form = unicodedata.decomposition(char).split(" ")[0]
        up = form == "<super>" and unicodedata.normalize("NFKC", char) in "0123456789+\u2212-="
        if up and not raised:
            out.append("^")
        raised = up
        out.append(_plain(char, form, up, out))
    return "".join(out)


def _plain(char: str, form: str, up: bool, before: list[str]) -> str:
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if up:
        return unicodedata.normalize("NFKC", char).replace("\u2212", "-")
    if form == "<fraction>":
        gap = " " if before and before[-1][-1:].isdecimal() else ""
        return gap + unicodedata.normalize("NFKC", char).replace("\u2044", "/")
    if form in _LOOKS or (form == "<font>" and "\U0001d400" <= char <= "\U0001d7ff"):
        return "".join(_CHARACTERS.get(each, each) for each in unicodedata.normalize("NFKC", char))
    return char


class StrictExactMatch:
    """1 where the prediction equals a golden answer in the form of `strict`; an empty prediction is never right."""

    name = "strict_em"

    def __call__(self, prediction: str, golden: Sequence[str]) -> float:
        said = strict(prediction)
        return float(bool(said) and any(said == strict(answer) for answer in golden))
