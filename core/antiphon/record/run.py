"""Asks every member every question, many calls at once, and keeps each reply before it asks for the next."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from antiphon.answers import short_answer
from antiphon.contracts import CallContext
from antiphon.errors import ConfigError
from antiphon.money import CHARS_PER_TOKEN, Budget
from antiphon.record.rows import Key, Row, Totals, read_row, row_of

if TYPE_CHECKING:
    from antiphon.contracts import MemberView, Metric
    from antiphon.pool import Pool
    from antiphon.record.journal import Journal
    from antiphon.types import Call, Outcome, Task

GIVE_UP_AFTER = 20
"""Calls of one member that fail in a row before it is left alone for the rest of the run."""

ABOUT_THE_QUESTION: frozenset[Outcome] = frozenset({"bad_request", "not_recorded"})
"""Failures that say nothing about how the next question will fare."""


class Recorder:
    """One run over a file of replies; what the file has is not asked again.

    Args:
        pool: whom to ask; the members' own sampling says at which temperature.
        journal: the open file.
        tasks: the questions, each with its dataset's name.
        samples: how often each question is put to each member.
        metrics: the first gives `score`.
        temperature: what the members' sampling says, to be noted in each row; None: their own.
        max_cost_usd: USD for all that is in the file and all that is still to come.
        concurrency: most calls at once. Each member has an equal share, so that a slow one holds up no other.

    Attributes:
        done: what of this run's questions the file has.
        totals: by member, over what of this run's questions the file has.
        failed: what was tried and has no reply yet, and why.
        gave_up: members left alone because they failed too often in a row, and the last reason.
        asked: calls of this run.
        spent_usd: USD by the file, whatever it was spent for.
        too_dear: members of whom another call could cost more than is left of the budget.
        interrupted: `stop` was called.

    Raises:
        ConfigError: the file's replies were got in another way: another question under the same id, another
            temperature or metric.
    """

    def __init__(
        self,
        pool: Pool,
        journal: Journal,
        tasks: Sequence[Task],
        *,
        metrics: Sequence[Metric],
        samples: int = 1,
        temperature: float | None = None,
        max_cost_usd: float | None = None,
        concurrency: int = 16,
    ) -> None:
        for name, value in (("samples", samples), ("concurrency", concurrency)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value!r}")
        self.views: dict[str, MemberView] = {view.name: view for view in pool.members}
        self.members = tuple(self.views)
        self.tasks, self.samples = tuple(tasks), samples
        self._most_usd = {view.name: _most_usd(view, self.tasks) for view in pool.members}
        self._pool, self._journal, self._metrics = pool, journal, tuple(metrics)
        self._temperature, self._concurrency = temperature, concurrency
        self.done: set[Key] = set()
        self.totals = {member: Totals() for member in self.members}
        self.failed: dict[Key, Outcome] = {}
        self.gave_up: dict[str, str] = {}
        self.asked = self.in_flight = 0
        self.spent_usd = 0.0
        self.too_dear: set[str] = set()
        self.interrupted = False
        self._in_a_row: Counter[str] = Counter()
        self._left = Counter({member: len(self.tasks) * samples for member in self.members})
        self._settled = asyncio.Event()
        self._read()
        self.spent_before_usd = self.spent_usd
        self._budget = Budget(None if max_cost_usd is None else max(0.0, max_cost_usd - self.spent_usd))

    @property
    def total(self) -> int:
        return len(self.members) * len(self.tasks) * self.samples

    @property
    def left(self) -> int:
        """Calls still without a reply."""
        return self.total - len(self.done)

    @property
    def most_to_come_usd(self) -> float:
        """USD if every reply still missing were as long as it may be, and no call failed."""
        return sum(self._left[member] * self._most_usd[member] for member in self.members)

    @property
    def to_come_usd(self) -> float:
        """USD to expect: by what each member's replies have cost so far, or the most where it has none."""
        expected = 0.0
        for member in self.members:
            mean = self.totals[member].mean_cost_usd
            expected += self._left[member] * (self._most_usd[member] if mean is None else mean)
        return expected

    def stop(self) -> None:
        """Ask nothing more; calls in flight come to their ends and are kept."""
        self.interrupted = True

    async def run(self, changed: Callable[[], None] = lambda: None) -> None:
        """Ask what is missing, and return when nothing more can be had now: `left` says whether all is there.

        Args:
            changed: called when a call has come to its end.

        Raises:
            ConfigError: the file cannot be written.
        """
        gate = asyncio.Semaphore(self._concurrency)
        try:
            async with asyncio.TaskGroup() as group:
                for member in self.members:
                    todo = self._todo(member)
                    for _ in range(self._share(member)):
                        group.create_task(self._work(member, todo, gate, changed))
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None
        finally:
            await self._journal.drain()

    # ---- what the file has ----------------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """What the file has of this run's questions, members and samples, failures included, in the order written.

        Raises:
            ConfigError: a line does not hold, or was got in another way.
        """
        return (row for row, wanted in self._all_rows() if wanted)

    def _read(self) -> None:
        for row, wanted in self._all_rows():
            self.spent_usd += row.cost_usd
            if wanted:
                self._count(row)

    def _all_rows(self) -> Iterator[tuple[Row, bool]]:
        """Every row, and whether it is of this run."""
        tasks = {(task.dataset or "", task.id): task for task in self.tasks}
        for number, data in self._journal.rows():
            where = f"{self._journal.path}, line {number}"
            row = read_row(data, where)
            task = tasks.get((row.dataset, row.question_id))
            if task is None or row.llm not in self.totals or row.sample >= self.samples:
                yield row, False
            else:
                self._check(row, task, where)
                yield row, True

    def _check(self, row: Row, task: Task, where: str) -> None:
        if row.question != task.question:
            raise ConfigError(
                f"{where}: question {row.question_id!r} of {row.dataset!r} is another one there; name another file"
            )
        metric = self._metrics[0].name
        if row.temperature != self._temperature or row.metric != metric:
            there = f"temperature {_shown(row.temperature)} and metric {row.metric}"
            raise ConfigError(
                f"{where}: it was recorded with {there}, and now it would be temperature {_shown(self._temperature)} "
                f"and metric {metric}; go on as it was begun, or record into another file"
            )

    def _count(self, row: Row) -> None:
        self.totals[row.llm].add(row)
        if not row.kept:
            self.failed[row.key] = row.outcome
        elif row.key not in self.done:
            self.done.add(row.key)
            self.failed.pop(row.key, None)
            self._left[row.llm] -= 1

    # ---- asking ---------------------------------------------------------------------------------------------------

    def _todo(self, member: str) -> Iterator[tuple[Task, int]]:
        for task in self.tasks:
            for sample in range(self.samples):
                if (task.dataset or "", task.id, member, sample) not in self.done:
                    yield task, sample

    def _share(self, member: str) -> int:
        """How many of a member's calls may be under way: no more than its endpoint takes, since calls that wait there
        would use up their time."""
        equal = -(-self._concurrency // len(self.members))
        limit = self.views[member].descriptor.endpoints[0].concurrency
        return equal if limit is None else min(equal, limit)

    async def _work(
        self, member: str, todo: Iterator[tuple[Task, int]], gate: asyncio.Semaphore, changed: Callable[[], None]
    ) -> None:
        for task, sample in todo:
            async with gate:
                if member in self.gave_up:
                    return
                call = await self._ask(member, task, sample)
                if call is None:
                    return
                await self._keep(call, task, sample)
            changed()

    async def _ask(self, member: str, task: Task, sample: int) -> Call | None:
        """The call; None where it is not to be made: interrupted, or no money for it, though nobody else has reserved
        any."""
        context = CallContext(task.id, task.question, task.dataset, "record", sample=sample)
        while not self.interrupted and member not in self.too_dear:
            settled = self._settled
            self.in_flight += 1
            try:
                call = await self._pool.ask(member, short_answer(task), context=context, budget=self._budget)
            finally:
                self.in_flight -= 1
            if call.outcome != "over_budget" or call.attempts:
                self.asked += 1
                self._wake()
                return call
            if settled.is_set():
                continue  # some money has come back meanwhile
            if self.in_flight == 0:
                self.too_dear.add(member)
                self._wake()
            else:
                await settled.wait()
        return None

    def _wake(self) -> None:
        """Tell those who wait for money that there may be some, or that none will come."""
        self._settled.set()
        self._settled = asyncio.Event()

    async def _keep(self, call: Call, task: Task, sample: int) -> None:
        row = row_of(call, task, sample, self._metrics, dataset=task.dataset or "", temperature=self._temperature)
        if call.attempts:  # nothing was sent otherwise
            await self._journal.write(row.model_dump(mode="json"))
            self.spent_usd += row.cost_usd
            self._count(row)
        else:
            self.failed[row.key] = row.outcome
        if row.kept:
            self._in_a_row[row.llm] = 0
        elif row.outcome not in ABOUT_THE_QUESTION:
            self._in_a_row[row.llm] += 1
            if self._in_a_row[row.llm] >= GIVE_UP_AFTER:
                self.gave_up.setdefault(row.llm, f"{row.outcome}: {row.error}")


def _most_usd(view: MemberView, tasks: Sequence[Task]) -> float:
    """USD of one call whose reply is as long as it may be; the question at its mean length."""
    if view.quote is None or not tasks:
        return 0.0
    sent = sum(len(message.content) for task in tasks for message in short_answer(task)) / len(tasks)
    inputs = (view.quote.input or 0.0) * sent / CHARS_PER_TOKEN
    return (inputs + view.quote.output * view.descriptor.max_output_tokens) / 1e6


def _shown(temperature: float | None) -> str:
    return "as the members have it" if temperature is None else f"{temperature:g}"
