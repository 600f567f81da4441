"""The `bm25` adapter: a retriever over passages in a JSONL file, as a member of the pool."""

from __future__ import annotations

import asyncio
import json
import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from antiphon.contracts import CallContext, Reply, Request
from antiphon.errors import ConfigError
from antiphon.money import CHARS_PER_TOKEN
from antiphon.types import Usage, clean
from antiphon_pools.adapters._options import (
    OncePerKey,
    Options,
    expand_path,
    in_thread,
    last_user_text,
    read_options,
    within,
)

if TYPE_CHECKING:
    from antiphon.descriptor import Descriptor, Endpoint

_WORD = re.compile(r"\w+")
_indexes = OncePerKey()


class BM25Options(Options):
    """Attributes:
    path: a JSONL file, one passage a line; `${NAME}` and `~` are expanded.
    k: passages in a reply.
    id_field, title_field: may be absent from a line.
    text_field: names of the field that holds the text; the first that a line has is taken.
    k1, b: of the formula.
    passage_chars: characters shown of one passage.
    """

    path: str
    k: Annotated[int, Field(ge=1, le=100)] = 3
    id_field: str = "id"
    title_field: str = "title"
    text_field: tuple[str, ...] = ("text", "contents")
    k1: Annotated[float, Field(ge=0)] = 1.2
    b: Annotated[float, Field(ge=0, le=1)] = 0.75
    passage_chars: Annotated[int, Field(ge=1)] = 1500


@dataclass(frozen=True, slots=True)
class Passage:
    id: str
    title: str
    text: str


class Index:
    """BM25 over passages, as in Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond"
    (2009), eq. 3.15, with the Robertson/Spärck Jones weight for no relevance information, plus 1 inside its logarithm,
    which keeps the weight of a word that most passages hold above 0:

        sum over query words w of  ln(1 + (N - n_w + 0.5) / (n_w + 0.5)) * tf / (tf + k1 * (1 - b + b * len / mean len))

    Title and text count alike. Words are runs of letters and digits after NFKC and case folding; no stemming.
    """

    def __init__(self, passages: Iterable[Passage], *, k1: float = 1.2, b: float = 0.75) -> None:
        self.passages: list[Passage] = []
        self._holders: dict[str, array[int]] = {}  # word -> numbers of the passages that hold it
        self._weights: dict[str, array[float]] = {}  # word -> what it adds to the score of each of them
        lengths = array("I")
        for number, passage in enumerate(passages):
            words = _words(f"{passage.title} {passage.text}")
            self.passages.append(passage)
            lengths.append(len(words))
            for word, count in Counter(words).items():
                if word not in self._holders:
                    self._holders[word], self._weights[word] = array("I"), array("f")
                self._holders[word].append(number)
                self._weights[word].append(count)
        mean = sum(lengths) / len(lengths) if lengths else 0.0
        norms = [k1 * (1 - b + b * length / mean) if mean else k1 for length in lengths]
        for word, holders in self._holders.items():
            rarity = math.log(1 + (len(lengths) - len(holders) + 0.5) / (len(holders) + 0.5))
            weights = self._weights[word]
            for place, number in enumerate(holders):
                weights[place] = rarity * weights[place] / (weights[place] + norms[number])

    def search(self, query: str, k: int) -> list[tuple[float, Passage]]:
        """The `k` best passages with their scores, best first; a tie goes to the earlier passage."""
        scores: dict[int, float] = {}
        for word, times in Counter(_words(query)).items():
            if word in self._holders:
                for number, weight in zip(self._holders[word], self._weights[word], strict=True):
                    scores[number] = scores.get(number, 0.0) + times * weight
        best = nlargest(k, scores.items(), key=lambda item: (item[1], -item[0]))
        return [(score, self.passages[number]) for number, score in best]


class BM25Adapter:
    """Answers the last user message with the passages that match it best, numbered. Members of a file share its index.

    Raises:
        ConfigError: no such file, or an unknown option; from the first call: a line that is no passage.
    """

    def __init__(self, *, endpoint: Endpoint, descriptor: Descriptor) -> None:
        self._options = read_options(BM25Options, endpoint, descriptor)
        where = f"member {descriptor.name!r}"
        self._path = expand_path(self._options.path, where)
        if not self._path.is_file():
            raise ConfigError(f"{where}: {self._path}: no such file; path names a JSONL file, one passage a line")

    async def complete(self, request: Request, context: CallContext) -> Reply:
        with within(request.timeout_s):
            async with asyncio.timeout(request.timeout_s):
                text = await in_thread(self._answer, last_user_text(request))
        longest = request.max_tokens * CHARS_PER_TOKEN
        if len(text) <= longest:
            return Reply(text, Usage())
        return Reply(text[:longest].rstrip() + " …", Usage(), finish="length")

    async def aclose(self) -> None:
        """The index stays for the next pool of this process."""

    def _answer(self, query: str) -> str:
        options = self._options
        key = (self._path.resolve(), options.id_field, options.title_field, options.text_field, options.k1, options.b)
        index = _indexes.get(key, lambda: Index(_read(self._path, options), k1=options.k1, b=options.b))
        found = index.search(query, options.k)
        shown = (_shown(place, passage, options) for place, (_, passage) in enumerate(found, 1))
        return "\n\n".join(shown) or "No passage matches."


def _shown(place: int, passage: Passage, options: BM25Options) -> str:
    text = passage.text
    if len(text) > options.passage_chars:
        text = text[: options.passage_chars].rstrip() + " …"
    return f"[{place}] {passage.title}\n{text}" if passage.title else f"[{place}] {text}"


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _read(path: Path, options: BM25Options) -> Iterator[Passage]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _passage(line, f"{path}, line {number}", options)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _passage(line: str, where: str, options: BM25Options) -> Passage:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a passage is a JSON object")
    field = next((name for name in options.text_field if name in row), None)
    if field is None or not isinstance(row[field], str):
        raise ConfigError(f"{where}: no text in {' or '.join(options.text_field)}; name its field in text_field")
    title = row.get(options.title_field)
    return Passage(
        str(row.get(options.id_field, "")), clean(title) if isinstance(title, str) else "", clean(row[field])
    )
