"""Demonstrations: what a teacher says, put through the real rollout, as examples for supervised fine-tuning.

The teacher speaks in the model's place; policy, pool, grammar, template and limits are those of any rollout, so that
what is learnt is, token for token, what the policy will read and say.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from antiphon.contracts import Capabilities, Chunk, Encoded, GenerationRequest, MemberView
from antiphon.errors import ConfigError
from antiphon.generators._chat import Chat, find_stop
from antiphon.money import Budget
from antiphon.rollout import Rollout
from antiphon.train.environment import Environment
from antiphon.train.estimate import Estimate, played
from antiphon.train.sft import Example
from antiphon.train.start import check_start
from antiphon.types import Call, Finish, Message, Task, Trajectory, clean

if TYPE_CHECKING:
    from antiphon._setup import Setup
    from antiphon.contracts import AsksMembers, Metric
    from antiphon.train.prepare import Prepared


class Teacher(Protocol):
    """What to say next: all of one turn, like `<think>…</think><search>Atlas: capital of Peru</search>`."""

    def __call__(self, task: Task, members: Sequence[MemberView], calls: Sequence[Call]) -> str:
        """Must be pure.

        Args:
            members: as the policy's prompt shows them.
            calls: what has been asked so far, with the replies, in the order of their ends.
        """
        ...


def golden_answer(task: Task, members: Sequence[MemberView], calls: Sequence[Call]) -> str:
    """The teacher of policies whose model says the answer alone: `sft`, and readers of a reply."""
    return (task.golden_answers or ("",))[0]


@dataclass(frozen=True, slots=True)
class Demonstrated:
    """What became of a teacher's demonstrations.

    Attributes:
        examples: one for each context in which the teacher spoke, in the order of the tasks.
        trajectories: the demonstrations that were kept, in the same order.
        dropped: why -> how many were not: `wrong` (answer), `malformed`, or how the rollout stopped.
        error: the first error among them.
        spent_usd: on members.
    """

    examples: tuple[Example, ...]
    trajectories: tuple[Trajectory, ...]
    dropped: Mapping[str, int]
    error: str | None = None
    spent_usd: float = 0.0


async def demonstrate(
    prepared: Prepared,
    chat: Chat,
    *,
    on_bound: Callable[[Estimate], None] = lambda most: None,
    on_played: Callable[[int, int], None] = lambda done, total: None,
) -> Demonstrated:
    """The demonstrations that a spec asks for, with its pool drawn as for the rollouts before the first step.

    `train.max_cost_usd` holds for them: one that it ends is dropped as `budget`.

    Args:
        chat: of the model that is to learn from them.
        on_bound: told the most that they can take, before anybody is asked.
        on_played: told how many of how many have been played.

    Raises:
        ConfigError: the spec asks for none, its teacher is not there, nothing that it said can be learnt from, or the
            weights that would learn it are of another grammar or base.
    """
    spec = prepared.spec
    wanted = spec.demonstrations
    if wanted is None:
        raise ConfigError("the spec has no table [demonstrations]; say who teaches: teacher = 'module:attr'")
    teacher = teacher_of(wanted.teacher)
    tasks = prepared.tasks.step(1, min(wanted.tasks, len(prepared.tasks.tasks)), spec.train.seed)
    budget = Budget(spec.train.max_cost_usd)
    async with AsyncExitStack() as resources:
        setup = prepared.setup(Speaker(chat, str), resources)
        check_start(spec.model, setup)
        environment = Environment(setup.pool, spec.environment.randomise, seed=spec.train.seed)
        on_bound(played(setup, len(tasks), spec.train.max_cost_usd))
        trajectories = await spoken(
            setup, chat, teacher, tasks, environment.pool, seed=spec.train.seed, budget=budget, on_played=on_played
        )
    found = kept(trajectories, prepared.registry.metric("em") if wanted.correct else None)
    if not found.examples:
        why = f" ({found.error})" if found.error else ""
        raise ConfigError(
            f"none of {len(tasks)} demonstrations of {wanted.teacher} can be learnt from: {dict(found.dropped)}{why}; "
            "mend the teacher, or let correct = false keep wrong ones"
        )
    return replace(found, spent_usd=budget.spent_usd)


async def spoken(
    setup: Setup,
    chat: Chat,
    teacher: Teacher,
    tasks: Sequence[Task],
    pool_for: Callable[[Task, int], AsksMembers],
    *,
    seed: int = 0,
    budget: Budget | None = None,
    concurrency: int = 32,
    on_played: Callable[[int, int], None] = lambda done, total: None,
) -> list[Trajectory]:
    """One trajectory of each task, in their order, spoken by the teacher; the same at every call if the members are."""
    gate, played = asyncio.Semaphore(concurrency), 0

    async def one(task: Task) -> Trajectory:
        nonlocal played
        async with gate:
            pool, calls = pool_for(task, 0), list[Call]()
            rollout = Rollout(
                task,
                pool,
                Speaker(chat, lambda: teacher(task, pool.members, calls)),
                limits=setup.limits,
                budget=budget,
                seed=seed,
                on_event=lambda event: None if event.call is None else calls.append(event.call),
                versions=setup.versions,
                id=f"demonstration-{task.id}",
            )
            trajectory = await rollout.run(setup.policy)
        played += 1
        on_played(played, len(tasks))
        return trajectory

    return list(await asyncio.gather(*(one(task) for task in tasks)))


def kept(trajectories: Sequence[Trajectory], metric: Metric | None) -> Demonstrated:
    """Those to learn from: ended by an answer and, where a metric is given, well-formed and fully right by it."""
    dropped, good = Counter[str](), list[Trajectory]()
    for trajectory in trajectories:
        fault = _fault(trajectory, metric)
        if fault is None:
            good.append(trajectory)
        else:
            dropped[fault] += 1
    examples = tuple(example for trajectory in good for example in examples_of(trajectory))
    error = next((trajectory.error for trajectory in trajectories if trajectory.stop == "error"), None)
    return Demonstrated(examples, tuple(good), dict(dropped), error)


def examples_of(trajectory: Trajectory) -> list[Example]:
    """One for each context in which the model spoke; all that it said is learnt, trainable by rollouts or not.

    Raises:
        ConfigError: a span has no token ids.
    """
    examples = []
    for context in trajectory.contexts:
        ids, mask = list[int](), list[int]()
        for segment in context:
            if segment.token_ids is None:
                raise ConfigError(f"demonstration {trajectory.id!r} has a {segment.kind} span without token ids")
            ids += segment.token_ids
            mask += [int(segment.kind == "policy")] * len(segment.token_ids)
        if any(mask):
            examples.append(Example(tuple(ids), tuple(mask)))
    return examples


def teacher_of(name: str) -> Teacher:
    """The teacher that `module:attr` names.

    Raises:
        ConfigError: there is none.
    """
    module, _, attr = name.partition(":")
    try:
        found = getattr(import_module(module), attr)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"teacher {name!r} cannot be imported ({error}); write module:attr") from error
    if not callable(found):
        raise ConfigError(f"teacher {name!r} is not a function of task, members and calls")
    return cast(Teacher, found)


class Speaker:
    """A generator (`antiphon.contracts.Generator`) that says what it is told, in a real model's tokens and template."""

    name = "teacher"
    capabilities = Capabilities(logprobs=False)

    def __init__(self, chat: Chat, say: Callable[[], str]) -> None:
        self._chat, self._say = chat, say

    def open(self, messages: Sequence[Message]) -> Encoded:
        return self._chat.open(messages)

    def turn(self, text: str) -> Encoded:
        return self._chat.turn(text)

    def encode(self, text: str) -> Encoded:
        return self._chat.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._chat.decode(token_ids)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """The next turn, up to its first stop string; without one, with the token that ends a turn."""
        text = clean(self._say())
        stop = find_stop(text, request.stop, 0)
        finish: Finish = "end" if stop is None else "stop"
        ids = self._chat.encode(text[:stop]).token_ids or ()
        if stop is None:
            ids += () if self._chat.turn_end is None else (self._chat.turn_end,)
        if len(ids) > request.max_tokens:
            ids, finish = ids[: request.max_tokens], "length"
        yield Chunk(self._chat.decode(ids), ids, None, finish)

    async def aclose(self) -> None:
        """Nothing to free."""


def _fault(trajectory: Trajectory, metric: Metric | None) -> str | None:
    """Why a demonstration is not to be learnt from; None: it is."""
    if trajectory.stop != "answer":
        return trajectory.stop
    if metric is None:
        return None
    if trajectory.format_problems:
        return "malformed"
    golden = trajectory.task.golden_answers or ()
    return None if trajectory.answer is not None and metric(trajectory.answer, golden) == 1 else "wrong"
