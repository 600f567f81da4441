"""The paper's offline evaluation: its checks hold on the recorded files, it runs, and what is committed agrees."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib import util
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["check"]["f1_equal"] == 3000
    page = (tmp_path / "out/README.md").read_text("utf-8")
    assert "**Only the first 3 questions of each set: no result.**" in page
    assert "| NQ | Prompt LLM* | its parts were never put to the LLMs" in page
    assert "| NQ | BERT Router, 10-fold | left out of this run" in page
    for name in ("nq", "evouna-nq", "evouna-triviaqa"):
        rows = gzip.decompress((tmp_path / "out" / name / "rows.jsonl.gz").read_bytes()).splitlines()
        cells = read(tmp_path / "out" / name / "summary.json")["cells"]
        assert len(rows) == 3 * sum(cell["status"] == "run" for cell in cells)
    assert str(DATA) not in "".join(path.read_text("utf-8") for path in (tmp_path / "out").rglob("*.json"))


def test_without_data_it_says_not_run() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ANTIPHON_DATA"}
    command = [sys.executable, str(FOLDER / "run.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert json.loads(done.stdout)["status"] == "not run"


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


def test_the_results_are_small_and_name_no_folder_of_a_machine() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_000_000
    for path in files:
        if path.suffix == ".json":
            assert "${ANTIPHON_DATA}" in path.read_text("utf-8") or path.name not in ("spec.json", "summary.json")
