"""`antiphon reward`: saved trajectories term by term, in the order of their file; faults named by file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import Call, Task, Trajectory, Usage
from antiphon.cli import run
from antiphon.types import Attempt, Shown

TERMS = ["format", "x", "1", "outcome", "x", "0.4", "cost", "x", "0.6"]
POOL = """
[pools.mine]
members = ["Critic"]
[members.Critic]
description = "x"
adapter = "function"
model = "antiphon_pools.members:calculator"
price = { input = 0, output = 4 }
"""


def trajectory(number: int, tokens: int, golden: tuple[str, ...] | None = ("Lima",), **fields: Any) -> Trajectory:
    """Right, and charged USD 1 per million for so many tokens."""
    attempt = Attempt("a:m", "ok", usage=Usage(0, tokens), cost_usd=tokens / 1e6, priced_as="Critic")
    task = Task("capital of Peru?", f"nq-{number}", golden)
    parts = {"answer": "Lima", "stop": "answer", "calls": (Call("Critic", "q", "ok", "r", (attempt,), round=1),)}
    return Trajectory(f"id-{number}", task, "router_r1", **{**parts, **fields})


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def saved(*trajectories: Trajectory | str, toml: str = "") -> str:
        (tmp_path / "antiphon.toml").write_text(toml)
        lines = [each if isinstance(each, str) else each.to_json() for each in trajectories]
        (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
        return "t.jsonl"

    return saved


def test_each_trajectory_is_measured_by_those_before_it(
    saved: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(
        trajectory(0, 100),
        trajectory(1, 400, answer="Quito"),
        trajectory(2, 400),
        trajectory(3, 1, format_problems=("nested",)),
    )
    assert run(["reward", file, "--alpha", "0.6", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["reward"], data["alpha"]) == ("paper", 0.6)
    assert data["weights"] == {"format": 1.0, "outcome": 0.4, "cost": 0.6}
    # cost: nothing before it; one before it; sqrt 10 and 20 before it: q05 = 10.5, q95 = 19.5, so 20 is clipped
    costs = [each["values"].get("cost") for each in data["trajectories"]]
    assert costs == [0.5, 0.5, 0.0, None]
    totals = [each["total"] for each in data["trajectories"]]
    assert totals == pytest.approx([0.7, 0.3, 0.4, -1.0])
    assert data["means"]["total"] == pytest.approx(0.1)
    assert data["means"]["cost"] == pytest.approx((0.3 + 0.3) / 4)
    assert "cost does not count: format < 0" in data["trajectories"][3]["explanation"]


def test_the_table_has_a_column_for_each_term_and_a_row_of_means(
    saved: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(trajectory(0, 100), trajectory(1, 400, answer=None, stop="rounds"))
    assert run(["reward", file, "--reward", "released", "--alpha", "0.6"]) == 0
    head, first, second, means = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head == ["line", "task", "answer", "calls", "total", *TERMS]
    assert first == ["1", "nq-0", "Lima", "1", "0.700", "0.000", "0.400", "0.300"]
    assert second == ["2", "nq-1", "(rounds)", "1", "0.000", "0.000", "0.000", "-"]
    assert means == ["mean", "n", "=", "2", "1.00", "0.350", "0.000", "0.200", "0.150"]


def test_one_trajectory_is_explained_in_words(saved: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reward", saved(trajectory(0, 100)), "--alpha", "0.6"]) == 0
    assert capsys.readouterr().out.endswith("0.7 = format 1 x 0; outcome 0.4 x 1; cost 0.6 x 0.5\n")


def test_a_pool_gives_its_prices_and_a_drawn_pool_its_own(
    saved: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = trajectory(2, 100, shown=Shown({"Critic": "Critic"}, {"Critic": 8.0}, 2.0))
    file = saved(trajectory(0, 0), trajectory(1, 225), drawn, toml=POOL)
    values = []
    for options in ([], ["--pool", "mine"]):
        assert run(["reward", file, "--alpha", "1", "--json", *options]) == 0
        values.append([each["values"]["cost"] for each in json.loads(capsys.readouterr().out)["trajectories"]][2])
    # shown at 8 and divided by 2: raw 400, sqrt 20. Charged: 0 and 15: q95 = 14.25: 0.
    # At the pool's 4: 0 and 30: q05 = 1.5, q95 = 28.5: 1 - (20 - 1.5) / 27.
    assert values == pytest.approx([0.0, 1 - 18.5 / 27])


def test_a_judge_of_the_pool_is_asked_and_its_price_said(
    saved: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    uses = '[rewards.judged]\nterms = [{ term = "judge", options = { member = "Critic", otherwise = 0.25 } }]'
    file = saved(trajectory(0, 1), toml=POOL + uses)
    assert run(["reward", file, "--reward", "judged", "--pool", "mine"]) == 0
    captured = capsys.readouterr()
    assert "0.25 = judge 1 x 0.25" in captured.out  # a calculator gives no verdict
    assert "judging took 1 call, $0" in captured.err
    assert run(["reward", file, "--reward", "judged"]) == 2
    assert "no pool is given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("{}",), "t.jsonl, line 1: not a trajectory"),
        ((trajectory(0, 1).to_json(), '{"id": "torn'), "t.jsonl, line 2: not a trajectory"),
        (("", trajectory(0, 1, golden=None).to_json()), "t.jsonl, line 2: task 'nq-0' has no golden"),
        (("",), "t.jsonl is empty"),
    ],
)
def test_faults_name_file_and_line(
    saved: Callable[..., str], capsys: pytest.CaptureFixture[str], lines: tuple[str, ...], says: str
) -> None:
    assert run(["reward", saved(*lines)]) == 2
    assert says in capsys.readouterr().err


def test_a_torn_line_does_not_hide_the_others(saved: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reward", saved(trajectory(0, 1), '{"id": "torn'), "--json"]) == 2
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["trajectories"]] == ["id-0"]


def test_an_unknown_reward_is_named(saved: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reward", saved(trajectory(0, 1)), "--reward", "papr"]) == 2
    assert "no reward is called 'papr'; did you mean 'paper'" in capsys.readouterr().err
