"""The analysis of the chamber's runs: figures worked out by hand from a few rollouts."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import TrainableRouter
from antiphon.evaluate.rows import Row
from antiphon.evaluate.spec import load_spec
from antiphon.registry import Registry
from antiphon_pools.chamber.questions import chamber

pytest.importorskip("numpy")

SCRIPT = Path(__file__).parents[2] / "benchmarks/chamber/analyse.py"
TEST = chamber(split="test")
ONE, TWO = ([task for task in TEST if task.metadata["hops"] == hops][:10] for hops in (1, 2))
UNSEEN = chamber(split="unseen", n=10)


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("chamber_analysis", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(policy: str, task: Any, em: float, *asked: str, dataset: str = "chamber", raw_cost: float = 0.0) -> Row:
    return Row(
        policy, "chamber", dataset, task.id, 0, task.question, task.golden_answers, "x", "answer", True,
        {"em": em, "f1": em}, raw_cost, 0.0, 0.0, len(asked), asked, len(asked), False, 0.0, 0.0, 0, 0, 0, 0, "", 1,
    )  # fmt: skip


def write(directory: Path, rows: list[Row]) -> None:
    directory.mkdir(parents=True)
    (directory / "rows.jsonl").write_text("".join(each.to_json() + "\n" for each in rows))
    (directory / "spec.json").write_text("{}")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    made = tmp_path / "evaluations"
    warm = [row("Warm start", task, 0.0) for task in (*ONE, *TWO)]
    first = [row("GRPO, seed 1", task, float(n < 8), "Wren") for n, task in enumerate(ONE)]
    first += [row("GRPO, seed 1", task, float(n < 6), "Wren", "Raven") for n, task in enumerate(TWO)]
    second = [row("GRPO, seed 2", task, 1.0, "Owl", "Jay") for task in (*ONE, *TWO)]
    write(made / "router", warm + first + second)
    write(made / "opponents", [row("Direct", task, float(n < 5)) for n, task in enumerate((*ONE, *TWO))])
    for name, usd in (("default-warm-judged", 2.0), ("out-of-the-box", 1.5)):
        write(made / name, [row("Out of the box", task, 1.0, "Owl", raw_cost=usd) for task in ONE])
    learned = {"Best member alone": 4, "MLP Router": 9, "AutoMix": 0}
    write(
        made / "routers",
        [
            row(name, task, float(n < right), "Wren")
            for name, right in learned.items()
            for n, task in enumerate((*ONE, *TWO))
        ],
    )
    write(made / "unseen", [row("GRPO, seed 1", task, 1.0, "Crane", dataset="its own skill") for task in UNSEEN])
    write(made / "unseen-shuffled", [row("GRPO, seed 1", task, 0.0, "Owl", dataset="its own skill") for task in UNSEEN])
    costs = {"alpha = 0": 10.0, "alpha = 0.9": 1.0}
    write(made / "cost", [row(label, task, 1.0, "Raven", raw_cost=usd) for label, usd in costs.items() for task in ONE])
    swapped = {"alpha = 0": "Raven", "alpha = 0.9": "Wren"}
    write(made / "cost-swapped", [row(label, task, 1.0, name) for label, name in swapped.items() for task in ONE])
    (tmp_path / "hours.jsonl").write_text("".join(f'{{"stage": "warm", "seconds": {s}}}\n' for s in (1800, 900)))
    for stage, seconds in (("warm", 90), ("main-1", 3600)):
        (tmp_path / stage).mkdir()
        (tmp_path / stage / "metrics.jsonl").write_text(f'{{"step": 0}}\n{{"step_s": {seconds}, "val_s": {seconds}}}\n')
    return tmp_path


def test_the_figures_are_those_of_the_rollouts(script: Any, runs: Path, tmp_path: Path) -> None:
    script.keep(runs, tmp_path / "out")
    found = script.analyse(tmp_path / "out")
    first = found["policies"]["GRPO, seed 1"]
    assert (first["em"]["mean"], first["em_one_hop"]["mean"], first["em_two_hops"]["mean"]) == (0.7, 0.8, 0.6)
    assert first["more_calls_on_two_hops"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert (first["cheap_twin_first"]["mean"], first["no_call"]["mean"]) == (1.0, 0.0)
    against = found["router_less_others"]
    assert set(against) == {"Warm start", "Direct", "Best member alone", "MLP Router", "AutoMix"}
    assert against["MLP Router"]["GRPO, seed 2"]["difference"] == pytest.approx(1 - 0.45)
    assert list(found["learned_less_best_member"]) == ["MLP Router", "AutoMix"]
    assert found["learned_less_best_member"]["MLP Router"]["difference"] == pytest.approx(0.45 - 0.2)
    assert against["Direct"]["GRPO, seed 1"]["difference"] == pytest.approx(0.7 - 0.25)
    assert list(found["losses"]) == ["AutoMix"]
    lost = found["losses"]["AutoMix"]
    assert (lost["asked"], lost["lost_to_the_cheap_twin"]) == ({"Wren": 20}, 4)
    assert (lost["lost"], lost["lost_in_first_fifth"], lost["lost_in_last_fifth"]) == (4, 1.0, 0.0)
    pooled = against["Direct"]["mean of seeds"]
    assert (pooled["difference"], pooled["ratio"]) == (pytest.approx(0.85 - 0.25), pytest.approx(0.85 / 0.25))
    assert 0 < pooled["low"] < pooled["difference"] < pooled["high"]
    assert against["Warm start"]["GRPO, seed 2"]["ratio"] is None
    unseen = found["unseen_member"]["GRPO, seed 1"]["its own skill"]
    assert (unseen["share_difference"]["difference"], unseen["em_difference"]["difference"]) == (1.0, 1.0)
    cost = found["cost"]["alpha = 0.9"]["raw_cost_less_alpha_0"]
    assert (cost["difference"], cost["ratio"]) == (-9.0, pytest.approx(0.1))
    shipped = found["shipped_less_before"]
    assert (shipped["raw_cost"]["difference"], shipped["em"]["difference"]) == (-0.5, 0.0)
    assert found["policies"]["Out of the box, before reinforcement learning"]["raw_cost"]["mean"] == 2.0
    assert found["ablations"] == {}
    assert found["hours"] == {"warm": 0.75, "main-1": 2.0}


def test_it_writes_figures_a_page_and_the_raw_rows(script: Any, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script.main(["--runs", str(runs), "--out", str(out)])
    assert json.loads((out / "analysis.json").read_text())["policies"]["Direct"]["em"]["mean"] == 0.25
    page = (out / "analysis.md").read_text()
    assert "| Direct | 20 | 0.250 [" in page
    assert "+0.600 [" in page
    assert "| MLP Router | +0.250 [" in page
    assert "| alpha = 0.9 | -9.000 [-9.000, -9.000]" in page
    assert "| alpha = 0.9 | 1.000 [1.000, 1.000] | 0.000 [0.000, 0.000] | 0.000 [" in page
    assert "## Ablations" not in page
    assert (out / "evaluations" / "router" / "rows.jsonl.gz").is_file()


@pytest.mark.parametrize("wordless", [False, True])
def test_what_is_kept_is_enough_to_make_the_figures_anew(
    script: Any, runs: Path, tmp_path: Path, wordless: bool
) -> None:
    out = tmp_path / "out"
    script.keep(runs, out, wordless)
    found = script.analyse(out)
    with (runs / "evaluations/router/rows.jsonl").open("a") as file:
        file.write('{"policy": "GRPO, se')  # being written
    script.keep(runs, out, wordless)
    script.keep(tmp_path / "nothing", out)
    assert script.analyse(out) == found
    kept = gzip.decompress((out / "evaluations/router/rows.jsonl.gz").read_bytes()).decode()
    assert (ONE[0].question in kept) is not wordless


def test_every_learned_router_is_judged_on_the_chamber() -> None:
    policies = load_spec(SCRIPT.parent / "evaluate/routers.toml").policies
    built_in = Registry.load([])
    learned = {
        name for name in built_in.names("policy") if isinstance(built_in.factory("policy", name), TrainableRouter)
    }
    assert {*learned, "knn", "c2mabv", "automix", "best_single"} <= {one.name for one in policies}


def test_where_nothing_was_run_there_are_no_figures(script: Any, tmp_path: Path) -> None:
    found = script.analyse(tmp_path)
    assert not any(found.values())
    assert script.page(found).startswith("# The chamber")
