"""An evaluation runs many rollouts at once, keeps each, goes on where it stopped, and lets a bad rollout be data."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

from antiphon.errors import ConfigError
from antiphon.evaluate.run import Evaluation, Progress
from antiphon.evaluate.spec import make_spec
from antiphon.evaluate.store import rows, trajectory

CONFIG = """
[defaults]
pool = "mine"
model = "says"

[pools.mine]
members = ["Small", "Large"]

[pools.taped]
members = ["Small", "Large"]
adapter = "recorded"
options = { path = "taped.jsonl" }

[pools.dear]
members = ["Dear"]

[members.Dear]
description = "Knows every answer."
parameters_b = 700
adapter = "function"
model = "members_of_test_run:large"
price = { input = 0, output = 1000 }

[members.Small]
description = "Knows every second answer."
parameters_b = 7
adapter = "function"
model = "members_of_test_run:small"
price = { input = 0, output = 1 }

[members.Large]
description = "Knows every answer."
parameters_b = 70
adapter = "function"
model = "members_of_test_run:large"
price = { input = 0, output = 10 }

[models.says]
generator = "scripted"
options = { replies = ["<think>easy</think><search>Large: what?</search>", "<think>so</think><answer>x</answer>"] }
price = { input = 0, output = 1 }

[models.spends]
generator = "scripted"
options = { replies = ["<think>easy</think><search>Dear: what?</search>", "<think>so</think><answer>x</answer>"] }
price = { input = 0, output = 1 }

[models.absent]
generator = "transformers"
options = { model = "no-such-model" }
"""

MEMBERS = """
import asyncio
from antiphon import Reply, Usage

asked, flying, most, together = [], 0, 0, 0

async def _say(member, context, right):
    global flying, most
    asked.append((member, context.task_id, context.sample))
    flying += 1
    most = max(most, flying)
    while most < together:  # nobody is answered before so many have asked at once
        await asyncio.sleep(0.001)
    flying -= 1
    if context.task_id == "q3":
        raise OSError("the line is dead")
    return Reply("<answer>%s</answer>" % (context.task_id if right else "no"), Usage(10, 100))

async def small(text, context):
    return await _say("Small", context, int(context.task_id[1:]) % 2)

async def large(text, context):
    return await _say("Large", context, True)
"""

Project = Any  # the module of the members, whose `asked` and `most` tests read


@pytest.fixture
def project(directory: Path) -> Project:
    """A configuration with two functions as members, 20 questions, and a tape that has 4 of them."""
    sys.modules.pop("members_of_test_run", None)
    (directory / "members_of_test_run.py").write_text(textwrap.dedent(MEMBERS))
    (directory / "antiphon.toml").write_text(CONFIG)
    questions = [{"id": f"q{n}", "question": f"Number {n}?", "golden_answers": [f"q{n}"]} for n in range(20)]
    (directory / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    taped = [
        {"question": f"Number {n}?", "llm": llm, "response": f"q{n}", "input_tokens": 5, "output_tokens": 6}
        for n in range(4)
        for llm in ("Small", "Large")
    ]
    (directory / "taped.jsonl").write_text("".join(json.dumps(one) + "\n" for one in taped))
    import importlib

    return importlib.import_module("members_of_test_run")


def evaluation(
    *policies: str | dict[str, Any], limits: Any = None, max_cost: Any = None, **evaluate: Any
) -> Evaluation:
    data = {
        "evaluate": {"metrics": ["em", "f1"], **evaluate},
        "limits": limits or {},
        "policies": [{"name": one} if isinstance(one, str) else one for one in policies],
        "datasets": [{"name": "jsonl", "label": "ours", "options": {"path": "questions.jsonl"}}],
    }
    return Evaluation(make_spec(data, "test"), Path("run"), max_cost_usd=max_cost)


def cells(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    return {cell["policy"]: cell for cell in evaluation.summarise()["cells"]}


def once_each(asked: Sequence[Any]) -> bool:
    return max(Counter(asked).values()) == 1


def test_policies_are_judged_on_all_questions_many_at_once(project: Project) -> None:
    project.together = 8
    with evaluation("largest", "cheapest", concurrency=8) as ready:
        assert (ready.total, ready.done, project.asked) == (40, 0, [])
        assert ready.run() == "done"
        found = cells(ready)
    assert once_each(project.asked)
    assert len(project.asked) == 40
    assert project.most == 8
    assert found["largest"]["metrics"]["em"]["mean"] == 19 / 20
    assert found["cheapest"]["metrics"]["em"]["mean"] == 9 / 20
    assert found["largest"]["raw_cost"]["mean"] == pytest.approx(19 * 10 * 100 / 20)
    assert found["largest"]["share"] == {"Large": 1.0}


def test_a_call_that_fails_is_data(project: Project) -> None:
    with evaluation("largest") as ready:
        ready.run()
        found = cells(ready)["largest"]
    (row,) = [row for row in rows(Path("run")) if row.task_id == "q3"]
    assert (row.answer, row.metrics, row.failed) == (None, {"em": 0.0, "f1": 0.0}, 1)
    assert "the line is dead" in (trajectory(Path("run"), row.file, row.line).calls[0].error or "")
    assert (found["no_answer"], found["failed_calls"], found["status"]) == (0.05, 1, "run")


def test_each_seed_is_a_sample_and_what_is_there_is_not_asked_again(project: Project) -> None:
    with evaluation("largest", seeds=[0, 7], limit=3) as ready:
        ready.run()
    assert sorted(project.asked) == [("Large", f"q{n}", seed) for n in range(3) for seed in (0, 7)]
    with evaluation("largest", seeds=[0, 7], limit=3) as again:
        assert (again.done, again.most_usd) == (6, 0.0)
        assert again.run() == "done"
        assert cells(again)["largest"]["n"] == 3
    assert len(project.asked) == 6


def test_progress_says_what_is_done_spent_and_to_come(project: Project) -> None:
    seen: list[Progress] = []
    with evaluation("largest", limit=3) as ready:
        assert ready.most_usd > 3 * 10 * 100 / 1e6
        ready.run(seen.append)
    assert [(one.done, one.total) for one in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1].spent_usd == pytest.approx(3 * 10 * 100 / 1e6)
    assert (seen[0].to_come_usd, seen[-1].to_come_usd) == (pytest.approx(2 * seen[0].spent_usd), 0)


def test_a_budget_stops_it_and_a_higher_one_goes_on(project: Project) -> None:
    a_question = 10 * 100 / 1e6
    bound = 10 * 512 / 1e6  # what is reserved for a question
    with evaluation("largest", concurrency=4, max_cost=5 * a_question + bound) as ready:
        assert ready.run() == "budget"
        assert 5 <= ready.done < 20
        assert ready.spent_usd <= 5 * a_question + bound
        assert cells(ready)["largest"]["note"].startswith(f"{ready.done} of 20 rollouts so far")
        done = ready.done
    with evaluation("largest", max_cost=1.0) as more:
        assert more.spent_usd == pytest.approx(sum(row.cost_usd for row in rows(Path("run"))))
        assert (more.done, more.run(), more.done) == (done, "done", 20)
    assert once_each(project.asked)


def test_a_budget_that_many_share_still_lets_one_after_another_through(project: Project) -> None:
    """Sixteen questions reserve more than there is; set aside is not spent, so that more than one finishes."""
    with evaluation("largest", concurrency=16, limit=6, max_cost=10 * 512 * 1.9 / 1e6) as ready:
        assert ready.run() == "done"
    assert once_each(project.asked)


def test_a_rollout_that_the_budget_cuts_off_is_asked_again_and_its_cost_counts(project: Project) -> None:
    """The policy's model is paid for before its member is refused."""
    router = {"name": "router_r1", "grammar": "router_r1", "model": "spends", "pool": "dear"}
    with evaluation(router, limit=1, max_cost=0.1) as ready:
        assert ready.run() == "budget"
        spent = ready.spent_usd
    assert (list(rows(Path("run"))), project.asked) == ([], [])
    with evaluation(router, limit=1, max_cost=1.0) as more:
        assert more.spent_usd == pytest.approx(spent)
        assert spent > 0
        assert more.run() == "done"


def test_a_rollouts_own_budget_is_its_own_result(project: Project) -> None:
    with evaluation("largest", limit=2, limits={"max_cost_usd": 1e-9}, max_cost=1.0) as ready:
        assert ready.run() == "done"
    assert [row.stop for row in rows(Path("run"))] == ["budget", "budget"]
    assert project.asked == []


def test_what_is_not_recorded_is_not_run(project: Project) -> None:
    with evaluation({"name": "largest", "pool": "taped"}, "cheapest") as ready:
        ready.run()
        found = cells(ready)
    assert found["largest"]["latency"]["p50"] is None
    assert found["cheapest"]["latency"]["p50"] > 0
    assert found["largest"]["status"] == "not run"
    assert "16 of 20 calls were for replies that are not recorded" in found["largest"]["note"]
    assert found["cheapest"]["status"] == "run"


def test_one_policy_twice_under_two_labels_with_options_of_their_own(project: Project) -> None:
    small = {"name": "largest", "label": "by price", "options": {"by": "price"}, "pool": ["mine", "taped"]}
    with evaluation("largest", small, limit=4) as ready:
        ready.run()
        found = ready.summarise()["cells"]
    assert [(cell["policy"], cell["pool"]) for cell in found] == [
        ("largest", "mine"),
        ("by price", "mine"),
        ("by price", "taped"),
    ]
    assert {row.notes[0].split(":")[0] for row in rows(Path("run"))} == {"largest by active", "largest by price"}


def test_the_policys_own_tokens_are_counted_apart(project: Project) -> None:
    with evaluation({"name": "router_r1", "grammar": "router_r1"}, limit=1) as ready:
        ready.run()
        cell = cells(ready)["router_r1"]
    assert cell["calls"]["mean"] == 1.0
    assert cell["members_usd"]["mean"] == pytest.approx(10 * 100 / 1e6)
    assert 0 < cell["policy_usd"]["mean"] < 100 / 1e6


@pytest.mark.parametrize(
    ("policy", "evaluate", "message"),
    [
        ("larges", {}, "there is no policy 'larges'; did you mean 'largest'"),
        ({"name": "largest", "options": {"by": "age"}}, {}, "policy 'largest': largest: no measure 'age'"),
        ("largest", {"pool": "min"}, "no pool is called 'min'; did you mean 'mine'"),
        ("largest", {"metrics": ["e"]}, "there is no metric 'e'"),
        ({"name": "direct", "model": "say"}, {}, "no model is called 'say'"),
    ],
)
def test_a_fault_of_the_set_up_is_found_before_anything_is_asked(
    project: Project, policy: Any, evaluate: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        evaluation("cheapest", policy, **evaluate)
    assert message in str(error.value)
    assert project.asked == []


def test_a_model_that_cannot_be_made_ends_it_and_what_was_done_stays(project: Project) -> None:
    with evaluation("largest", {"name": "direct", "model": "absent"}, limit=2) as ready:
        with pytest.raises(ConfigError, match=r"policy 'direct': .*no-such-model"):
            ready.run()
        assert ready.done == 2


def test_changed_questions_are_refused(project: Project) -> None:
    with evaluation("largest", limit=2) as ready:
        ready.run()
    questions = Path("questions.jsonl")
    questions.write_text(questions.read_text().replace("Number 1?", "Number one?"))
    with pytest.raises(ConfigError, match=r"datasets\.ours\.hash"):
        evaluation("largest", limit=2)


def test_a_kill_counts_as_much_as_what_was_under_way(project: Project) -> None:
    with evaluation("largest", limit=2, concurrency=5) as ready:
        ready.run()
        spent = ready.spent_usd
    Path("run/running").touch()
    for _ in range(2):  # counted once
        with evaluation("largest", limit=2, concurrency=5) as again:
            assert again.spent_usd == pytest.approx(spent + 5 * spent / 2)


def test_every_rollout_is_forgotten_once_it_is_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is alive at once goes by the questions under way, and not by those done."""
    import gc

    from antiphon.types import Trajectory

    def trajectories() -> int:
        gc.collect()
        return sum(type(thing) is Trajectory for thing in gc.get_objects())

    alive: list[int] = []
    others = trajectories()  # those of tests that ran in this process before

    def count(progress: Progress) -> None:
        if progress.done % 10 == 0:
            alive.append(trajectories() - others)

    with evaluation("largest", "cheapest", "random", concurrency=4) as ready:
        ready.run(count)
    assert len(alive) == 6
    assert 0 < max(alive) <= 2 * 4 + 2
