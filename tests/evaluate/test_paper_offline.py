"""The paper's offline evaluation: its checks hold on the recorded files, it runs, and what is committed agrees."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antiphon.registry import default_registry

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/paper-offline"
RESULTS = ROOT / "benchmarks/results/paper-offline"
DATA = os.environ.get("ANTIPHON_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="ANTIPHON_DATA names no recorded data")
MEMBERS = {
    "qwen/qwen2.5-7b-instruct": "Qwen2.5-7B alone",
    "meta/llama-3.1-8b-instruct": "LLaMA-3.1-8B alone",
    "meta/llama-3.1-70b-instruct": "LLaMA-3.1-70B alone",
    "mistralai/mistral-7b-instruct-v0.3": "Mistral-7B alone",
    "mistralai/mixtral-8x22b-instruct-v0.1": "Mixtral-8x22B alone",
    "google/gemma-2-27b-it": "Gemma-2-27B alone",
}


@pytest.fixture(scope="module")
def scripts() -> Iterator[Callable[[str], Any]]:
    """`scripts(name)`: a script that imports others of its folder by their bare names."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


def loaded(name: str) -> ModuleType:
    """A module of the benchmark, which is a folder of scripts and no package."""
    spec = util.spec_from_file_location(f"paper_offline_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


# ---- the recorded files -------------------------------------------------------------------------------------------


@needs_data
def test_our_f1_and_our_costs_are_the_files_own_on_all_3000_replies() -> None:
    found = loaded("checks").checked(Path(str(DATA)), default_registry())
    assert found == {"replies": 3000, "f1_equal": 3000, "cost_equal": 3000}


@needs_data
def test_the_means_straight_from_the_file_are_those_committed() -> None:
    assert loaded("checks").members(Path(str(DATA)), default_registry()) == read(RESULTS / "members.json")


@needs_data
@pytest.mark.slow
def test_it_runs_on_a_few_questions_and_says_that_this_is_no_result(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--limit", "3", "--out", str(tmp_path / "out"), "--json"]
    trained = ["bert", "routerdc", "graphrouter", "routellm", "hybridllm", "svm", "elo", "to_router", "forc"]
    command += ["--without", *trained]  # mlp, frugalgpt and c2mabv stand for them: a run trains each for many folds
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["check"]["f1_equal"] == 3000
    page = (tmp_path / "out/README.md").read_text("utf-8")
    assert "**Only the first 3 questions of a set: no result.**" in page
    assert "rows of learned routers lie below the best single LLM" in page
    assert "| NQ | Prompt LLM* | its parts were never put to the LLMs" in page
    assert "| NQ | BERT Router, 10-fold | left out of this run" in page
    for name in ("nq", "nq-cost", "evouna-nq", "evouna-triviaqa"):
        rows = gzip.decompress((tmp_path / "out" / name / "rows.jsonl.gz").read_bytes()).splitlines()
        cells = read(tmp_path / "out" / name / "summary.json")["cells"]
        assert len(rows) == 3 * sum(cell["status"] == "run" for cell in cells)
    assert str(DATA) not in "".join(path.read_text("utf-8") for path in (tmp_path / "out").rglob("*.json"))


def test_without_data_it_says_not_run() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ANTIPHON_DATA"}
    command = [sys.executable, str(FOLDER / "run.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert json.loads(done.stdout)["status"] == "not run"


# ---- causes -------------------------------------------------------------------------------------------------------


BASE, ROUTER = "Best single", "Router"


def judged(causes: Any, policy: str, scores: dict[str, list[float]], asked: dict[str, str], **more: Any) -> Any:
    """A table of two members, A (dear, better) and B (cheap), and a router; `asked` has a letter a question."""
    label_of = {"A alone": "A", "B alone": "B"}
    rows = {
        label: {
            str(at): {
                "task_id": str(at),
                "index": at,
                "asked": [label_of.get(label) or asked[label][at]],
                "metrics": {"em": score},
                "raw_cost": 10.0 if (label_of.get(label) or asked[label][at]) == "A" else 2.0,
            }
            for at, score in enumerate(values)
        }
        for label, values in scores.items()
    }
    policies = {label: ("single", {"member": name}) for label, name in label_of.items()}
    policies |= {BASE: ("best_single", {"metric": "em"}), ROUTER: (policy, {"metric": "em", **more.pop("options", {})})}
    paired = {"difference": -0.2, "low": -0.4, "high": -0.1, "p": 0.01, "n": len(scores[BASE]), **more}
    return causes.Judged("nq", "NQ", "em", BASE, policies, rows, {"A": 5.0, "B": 1.0}, {ROUTER: paired})


def some(causes: Any, policy: str, *, asked: str = "AAAAAAAABB", **more: Any) -> Any:
    """Ten questions: A knows the first eight and the last, B every fourth."""
    right = {"A": [1.0] * 8 + [0.0, 1.0], "B": [1.0, 0.0, 0.0, 0.0] * 2 + [1.0, 0.0]}
    ours = [right[member][at] for at, member in enumerate(asked)]
    scores = {"A alone": right["A"], "B alone": right["B"], BASE: right["A"], ROUTER: ours}
    return judged(causes, policy, scores, {BASE: "A" * 10, ROUTER: asked}, **more)


def cause(causes: Any, table: Any, streams: Any = None) -> tuple[str, str]:
    [found] = causes.findings([table], streams or {})
    return ("" if found.cause is None else found.cause.shown.__name__), found.figures


def test_a_router_that_is_not_below_needs_no_cause(scripts: Any) -> None:
    causes = scripts("causes")
    assert causes.findings([some(causes, "mlp", high=0.0)], {}) == []
    assert causes.findings([some(causes, "largest")], {}) == []


def test_without_a_cause_it_says_so(scripts: Any) -> None:
    causes = scripts("causes")
    assert cause(causes, some(causes, "mlp")) == ("", "")
    assert causes.elsewhere(some(causes, "mlp"), ROUTER) == (2, 1, 1)


def test_a_price_of_a_point_is_a_cause_where_it_saves_as_much(scripts: Any) -> None:
    """It costs 2 x 8 / 10 = 1.6 less for 20 points: 0.08 a point."""
    causes = scripts("causes")
    name, figures = cause(causes, some(causes, "mlp", options={"usd_per_point": 0.07e-6}))
    assert name == "priced"
    assert "costs 8.4 in place of 10.0: saves 0.08 for each of 20.0 points, where a point was worth 0.07" in figures
    name, figures = cause(causes, some(causes, "mlp", options={"usd_per_point": 0.09e-6}))
    assert name == "worth"  # the two questions on which it asks another cancel out; 1.6 saved is 17.8 points at 0.09
    assert "together, in points a question: +17.78 (" in figures
    assert cause(causes, some(causes, "knn", options={"cost_weight": 0.2}))[0] == "priced"


def test_a_price_of_a_point_is_no_cause_where_it_loses_more_for_certain(scripts: Any) -> None:
    """B for A on every question: 8 right of 10 less, so 60 points at 1 a point, for a saving of 8."""
    causes = scripts("causes")
    table = some(causes, "mlp", asked="B" * 10, options={"usd_per_point": 1e-6})
    assert cause(causes, table) == ("", "")


def test_another_score_is_a_cause_where_it_does_not_lose_by_that(scripts: Any) -> None:
    causes = scripts("causes")
    for high, name in ((0.05, "other_score"), (-0.05, "")):
        table, other = some(causes, "mlp"), some(causes, "mlp", high=high)
        table.policies[ROUTER][1].pop("metric")
        table.others[causes.HUMAN] = other
        assert cause(causes, table)[0] == name


def test_votes_are_noise_where_random_ones_lose_as_much(scripts: Any) -> None:
    """B is asked where it has more of two votes or (being cheaper) as many: random ones lose some; a router that loses
    far more than they do is led astray by something else."""
    causes = scripts("causes")
    name, figures = cause(causes, some(causes, "knn", options={"k": 2}, high=-0.01))
    assert name == "few_votes"
    assert "2 questions drawn at random in place of the nearest" in figures
    assert cause(causes, some(causes, "knn", options={"k": 2}, low=-0.9, high=-0.8))[0] == ""


def test_a_bandit_that_learns_is_a_cause(scripts: Any) -> None:
    causes = scripts("causes")
    stream = {"metric": "em", "64 at once": {"reward_by_pass": [0.5, 0.8]}, "best_single": ["A", 0.9]}
    name, figures = cause(causes, some(causes, "c2mabv", asked="BBABAAAAAA"), {"nq": stream})
    assert name == "exploring"
    assert "loses 50.0 and 0.0 points a question (em) against always asking A, which it asks on 0% and 100%" in figures
    assert "put 2 times over, it scores 0.500, 0.800 (A alone 0.900)" in figures
    assert cause(causes, some(causes, "c2mabv", asked="AABABABABB"))[0] == ""


def test_a_handful_of_differences_is_chance(scripts: Any) -> None:
    causes = scripts("causes")
    assert cause(causes, some(causes, "svm", p=0.125)) == ("chance", "p 0.125, by the exact test, over 10 questions")


# ---- what is committed --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells() -> dict[str, Any]:
    return {cell["policy"]: cell for cell in read(RESULTS / "nq/summary.json")["cells"]}


@pytest.mark.parametrize(("llm", "policy"), MEMBERS.items())
def test_a_member_alone_is_worth_what_the_file_says(llm: str, policy: str, cells: dict[str, Any]) -> None:
    """Through pool, rollout and evaluation, against the mean straight from the file."""
    member, cell = read(RESULTS / "members.json")["members"][llm], cells[policy]
    assert cell["n"] == 500
    assert cell["metrics"]["em"]["mean"] == pytest.approx(member["em"], abs=1e-6)
    assert cell["metrics"]["f1"]["mean"] == pytest.approx(member["f1"], abs=1e-6)
    assert cell["raw_cost"]["mean"] == pytest.approx(member["raw_cost"], abs=1e-6)


def test_the_oracles_are_those_of_the_file(cells: dict[str, Any]) -> None:
    oracle = read(RESULTS / "members.json")["oracle"]
    assert cells["Oracle (EM)"]["metrics"]["em"]["mean"] == pytest.approx(oracle["em"], abs=1e-6)
    assert cells["Oracle (F1)"]["metrics"]["f1"]["mean"] == pytest.approx(oracle["f1"], abs=1e-6)


def test_no_policy_passes_the_oracle_and_those_not_run_say_why(cells: dict[str, Any]) -> None:
    for cell in cells.values():
        if cell["status"] == "run":
            assert cell["metrics"]["em"]["mean"] <= cells["Oracle (EM)"]["metrics"]["em"]["mean"]
        else:
            assert cell["note"]
            assert not cell["metrics"]
    assert sum(cell["status"] == "not run" for cell in cells.values()) >= 10


made_by_this_command = pytest.mark.skipif(
    not (RESULTS / "checks.json").is_file(), reason="what is kept was made before causes were: `make paper-offline`"
)


@made_by_this_command
def test_the_page_is_what_its_files_say(scripts: Any) -> None:
    """`run.py --sets` makes it again: every table and every cause, from what is kept."""
    made = scripts("page").page(RESULTS, RESULTS.parent / "routers/bandit.json", "make paper-offline")
    assert made == (RESULTS / "README.md").read_text("utf-8")


@made_by_this_command
def test_every_router_below_the_best_single_llm_has_a_cause(scripts: Any) -> None:
    causes = scripts("causes")
    tables = causes.kept(RESULTS, scripts("page").SHORT)
    assert {table.name for table in tables} >= {"nq", "nq-cost", "evouna-nq", "evouna-triviaqa", "ten_folds"}
    found = causes.findings(tables, read(RESULTS.parent / "routers/bandit.json")["recorded"])
    assert [(one.table.name, one.label) for one in found if one.cause is None] == []
    below = {(table.name, table.metric, label) for table in tables for label in table.below()}
    assert {(one.table.name, one.table.metric, one.label) for one in found} == below


def test_the_results_are_small_and_name_no_folder_of_a_machine() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000
    for path in files:
        if path.suffix == ".json":
            assert "${ANTIPHON_DATA}" in path.read_text("utf-8") or path.name not in ("spec.json", "summary.json")
