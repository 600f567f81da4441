"""What an evaluation's file may say, and that what it may not say is one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.evaluate.spec import (
    DatasetEntry,
    PolicyEntry,
    Settings,
    dataset_flag,
    differences,
    load_spec,
    make_spec,
    policy_flag,
)

WHOLE = """
[evaluate]
pool = ["a", "b"]
seeds = [0, 1]
metrics = ["em"]
baseline = "Big"
limit = 100

[limits]
rounds = 2

[[policies]]
name = "largest"
label = "Big"
answer_by = "member"
options = { by = "total" }

[[policies]]
name = "rag"
pool = "wiki"

[[datasets]]
name = "nq"
options = { path = "data/nq.jsonl" }

[[datasets]]
name = "jsonl"
label = "ours"
options = { path = "${DATA}/ours.jsonl" }
limit = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(WHOLE)
    return path


def test_a_whole_file(file: Path) -> None:
    spec = load_spec(file)
    big, rag = spec.policies
    assert (big.label, rag.label) == ("Big", "rag")
    assert big.all_options == {"by": "total", "answer_by": "member"}
    assert [(policy.label, pool) for policy, pool in spec.units("x")] == [("Big", "a"), ("Big", "b"), ("rag", "wiki")]
    assert [spec.dataset_limit(entry) for entry in spec.datasets] == [100, 7]


def test_relative_paths_are_relative_to_the_file_and_the_record_holds_them_as_written(file: Path) -> None:
    spec = load_spec(file)
    nq, ours = spec.datasets
    assert spec.anchored(nq.options) == {"path": str(file.parent / "data/nq.jsonl")}
    assert spec.anchored(ours.options) == {"path": "${DATA}/ours.jsonl"}
    assert spec.identity()["datasets"][0]["options"] == {"path": "data/nq.jsonl"}


def test_flags_go_over_the_file_and_how_fast_it_runs_is_no_part_of_what_it_is(file: Path) -> None:
    plain, changed = load_spec(file), load_spec(file, overrides={"concurrency": 3, "limit": None, "out": "x"})
    assert changed.evaluate.concurrency == 3
    assert changed.identity() == plain.identity()
    assert load_spec(file, overrides={"limit": 5}).identity() != plain.identity()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [0, 1]", "seed = [0, 1]", "unknown key 'evaluate.seed'; did you mean 'seeds'?"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "given twice: 1"),
        ('baseline = "Big"', 'baseline = "Bg"', "no policy is labelled 'Bg'; there are Big, rag"),
        ('name = "rag"', 'name = "rag"\nlabel = "Big"', "two policies are called 'Big'; give each its own"),
        ("rounds = 2", "round = 2", "unknown key 'round'; did you mean 'rounds'?"),
        ("rounds = 2", "rounds = -2", "limits: rounds"),
        ('answer_by = "member"', 'answer_by = "me"', "answer_by"),
        ("limit = 7", "limit = 0", "limit"),
        ("[evaluate]", "[evaluate", "is not TOML"),
    ],
)
def test_what_does_not_hold_is_named_with_its_file(file: Path, old: str, new: str, message: str) -> None:
    file.write_text(WHOLE.replace(old, new))
    with pytest.raises(ConfigError) as error:
        load_spec(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)


def test_the_page_lists_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/evaluate.md").read_text(encoding="utf-8")
    for name in Settings.model_fields:
        assert f"| `evaluate.{name}` |" in page
    for kind, entry in (("policies", PolicyEntry), ("datasets", DatasetEntry)):
        line = next(line for line in page.splitlines() if line.startswith(f"| `{kind}` |"))
        for name in entry.model_fields:
            assert f"`{name}`" in line


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml: No such file"):
        load_spec(tmp_path / "no.toml")


def test_flags_alone() -> None:
    assert policy_flag("knn") == {"name": "knn"}
    assert policy_flag("knn:KNN, k = 5") == {"name": "knn", "label": "KNN, k = 5"}
    assert dataset_flag("jsonl:a/b.jsonl") == {"name": "jsonl", "options": {"path": "a/b.jsonl"}}
    spec = make_spec({"policies": [policy_flag("knn")], "datasets": [dataset_flag("nq")]}, "flags")
    assert spec.evaluate.seeds == (0,)
    with pytest.raises(ConfigError, match="flags: policies"):
        make_spec({"policies": [], "datasets": [dataset_flag("nq")]}, "flags")


def test_differences_are_said_in_words() -> None:
    old = {"evaluate": {"seeds": [0]}, "policies": [{"label": "a", "options": {"k": 1}}, {"label": "b"}], "same": 1}
    new = {"evaluate": {"seeds": [0, 1]}, "policies": [{"label": "a", "options": {"k": 2}}, {"label": "c"}], "same": 1}
    assert differences(old, new) == [
        "evaluate.seeds: [0] before, [0, 1] now",
        "policies.a.options.k: 1 before, 2 now",
        "policies.b: only before",
        "policies.c: only now",
    ]
    assert differences(old, old) == []
