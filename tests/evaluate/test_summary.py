"""The summary's numbers, from rows whose numbers are known; and its audit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("numpy")

from antiphon.evaluate.audit import ENOUGH, Audit
from antiphon.evaluate.rows import Row
from antiphon.evaluate.summary import entropy, summarise


def row(policy: str, index: int, em: float, *, dataset: str = "nq", **changes: Any) -> Row:
    base = Row(
        policy=policy, pool="p", dataset=dataset, task_id=f"q{index}", seed=0, question="?", golden=("x",), answer="x",
        stop="answer", format_ok=True, metrics={"em": em}, raw_cost=10.0 * index, members_usd=0.5, policy_usd=0.25,
        calls=1, asked=("m",), rounds=1, escalated=False, wall_s=float(index), members_s=0.0, estimated=0, unpriced=0,
        substituted=0, failed=0, file="f", line=1, index=index, tokens=((1, 2),), served=(None,),
    )  # fmt: skip
    return replace(base, **changes)


def spec(
    *policies: str, datasets: tuple[str, ...] = ("nq",), questions: int = 4, seeds: int = 1, **evaluate: Any
) -> dict[str, Any]:
    return {
        "evaluate": {
            "metrics": ["em"], "seeds": list(range(seeds)), "baseline": None, "oracle": None, **evaluate
        },
        "policies": [{"label": policy, "pools": ["p"]} for policy in policies],
        "datasets": [{"label": dataset, "questions": questions} for dataset in datasets],
        "pools": [
            {"name": "p", "members": [{"name": "m", "output_price": 1.0}, {"name": "free", "output_price": None}]}
        ],
    }  # fmt: skip


def cell_of(rows: list[Row], **more: Any) -> dict[str, Any]:
    cell: dict[str, Any] = summarise(rows, spec("a", **more))["cells"][0]
    return cell


def test_a_cell() -> None:
    rows = [
        row("a", 0, 1.0),
        row("a", 1, 0.0, format_ok=False, answer=None),
        row("a", 2, 1.0, calls=2, asked=("m", "n"), tokens=((1, 1), (1, 1)), served=(None, None), escalated=True),
        row("a", 3, 0.0, calls=0, asked=(), tokens=(), served=(), rounds=0),
    ]
    cell = cell_of(rows)
    assert (cell["n"], cell["rows"], cell["status"], cell["note"]) == (4, 4, "run", None)
    assert cell["metrics"]["em"]["mean"] == 0.5
    assert 0 <= cell["metrics"]["em"]["low"] < 0.5 < cell["metrics"]["em"]["high"] <= 1
    assert (cell["raw_cost"]["mean"], cell["members_usd"]["mean"], cell["policy_usd"]["mean"]) == (15.0, 0.5, 0.25)
    assert (cell["calls"]["mean"], cell["rounds"]["mean"]) == (1.0, 0.75)
    assert cell["share"] == {"m": 0.75, "n": 0.25}
    assert cell["entropy"] == pytest.approx(0.8112781)
    assert cell["calls_histogram"] == {"0": 1, "1": 2, "2": 1}
    assert (cell["escalation"], cell["format_failures"], cell["no_answer"]) == (0.25, 0.25, 0.25)
    assert cell["latency"] == {"p50": 1.5, "p95": pytest.approx(2.85)}


def test_seeds_of_a_question_count_as_one_question() -> None:
    rows = [row("a", 0, 1.0), row("a", 0, 0.0, seed=1), row("a", 1, 1.0), row("a", 1, 1.0, seed=1)]
    cell = cell_of(rows, questions=2, seeds=2)
    assert (cell["n"], cell["rows"], cell["metrics"]["em"]["mean"]) == (2, 4, 0.75)
    assert (cell["metrics"]["em"]["low"], cell["metrics"]["em"]["high"]) == (0.5, 1.0)


def test_latency_is_unknown_where_no_row_has_a_time() -> None:
    assert cell_of([row("a", 0, 1.0, timed=False)])["latency"] == {"p50": None, "p95": None}
    assert cell_of([row("a", 0, 1.0, timed=False), row("a", 3, 1.0)])["latency"] == {"p50": 3.0, "p95": 3.0}


def test_what_is_not_done_yet_is_said() -> None:
    assert cell_of([row("a", 0, 1.0)])["note"] == "1 of 4 rollouts so far"


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([], "nothing has been asked yet"),
        (
            [row("a", n, 0.0, unrecorded=1, failed=1, error="not recorded in x") for n in range(3)]
            + [row("a", 3, 1.0)],
            "3 of 4 calls were for replies that are not recorded (not recorded in x)",
        ),
        (
            [row("a", n, 0.0, stop="error", error="no model") for n in range(3)] + [row("a", 3, 1.0)],
            "3 of 4 rollouts ended in an error (no model)",
        ),
    ],
)
def test_a_cell_whose_numbers_say_nothing_is_not_run_and_has_none(rows: list[Row], note: str) -> None:
    whole = summarise([*rows, *(row("b", n, 1.0) for n in range(4))], spec("a", "b", baseline="b", oracle="a"))
    cell = whole["cells"][0]
    assert (cell["status"], cell["note"], cell["metrics"]) == ("not run", note, {})
    assert [average["policy"] for average in whole["averages"]] == ["b"]
    assert (whole["paired"], whole["oracle"]) == ([], [])
    json.dumps(whole, allow_nan=False)


def test_a_few_that_are_missing_or_failed_are_noted_and_the_numbers_stay() -> None:
    rows = [row("a", n, 1.0) for n in range(4)]
    rows[0] = replace(rows[0], unrecorded=1, failed=1)
    rows[1] = replace(rows[1], stop="error", error="odd")
    cell = cell_of(rows)
    assert cell["status"] == "run"
    assert cell["note"] == (
        "1 of 4 calls were for replies that are not recorded; 1 rollouts ended in an error (the first: odd)"
    )


def test_averages_weigh_every_data_set_the_same() -> None:
    rows = [row("a", n, 1.0) for n in range(4)] + [row("a", 0, 0.0, dataset="small")]
    average = summarise(rows, spec("a", datasets=("nq", "small")))["averages"][0]
    assert average["over"] == ["nq", "small"]
    assert average["metrics"]["em"] == {"mean": 0.5, "low": 0.5, "high": 0.5}


def test_policies_are_paired_with_the_baseline_on_common_questions() -> None:
    rows = [row("a", n, 1.0) for n in (0, 1, 2)] + [row("base", n, 0.0) for n in (1, 2, 3)]
    (found,) = summarise(rows, spec("a", "base", baseline="base"))["paired"]
    assert (found["policy"], found["baseline"], found["metric"], found["n"]) == ("a", "base", "em", 2)
    assert (found["difference"], found["p"]) == (1.0, 0.5)


def test_a_baseline_on_another_pool_is_found_where_it_has_one_alone() -> None:
    rows = [row("a", n, 1.0, pool="wiki") for n in range(4)] + [row("base", n, 0.0) for n in range(4)]
    whole = spec("a", "base", baseline="base")
    whole["policies"][0]["pools"] = ["wiki"]
    whole["pools"].append({"name": "wiki", "members": []})
    (found,) = summarise(rows, whole)["paired"]
    assert (found["pool"], found["difference"], found["n"]) == ("wiki", 1.0, 4)


def test_the_upper_line_is_the_mean_of_the_policy_that_is_named() -> None:
    rows = [row("best", n, float(n > 0)) for n in range(4)]
    assert summarise(rows, spec("best", oracle="best"))["oracle"] == [
        {"pool": "p", "dataset": "nq", "metric": "em", "mean": 0.75}
    ]


def test_entropy_in_bits() -> None:
    assert entropy([]) == entropy([1.0]) == 0.0
    assert entropy([0.25] * 4) == 2.0


# ---- the audit ----------------------------------------------------------------------------------------------------


def test_the_audit_of_a_pool() -> None:
    rows = [row("a", n, 1.0, estimated=n % 2, unpriced=1, tokens=((7, n),)) for n in range(ENOUGH)]
    rows.append(row("a", ENOUGH, 1.0, substituted=1, served=("another",), tokens=((7, 0),)))
    found = summarise(rows, spec("a"))["audit"]["p"]
    assert found == {
        "rows": ENOUGH + 1,
        "calls": ENOUGH + 1,
        "rows_without_usage": ENOUGH // 2,
        "estimated": ENOUGH // 2,
        "constant_token_counts": [{"member": "m", "which": "input", "tokens": 7, "calls": ENOUGH + 1}],
        "unpriced_members": ["free"],
        "unpriced_calls": ENOUGH,
        "substituted": [{"member": "m", "served": "another", "calls": 1}],
    }


@pytest.mark.parametrize(("calls", "questions"), [(ENOUGH - 1, ENOUGH - 1), (ENOUGH, 1)])
def test_few_calls_or_one_question_make_no_constant_count(calls: int, questions: int) -> None:
    audit = Audit()
    for n in range(calls):
        audit.add(row("a", n % questions, 1.0))
    assert audit.to_data()["constant_token_counts"] == []
