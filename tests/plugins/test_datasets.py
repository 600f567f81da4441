"""The seven sets, any file, and generated problems: what comes out, and what each bad row is told."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antiphon.errors import ConfigError, MissingExtra
from antiphon.registry import default_registry
from antiphon.types import Task
from antiphon_plugins.datasets import PUBLIC_REPOSITORY, SPLITS
from antiphon_plugins.matching import Numeric

SETS = sorted(SPLITS)
DATA = os.environ.get("ANTIPHON_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="ANTIPHON_DATA names no recorded data")


def load(name: str, /, *arguments: Any, **options: Any) -> list[Task]:
    return list(default_registry().dataset(name, *arguments, **options))


def written(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n", "utf-8")
    return path


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"q{number}", "question": f"Who is {number}?", "golden_answers": [f"N{number}"], **more}


# ---- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_each_set_reads_a_file(name: str, tmp_path: Path) -> None:
    file = written(
        tmp_path / "some.jsonl", [row(1), row(2, dataset=name), "", row(3, golden_answers=["a", 7, 1.5, -2])]
    )
    tasks = load(name, path=str(file))
    assert [(task.id, task.dataset, task.question) for task in tasks] == [
        (f"q{n}", name, f"Who is {n}?") for n in (1, 2, 3)
    ]
    assert tasks[2].golden_answers == ("a", "7", "1.5", "-2")


def test_a_row_without_an_id_is_called_by_its_place(tmp_path: Path) -> None:
    rows = [{"question": "Who?", "golden_answers": ["A"]}, {"question": "Why?", "golden_answers": ["B"], "id": 0}]
    assert [task.id for task in load("nq", path=written(tmp_path / "x.jsonl", rows))] == ["nq_0", "0"]


def router_r1_row(number: int, source: str) -> dict[str, Any]:
    """The schema of Router-R1's training files."""
    return {
        "id": f"train_{number}",
        "data_source": source,
        "prompt": [{"role": "user", "content": "a long prompt"}],
        "question": f"Who is {number}?",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["N", "M"]}},
        "extra_info": {"split": "train", "index": number},
    }


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_mixed_training_file_gives_each_set_its_own(ending: str, tmp_path: Path) -> None:
    rows = [router_r1_row(0, "nq"), router_r1_row(0, "hotpotqa"), router_r1_row(1, "nq")]
    file = tmp_path / f"train.{ending}"
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        written(file, rows)
    assert [(task.id, task.golden_answers) for task in load("nq", path=file)] == [
        ("train_0", ("N", "M")),
        ("train_1", ("N", "M")),
    ]
    assert [task.id for task in load("hotpotqa", path=file)] == ["train_0"]
    with pytest.raises(ConfigError, match=r"no questions of 'musique', only of hotpotqa, nq; name that set"):
        load("musique", path=file)


def test_a_parquet_file_of_the_short_schema(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([row(1), row(2)]), file)
    assert [task.golden_answers for task in load("popqa", path=file)] == [("N1",), ("N2",)]
    (tmp_path / "y.parquet").write_text("no parquet")
    with pytest.raises(ConfigError, match=r"y\.parquet cannot be read as parquet"):
        load("popqa", path=tmp_path / "y.parquet")


def test_any_file_with_fields_of_its_own(tmp_path: Path) -> None:
    rows = [{"key": 5, "q": {"text": "Why?"}, "solutions": [3]}]
    file = written(tmp_path / "mine.jsonl", rows)
    [task] = load("jsonl", path=file, question="q.text", answers="solutions", id="key")
    assert (task.id, task.dataset, task.question, task.golden_answers) == ("5", "mine", "Why?", ("3",))
    assert load("jsonl", path=file, name="other", question="q.text", answers="solutions")[0].dataset == "other"


# ---- rows that do not hold ----------------------------------------------------------------------------------------

GOLDEN = "golden_answers"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(2, golden_answers=None), "golden_answers is null or missing; give a list of right answers"),
        ({"id": "q2", "question": "Who?"}, "golden_answers is null or missing"),
        ({"id": "q2", "question": "Who?", "golden_answer": ["x"]}, "did you mean 'golden_answer'"),
        (row(2, golden_answers=[]), "golden_answers is an empty list; give at least one"),
        (row(2, golden_answers="Bo"), "golden_answers is a string; give a list of strings"),
        (row(2, golden_answers=5), r"golden_answers is 5 \(int\)"),
        (row(2, golden_answers={"a": 1}), "golden_answers is a table"),
        (row(2, golden_answers=["x", None]), r"golden_answers\[1\] is null"),
        (row(2, golden_answers=["", "x"]), r"golden_answers\[0\] is an empty string"),
        (row(2, golden_answers=["x", " \t"]), r"golden_answers\[1\] is an empty string"),
        (row(2, golden_answers=[True]), r"golden_answers\[0\] is true or false"),
        (row(2, golden_answers=[["x"]]), r"golden_answers\[0\] is a list"),
        (row(2, question=""), "question is an empty string"),
        (row(2, question=None), "question is null or missing"),
        (row(2, question=["x"]), "question is a list"),
        ({"id": "q2", "golden_answers": ["x"]}, "question is null or missing"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_id(bad: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = written(tmp_path / "bad.jsonl", [row(1), "", bad])
    with pytest.raises(ConfigError, match=rf"bad\.jsonl, line 3 \(id 'q2'\): .*{message}"):
        load("nq", path=file)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([row(1), "{"], r"bad\.jsonl, line 2: not JSON"),
        ([row(1), "[1]"], r"bad\.jsonl, line 2: a row is a JSON object, not a list"),
        ([row(1), row(2), row(1)], r"line 3 \(id 'q1'\): line 1 has the same id; give each question its own"),
        ([row(1), row(2, id=True)], r"line 2: id is true or false; give a string or a whole number"),
        ([row(1), row(2, id="")], r"line 2: id is an empty string"),
        ([], "dataset 'nq': .* has no questions"),
    ],
)
def test_a_file_that_does_not_hold(lines: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load("nq", path=written(tmp_path / "bad.jsonl", lines))


def test_a_file_that_is_not_there_or_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.jsonl' is not there; check the path"):
        load("nq", path=tmp_path / "no.jsonl")
    with pytest.raises(ConfigError, match="is a directory; name a file in it"):
        load("jsonl", path=tmp_path)
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}\n')
    with pytest.raises(ConfigError, match=r"latin\.jsonl cannot be read"):
        load("nq", path=tmp_path / "latin.jsonl")
    with pytest.raises(ConfigError, match="takes no option 'pth'; did you mean 'path'"):
        load("nq", pth="x")


# ---- the draw -----------------------------------------------------------------------------------------------------


def test_the_draw_is_the_papers(tmp_path: Path) -> None:
    file = written(tmp_path / "x.jsonl", [row(n) for n in range(50)])
    random.seed(42)
    expected = [f"q{n}" for n in random.sample(range(50), 20)]
    assert [task.id for task in load("nq", path=file, sample=20)] == expected
    assert [task.id for task in load("nq", path=file, sample=20, seed=1)] != expected
    assert len(load("nq", path=file, sample=500)) == 50
    for bad in (0, -1, True, 2.5):
        with pytest.raises(ConfigError, match="sample is a whole number of at least 1"):
            load("nq", path=file, sample=bad)


@needs_data
def test_the_draw_gives_the_papers_own_500_questions() -> None:
    drawn = [f"test_{place}" for place in random.Random(42).sample(range(3610), 500)]
    assert [task.id for task in load("nq", path=Path(str(DATA)) / "qa/nq.jsonl")] == drawn


@needs_data
@pytest.mark.parametrize("name", SETS)
def test_the_recorded_questions_hold(name: str) -> None:
    tasks = load(name, path=Path(str(DATA)) / f"qa/{name}.jsonl")
    assert len(tasks) == {"musique": 400, "bamboogle": 100}.get(name, 500)


# ---- the public sets ----------------------------------------------------------------------------------------------


class Hub(ModuleType):
    """A stand-in for `datasets`, to see what it is asked for. Nothing is fetched in these tests."""

    def __init__(self, rows: Any) -> None:
        super().__init__("datasets")
        self.asked: list[tuple[Any, ...]] = []
        self._rows = rows

    def load_dataset(self, *arguments: Any, **options: Any) -> Any:
        self.asked.append((*arguments, options))
        if isinstance(self._rows, Exception):
            raise self._rows
        return self._rows


@pytest.mark.parametrize("name", SETS)
def test_a_public_set_is_asked_for_by_id_configuration_and_split(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub([row(1, metadata={}), row(2)])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert [task.id for task in load(name)] == ["q1", "q2"]
    load(name, split="train", sample=1)
    splits = {"hotpotqa": "dev", "2wikimultihopqa": "dev", "musique": "dev"}
    assert hub.asked == [
        (PUBLIC_REPOSITORY, name, {"split": splits.get(name, "test")}),
        (PUBLIC_REPOSITORY, name, {"split": "train"}),
    ]


def test_a_public_set_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Hub(ConnectionError("no route")))
    with pytest.raises(ConfigError, match=r"'nq', split 'test' of RUC\S+ cannot be fetched: no route; give a path"):
        load("nq")
    monkeypatch.setitem(sys.modules, "datasets", Hub([row(1, golden_answers=[])]))
    with pytest.raises(ConfigError, match=r"FlashRAG_datasets \(nq, test\), line 1 \(id 'q1'\): .* empty list"):
        load("nq")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'antiphon\[evaluate\]'"):
        load("nq")
    with pytest.raises(ConfigError, match="split is of the public set"):
        load("nq", path=written(tmp_path / "x.jsonl", [row(1)]), split="test")


def test_nothing_heavy_is_imported_for_a_file(tmp_path: Path) -> None:
    file = written(tmp_path / "x.jsonl", [row(1)])
    code = (
        "import sys; from antiphon_plugins.datasets import nq; "
        f"nq({str(file)!r}); print({{'datasets', 'pyarrow', 'numpy', 'pandas'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "set()"


# ---- arithmetic ---------------------------------------------------------------------------------------------------


def test_arithmetic_is_the_same_for_a_seed_and_its_answers_are_numbers() -> None:
    tasks = load("arithmetic", n=300)
    assert tasks == load("arithmetic", n=300)
    assert tasks[:50] == load("arithmetic", n=50)
    assert [task.question for task in tasks] != [task.question for task in load("arithmetic", n=300, seed=1)]
    assert len({task.id for task in tasks}) == 300
    assert {task.metadata["steps"] for task in tasks} == {1, 2, 3}
    for task in tasks:
        assert task.golden_answers is not None
        assert Numeric()(f"It is {task.golden_answers[0]}.", task.golden_answers) == 1
    with pytest.raises(ConfigError, match="n is a whole number of at least 1"):
        load("arithmetic", n=0)


def test_arithmetic_is_right() -> None:
    """Worked out again from the numbers in the text."""
    for task in load("arithmetic", n=200):
        numbers = [int(word) for word in task.question.replace(".", "").replace("?", "").split() if word.isdigit()]
        [golden] = task.golden_answers or ()
        if "together" in task.question:
            assert int(golden) == sum(numbers)
        elif "boxes" in task.question:
            assert int(golden) * numbers[1] == numbers[0]
        elif "dollars" in task.question:
            assert int(golden) == numbers[0] - numbers[1] * numbers[2]
        else:
            assert int(golden) == numbers[0] * numbers[1] + numbers[2] * numbers[3]
