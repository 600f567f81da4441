"""Recorded scores (question x member) that fitted policies learn from, and which of them a question may learn from."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon.answers import answer_span
from antiphon.contracts import MemberView, Metric
from antiphon.errors import ConfigError
from antiphon.names import fold

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Scored:
    """One question: folded LLM name -> mean score; mean output tokens where they were recorded; and, where asked for,
    the first reply that has a score."""

    text: str
    key: str
    scores: Mapping[str, float]
    tokens: Mapping[str, float]
    replies: Mapping[str, str] = field(default_factory=dict)


class Scores:
    """Recorded scores by question.

    Attributes:
        source: the files, for messages.
        rows: every question, in the order of the files.
    """

    def __init__(self, rows: Iterable[Scored], source: str) -> None:
        self.source = source
        self.rows = tuple(rows)
        self._by_key = {row.key: row for row in self.rows}
        self._known = {llm for row in self.rows for llm in row.scores}

    @classmethod
    def read(
        cls,
        path: Paths,
        metric: str | Metric | None = None,
        questions: Paths | None = None,
        *,
        replies: bool = False,
    ) -> Scores:
        """Read recorded replies (JSONL: `question`, `llm`, `score`, `response`, `golden_answers`, `output_tokens`).

        Several rows of one question and LLM (samples) count with their mean. Rows without a score are passed over.

        Args:
            path: a file, a glob, or a list of either.
            metric: judge the recorded responses by this metric (its name, or one itself), each reduced to an answer as
                `antiphon.answers.answer_span` says; None: the recorded `score`.
            questions: data sets (JSONL): only their questions are kept.
            replies: keep what the LLMs said, too.

        Raises:
            ConfigError: no such file, a row that does not hold (file and line are named), or nothing left.
        """
        score = _recorded if metric is None else _judge(metric)
        kept = None if questions is None else {_key(row, where) for row, where in _rows(_files(questions))}
        texts: dict[str, str] = {}
        scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        tokens: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        said: dict[str, dict[str, str]] = defaultdict(dict)
        files = _files(path)
        for row, where in _rows(files):
            key, llm, value = _key(row, where), _llm(row, where), score(row, where)
            if value is None or (kept is not None and key not in kept):
                continue
            texts.setdefault(key, row["question"])
            scores[key][llm].append(value)
            if isinstance(row.get("output_tokens"), int):
                tokens[key][llm].append(row["output_tokens"])
            if replies and isinstance(row.get("response"), str):
                said[key].setdefault(llm, row["response"])
        source = ", ".join(file.name for file in files)
        if not texts:
            raise ConfigError(
                f"{source}: no row has a score{'' if kept is None else ' for any of the questions named'}"
            )
        found = (Scored(texts[key], key, _means(scores[key]), _means(tokens[key]), said[key]) for key in texts)
        return cls(found, source)

    def of(self, question: str) -> Scored | None:
        """What was recorded for this very question."""
        return self._by_key.get(question_key(question))

    def members(self, pool: Sequence[MemberView]) -> dict[str, str]:
        """Name of a member -> the LLM of the files that it is; members without scores are left out.

        Raises:
            ConfigError: none of them has scores.
        """
        found: dict[str, str] = {}
        for view in pool:
            models = (endpoint.model for endpoint in view.descriptor.endpoints)
            spellings = (fold(text) for text in (view.name, *view.descriptor.aliases, *models))
            llm = next((spelling for spelling in spellings if spelling in self._known), None)
            if llm is not None:
                found[view.name] = llm
        if not found:
            shown = ", ".join(sorted(self._known)[:8])
            raise ConfigError(f"{self.source} has no scores of any member of this pool; it has those of {shown}")
        return found


def read_questions(paths: Paths) -> dict[str, str]:
    """Key -> question, of data sets (JSONL with `question`).

    Raises:
        ConfigError: no such file, or a row that does not hold (file and line are named).
    """
    return {_key(row, where): row["question"] for row, where in _rows(_files(paths))}


def question_key(question: str) -> str:
    """What spellings of one question share: its words, NFKC and without case."""
    return " ".join(words(question))


def words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def fold_of(key: str, folds: int) -> int:
    """Which of `folds` parts a question belongs to: by its SHA-256, so the same on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % folds


def training(rows: Sequence[Scored], key: str, folds: int) -> list[Scored]:
    """What the question `key` may learn from: neither itself nor, with folds, any other of its own fold."""
    if not folds:
        return [row for row in rows if row.key != key]
    own = fold_of(key, folds)
    return [row for row in rows if fold_of(row.key, folds) != own]


def checked_folds(folds: int, policy: str) -> int:
    """The setting, if it is one.

    Raises:
        ConfigError: it is neither 0 nor at least 2.
    """
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 0 or folds == 1:
        raise ConfigError(
            f"policy {policy}: folds is 0 (leave out the question alone) or a whole number from 2, got {folds!r}"
        )
    return folds


def mean_scores(rows: Iterable[Scored], members: Mapping[str, str]) -> dict[str, float]:
    """Member -> its mean score over the rows that score it."""
    sums: dict[str, list[float]] = {name: [] for name in members}
    for row in rows:
        for name, llm in members.items():
            if llm in row.scores:
                sums[name].append(row.scores[llm])
    return {name: sum(values) / len(values) for name, values in sums.items() if values}


def best(scores: Mapping[str, float], pool: Sequence[MemberView], cost: Mapping[str, float] | None = None) -> str:
    """The member of the highest score; a tie goes to the cheaper (by `cost`, else by the quoted output price), then to
    the first in the pool."""
    prices = {view.name: 0.0 if view.quote is None else view.quote.output for view in pool}
    costs = prices if cost is None else cost
    order = [view.name for view in pool]
    return min(scores, key=lambda name: (-round(scores[name], 12), costs[name], order.index(name)))


# ---- reading ------------------------------------------------------------------------------------------------------


def _files(given: Paths) -> list[Path]:
    patterns = [given] if isinstance(given, str | os.PathLike) else list(given)
    files: list[Path] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        found = [path] if path.is_file() else [Path(match) for match in sorted(glob.glob(str(path)))]
        if not found:
            raise ConfigError(f"{path}: no such file; scores and questions name JSONL files")
        files += found
    if not files:
        raise ConfigError("the list of score files is empty; name one")
    return files


def _rows(files: Iterable[Path]) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows, and where each stands."""
    for file in files:
        try:
            with file.open(encoding="utf-8-sig") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _row(line, f"{file}, line {number}"), f"{file}, line {number}"
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from None


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a row is a JSON object")
    return row


def _key(row: Mapping[str, Any], where: str) -> str:
    question = row.get("question")
    if not isinstance(question, str) or not question_key(question):
        raise ConfigError(f"{where}: question is {question!r}; give a non-empty string")
    return question_key(question)


def _llm(row: Mapping[str, Any], where: str) -> str:
    llm = row.get("llm")
    if not isinstance(llm, str) or not llm.strip():
        raise ConfigError(f"{where}: llm is {llm!r}; give the name of who answered")
    return fold(llm)


def _recorded(row: Mapping[str, Any], where: str) -> float | None:
    score = row.get("score")
    if score is not None and not isinstance(score, int | float):
        raise ConfigError(f"{where}: score is {score!r}; give a number, or null where there is none")
    return None if score is None else float(score)


def _judge(metric: str | Metric) -> Callable[[Mapping[str, Any], str], float | None]:
    if isinstance(metric, str):
        from antiphon.registry import default_registry

        metric = default_registry().metric(metric)
    judge: Metric = metric

    def score(row: Mapping[str, Any], where: str) -> float | None:
        response, golden = row.get("response"), row.get("golden_answers")
        if response is None:
            return None
        if not isinstance(response, str) or not isinstance(golden, list) or not golden:
            raise ConfigError(f"{where}: metric {judge.name!r} needs a text `response` and a list of `golden_answers`")
        answer = answer_span(response)
        return 0.0 if answer is None else judge(answer, [str(one) for one in golden])

    return score


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {llm: sum(some) / len(some) for llm, some in values.items()}
