"""The money of whole training runs: what each part has spent is known to the next, however it ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from antiphon.contracts import CallContext, Reply, Request
from antiphon.hookspecs import hookimpl
from antiphon.registry import Registry
from antiphon.rollout import Rollout
from antiphon.train.checkpoint import Checkpoints, load_state
from antiphon.train.spending import Spending
from antiphon.train.writers import read_rows
from antiphon.types import Task, Usage

pytest.importorskip("peft")

CENT = 0.01  # of each call: 100 tokens at USD 100 per million
VERDICT = 0.001  # 10 tokens

CONFIG = """
[pools.paid]
members = ["Scribe", "Critic"]

[limits]
turn_tokens = 4
member_tokens = 100
"""

SPEC = """
[train]
steps = 3
tasks = 2
samples = 2
writers = []

[data]
dataset = "arithmetic"
options = {{ n = 6 }}

[environment]
pool = "paid"

[policy]
name = "payer"

[model]
base = "{base}"
dtype = "float32"
threads = 1

[lora]
rank = 2

[reward]
alpha = 0.5

[validation]
every = 1
tasks = 2

[collapse]
format_ok = false
entropy = false
"""


class Paid:
    """A member that is paid for 100 tokens, a judge for 10; counts the questions it is asked."""

    asked = 0
    says = "7"

    def __init__(self, *, endpoint: Any, descriptor: Any) -> None:
        self.name = descriptor.name

    async def complete(self, request: Request, context: CallContext) -> Reply:
        if self.name == "Critic":
            return Reply(self.says, Usage(0, 10))
        Paid.asked += 1
        return Reply(f"a reply to {request.messages[-1].content}", Usage(0, 100))

    async def aclose(self) -> None: ...


class Payer:
    """Says something, and asks Scribe for the answer."""

    name = "payer"

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        await rollout.generate(rollout.context(task.question, trainable=True))
        return (await rollout.ask("Scribe", task.question)).reply


class Plugin:
    @hookimpl
    def antiphon_adapters(self) -> Mapping[str, Any]:
        return {"paid": Paid}

    @hookimpl
    def antiphon_policies(self) -> Mapping[str, Any]:
        return {"payer": Payer}

    @hookimpl
    def antiphon_descriptors(self) -> list[dict[str, Any]]:
        paid = {"description": "Is paid.", "adapter": "paid", "model": "m", "price": {"input": 0.0, "output": 100.0}}
        return [{"name": name, **paid} for name in ("Scribe", "Critic")]


class Listener:
    """Fails where it is told of a step, as a kill would."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at

    async def ready(self, setup: Any, done: int | None) -> None: ...

    def rolled(self, done: int, total: int) -> None: ...

    def step(self, row: Mapping[str, Any]) -> None:
        if row["step"] == self.fails_at:
            raise RuntimeError("killed")


@pytest.fixture
def spec(tiny_policy: Path, tmp_path: Path) -> Path:
    Paid.asked, Paid.says = 0, "7"
    (tmp_path / "antiphon.toml").write_text(CONFIG)
    (tmp_path / "run.toml").write_text(SPEC.format(base=tiny_policy))
    return tmp_path / "run.toml"


def train(spec: Path, *settings: str, resume: bool = False, fails_at: int | None = None) -> Any:
    from antiphon.train.prepare import prepare
    from antiphon.train.run import train
    from antiphon.train.spec import load_spec

    registry = Registry.load(only=[], local={"paid": Plugin()})
    prepared = prepare(load_spec(spec, settings), config_file=spec.parent / "antiphon.toml", registry=registry)
    return train(prepared, spec.parent / "out", resume=resume, listener=Listener(fails_at))  # type: ignore[arg-type]


def spent(spec: Path) -> dict[int, Any]:
    """Step -> cents spent by then, by the rows."""
    return {row["step"]: pytest.approx(row["spent_usd"] / CENT) for row in read_rows(spec.parent / "out")}


def test_a_steps_validation_is_in_its_row_and_known_to_the_next_part(spec: Path) -> None:
    ended = train(spec, "train.steps=2")
    assert spent(spec) == {0: 2, 1: 8, 2: 14}, "2 questions of a validation, 4 rollouts of a step"
    assert ended.spent_usd == pytest.approx(14 * CENT)
    assert train(spec, resume=True).spent_usd == pytest.approx(20 * CENT)
    assert spent(spec)[3] == 20
    assert Paid.asked == 20


def test_a_step_that_the_budget_ended_is_paid_once_and_enters_no_window(spec: Path) -> None:
    limited = ("train.max_cost_usd=0.10", "checkpoints.every=100")
    for resume in (False, True, True):
        ended = train(spec, *limited, resume=resume)
        assert (ended.end, ended.step, ended.spent_usd) == ("budget", 1, pytest.approx(10 * CENT))
        assert ended.why == "the next rollouts could cost more than is left of $0.1"
    assert Paid.asked == 10, "no part after the first had anything to spend"
    latest = Checkpoints(spec.parent / "out" / "checkpoints").latest
    assert latest is not None
    assert len(load_state(latest)["rewards"]["train"]["cost"]["window"]) == 4, "of step 1 alone"
    assert train(spec, "train.max_cost_usd=0.3", resume=True).spent_usd == pytest.approx(22 * CENT)


@pytest.mark.parametrize("by", ["its file", "the rows"])
def test_steps_after_the_last_checkpoint_are_paid_though_they_come_again(spec: Path, by: str) -> None:
    with pytest.raises(RuntimeError, match="killed"):
        train(spec, "checkpoints.every=100", fails_at=2)
    if by == "the rows":
        (spec.parent / "out" / "spent.json").unlink()
    train(spec, "checkpoints.every=100", resume=True)
    assert spent(spec)[1] == 14 + 6 + 6, "all of before, once more what a step costs, and step 1 again"
    assert spent(spec)[3] == 14 + 6 + 18


def test_every_kill_counts_and_a_jump_between_parts_is_no_dear_step(tmp_path: Path) -> None:
    part = Spending(tmp_path)
    for usd in (1.0, 4.0, 5.0):
        part.keep(usd)
    for usd in (8.0, 11.0):
        assert Spending(tmp_path, was_cut_off=True).usd == usd, "a part that could not begin has asked nobody"
        part = Spending(tmp_path, was_cut_off=True)
        part.keep(part.usd)
    part.keep(12.0)
    assert (Spending(tmp_path).usd, Spending(tmp_path).dearest_usd) == (12.0, 3.0)
    assert Spending(tmp_path, was_cut_off=True).usd == 15.0


def test_a_validation_that_the_budget_ended_is_not_recorded(spec: Path) -> None:
    ended = train(spec, "train.max_cost_usd=0.07")
    assert (ended.end, ended.step, ended.spent_usd) == ("budget", 1, pytest.approx(7 * CENT))
    first, last = read_rows(spec.parent / "out")
    assert first["val_em"] == 0
    assert not any(key.startswith("val_") for key in last)
    assert (spec.parent / "out" / "checkpoints" / "best").read_text().strip() == "step-000000"


def test_the_first_validation_may_end_the_run_too(spec: Path) -> None:
    ended = train(spec, "train.max_cost_usd=0.01")
    assert (ended.end, ended.step, ended.spent_usd) == ("budget", 0, pytest.approx(CENT))
    assert read_rows(spec.parent / "out") == []


JUDGED = 'reward={ terms = [{ term = "judge", options = { member = "Critic", otherwise = 0.5 } }] }'


@pytest.mark.parametrize("says", ["7", "no verdict"])
def test_judging_beyond_the_limit_ends_the_run_after_its_step(spec: Path, says: str) -> None:
    Paid.says = says
    one = ("train.tasks=1", "train.samples=1", "algorithm.algorithm=ppo", "validation.every=3", "validation.tasks=1")
    given = ("train.max_cost_usd=0.0215", JUDGED, *one)
    ended = train(spec, *given)
    assert (ended.end, ended.step, ended.spent_usd) == ("budget", 1, pytest.approx(2 * (CENT + VERDICT)))
    assert ended.why == "$0.022 is spent, more than the $0.0215 of train.max_cost_usd"
    again = train(spec, *given, resume=True)
    assert (again.end, again.step, again.spent_usd) == ("budget", 1, ended.spent_usd)


def test_a_judge_that_gives_no_verdict_is_paid_all_the_same(spec: Path) -> None:
    from antiphon.errors import GeneratorError

    Paid.says = "no verdict"
    with pytest.raises(GeneratorError, match=r"step 0: 2 of 2 rollouts failed.*Critic gave no verdict"):
        train(spec, JUDGED.replace(", otherwise = 0.5", ""))
    assert Spending(spec.parent / "out").usd == pytest.approx(2 * (CENT + VERDICT))
