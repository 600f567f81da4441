"""Questions with golden answers: the seven QA sets of the Router-R1 paper, any JSONL or parquet file, and generated
arithmetic word problems."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError, MissingExtra, did_you_mean
from antiphon.types import Task

PUBLIC_REPOSITORY = "RUC-NLPIR/FlashRAG_datasets"
"""On Hugging Face: all seven sets in one schema (id, question, golden_answers), a configuration each."""

SPLITS = {
    "nq": "test",
    "triviaqa": "test",
    "popqa": "test",
    "hotpotqa": "dev",
    "2wikimultihopqa": "dev",
    "musique": "dev",
    "bamboogle": "test",
}
"""Set -> the split that the paper tests on: `dev` where the answers of `test` are not public."""

_GOLDEN = ("golden_answers", "reward_model.ground_truth.target", "reward_model.ground_truth")
_OWNERS = ("dataset", "data_source")


@dataclass(frozen=True, slots=True)
class Fields:
    """Where a row keeps what a task needs; a dot leads into a table."""

    question: str = "question"
    answers: tuple[str, ...] = _GOLDEN
    id: str = "id"


class QASet:
    """One of the seven sets: `QASet("nq")(…)` gives its tasks.

    Options:
        path: a JSONL or parquet file, in place of the public one. Rows are `question`, `golden_answers` (or Router-R1's
            `reward_model.ground_truth.target`), `id`; those that say (`dataset`, `data_source`) that they are of
            another set are left out, so that a mixed training file will do.
        split: of the public set; default: the one that the paper tests on. Needs the extra `evaluate`.
        sample: as many questions, drawn without replacement; all of them where there are no more.
        seed: of the draw. The paper's draw is sample=500, seed=42.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        split: str | None = None,
        sample: int | None = None,
        seed: int = 42,
    ) -> list[Task]:
        """Read the set.

        Raises:
            ConfigError: no such file, or a row that does not hold (file, line and id are named).
            MissingExtra: what reads the source is not installed.
        """
        if path is None:
            split = split or SPLITS[self.name]
            source = f"{PUBLIC_REPOSITORY} ({self.name}, {split})"
            rows: Iterable[Row] = enumerate(_public(self.name, split), 1)
        else:
            if split is not None:
                raise ConfigError(f"dataset {self.name!r}: split is of the public set; with a path, name another file")
            source, rows = str(path), _own(_rows(Path(path)), self.name, str(path))
        return drawn(tasks(rows, source, self.name, Fields()), sample, seed)


nq = QASet("nq")
triviaqa = QASet("triviaqa")
popqa = QASet("popqa")
hotpotqa = QASet("hotpotqa")
two_wiki_multihop_qa = QASet("2wikimultihopqa")
musique = QASet("musique")
bamboogle = QASet("bamboogle")


def jsonl(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    question: str = "question",
    answers: str | None = None,
    id: str = "id",
    sample: int | None = None,
    seed: int = 42,
) -> list[Task]:
    """The tasks of any JSONL or parquet file.

    Args:
        name: what the set is called; default: the file's name without its ending.
        question, answers, id: the fields; a dot leads into a table. `answers` is `golden_answers` or Router-R1's
            `reward_model.ground_truth.target` unless it is named. Rows without an id are called by their place.
        sample, seed: as for the seven sets.

    Raises:
        ConfigError: no such file, or a row that does not hold (file, line and id are named).
        MissingExtra: parquet, and what reads it is not installed.
    """
    file = Path(path)
    fields = Fields(question, _GOLDEN if answers is None else (answers,), id)
    return drawn(tasks(_rows(file), str(path), name or file.stem, fields), sample, seed)


# ---- reading ------------------------------------------------------------------------------------------------------

Row = tuple[int, Mapping[str, Any]]


def tasks(rows: Iterable[Row], source: str, name: str, fields: Fields) -> list[Task]:
    """Checked tasks; ids are unique.

    Raises:
        ConfigError: source, line and id of the first row that does not hold.
    """
    made: list[Task] = []
    lines: dict[str, int] = {}
    for line, row in rows:
        given = _field(row, fields.id)
        if given is not None and (isinstance(given, bool) or not isinstance(given, str | int) or given == ""):
            raise ConfigError(f"{source}, line {line}: {fields.id} is {_said(given)}; give a string or a whole number")
        id = f"{name}_{line - 1}" if given is None else str(given)
        where = f"{source}, line {line} (id {id!r})"
        question = _field(row, fields.question)
        if not isinstance(question, str) or not question.strip():
            raise ConfigError(f"{where}: {fields.question} is {_said(question)}; give a non-empty string")
        if id in lines:
            raise ConfigError(f"{where}: line {lines[id]} has the same id; give each question its own")
        lines[id] = line
        made.append(Task(question, id, _golden(row, where, fields.answers), name))
    if not made:
        raise ConfigError(f"dataset {name!r}: {source} has no questions")
    return made


def drawn(found: Sequence[Task], sample: int | None, seed: int) -> list[Task]:
    """The paper's draw: `random.seed(seed); random.sample(range(n), sample)`, in the order drawn.

    Raises:
        ConfigError: `sample` is no positive whole number.
    """
    if sample is None:
        return list(found)
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1:
        raise ConfigError(f"sample is a whole number of at least 1, got {sample!r}; leave it out for all questions")
    if sample >= len(found):
        return list(found)
    return [found[index] for index in random.Random(seed).sample(range(len(found)), sample)]


def _golden(row: Mapping[str, Any], where: str, fields: Sequence[str]) -> tuple[str, ...]:
    """Golden answers as strings; numbers become what JSON writes for them."""
    field = next((name for name in fields if _field(row, name) is not None), fields[0])
    given = _field(row, field)
    if hasattr(given, "tolist"):  # an array of a parquet reader
        given = given.tolist()
    if given is None:
        near = did_you_mean(field, [str(key) for key in row]) if field not in row else ""
        raise ConfigError(f"{where}: {field} is null or missing; give a list of right answers{near}")
    if not isinstance(given, list | tuple):
        raise ConfigError(f"{where}: {field} is {_said(given)}; give a list of strings, with one answer a list of one")
    if not given:
        raise ConfigError(f"{where}: {field} is an empty list; give at least one right answer, or leave the row out")
    return tuple(_answer(answer, place, field, where) for place, answer in enumerate(given))


def _answer(answer: Any, place: int, field: str, where: str) -> str:
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return str(answer)
    if not isinstance(answer, str) or not answer.strip():
        raise ConfigError(f"{where}: {field}[{place}] is {_said(answer)}; an answer is a non-empty string or a number")
    return answer


def _field(row: Mapping[str, Any], name: str) -> Any:
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _said(value: Any) -> str:
    if value is None:
        return "null or missing"
    if isinstance(value, str) and not value.strip():
        return "an empty string"
    kinds = {str: "a string", bool: "true or false", dict: "a table", list: "a list"}
    return kinds.get(type(value), f"{value} ({type(value).__name__})")


def _own(rows: Iterable[Row], name: str, source: str) -> Iterator[Row]:
    """Rows of one set, and those that do not say of which they are.

    Raises:
        ConfigError: every row is of another set.
    """
    others: set[str] = set()
    kept = False
    for line, row in rows:
        owner = next((row[field] for field in _OWNERS if isinstance(row.get(field), str)), name)
        if owner == name:
            kept = True
            yield line, row
        else:
            others.add(owner)
    if others and not kept:
        raise ConfigError(
            f"{source} has no questions of {name!r}, only of {', '.join(sorted(others))}; "
            "name that set, or use the dataset 'jsonl'"
        )


def _rows(path: Path) -> Iterator[Row]:
    """Rows with their line numbers (of parquet: their places, from 1)."""
    path = path.expanduser()
    if not path.is_file():
        what = "is a directory; name a file in it" if path.is_dir() else "is not there; check the path"
        raise ConfigError(f"the dataset {str(path)!r} {what}")
    return _parquet(path) if path.suffix == ".parquet" else _json_lines(path)


def _json_lines(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row: Any = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ConfigError(f"{path}, line {number}: not JSON ({error})") from None
                if not isinstance(row, dict):
                    raise ConfigError(f"{path}, line {number}: a row is a JSON object, not {_said(row)}")
                yield number, row
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("reading parquet", "evaluate") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read as parquet: {error}") from None
    yield from enumerate(rows, 1)


def _public(name: str, split: str) -> Iterable[Mapping[str, Any]]:
    """The public set's rows, fetched by Hugging Face `datasets`, which keeps a copy on disk."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtra(f"fetching {name} (give a path to read a file instead)", "evaluate") from None
    try:
        rows: Any = load_dataset(PUBLIC_REPOSITORY, name, split=split)
    except Exception as error:  # a hub that is out of reach, an unknown split: what it raises depends on its version
        raise ConfigError(
            f"dataset {name!r}, split {split!r} of {PUBLIC_REPOSITORY} cannot be fetched: {error}; give a path instead"
        ) from error
    found: Iterable[Mapping[str, Any]] = rows
    return found


# ---- arithmetic ---------------------------------------------------------------------------------------------------

_NAMES = ("Ada", "Bela", "Chidi", "Dora", "Emre", "Farah", "Goran", "Hana", "Ilse", "Joao")
_THINGS = ("apples", "stamps", "marbles", "books", "shells", "coins", "cards", "pencils")


def arithmetic(*, n: int = 200, seed: int = 0) -> list[Task]:
    """Word problems with whole numbers as answers, made from a seed: one to three steps. Judge them with `numeric`.

    Raises:
        ConfigError: `n` is no positive whole number.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"dataset 'arithmetic': n is a whole number of at least 1, got {n!r}")
    rng = random.Random(f"arithmetic/{seed}")
    made = []
    for number in range(n):
        steps, problem = _PROBLEMS[rng.randrange(len(_PROBLEMS))]
        question, answer = problem(rng)
        id = f"arithmetic_{seed}_{number}"
        made.append(Task(question, id, (str(answer),), "arithmetic", metadata={"steps": steps}))
    return made


def _gathered(rng: random.Random) -> tuple[str, int]:
    who, other = rng.sample(_NAMES, 2)
    what, first, second = rng.choice(_THINGS), rng.randint(12, 980), rng.randint(12, 980)
    return f"{who} has {first} {what} and {other} has {second}. How many {what} do they have together?", first + second


def _shared(rng: random.Random) -> tuple[str, int]:
    who, what = rng.choice(_NAMES), rng.choice(_THINGS)
    boxes, each = rng.randint(3, 25), rng.randint(4, 40)
    question = f"{who} puts {boxes * each} {what} evenly into {boxes} boxes. How many {what} are in each box?"
    return question, each


def _shopping(rng: random.Random) -> tuple[str, int]:
    who, what = rng.choice(_NAMES), rng.choice(_THINGS)
    count, price = rng.randint(3, 30), rng.randint(2, 19)
    left = rng.randint(1, 90)
    paid = count * price + left
    question = f"{who} has {paid} dollars and buys {count} {what} at {price} dollars each. How many dollars are left?"
    return question, left


def _journey(rng: random.Random) -> tuple[str, int]:
    who, speed, later = rng.choice(_NAMES), rng.randint(40, 110), rng.randint(40, 110)
    first, second = rng.randint(2, 7), rng.randint(2, 7)
    question = (
        f"{who} drives {first} hours at {speed} km/h and then {second} hours at {later} km/h. "
        "How many kilometres is that in all?"
    )
    return question, first * speed + second * later


_Problem = Callable[[random.Random], tuple[str, int]]
_PROBLEMS: tuple[tuple[int, _Problem], ...] = ((1, _gathered), (1, _shared), (2, _shopping), (3, _journey))
