"""C2MAB-V: a cost-aware combinatorial bandit that learns whom to ask while it serves (Dai et al., arXiv 2405.16587)."""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from antiphon.contracts import Metric
from antiphon.errors import ConfigError, did_you_mean
from antiphon.names import fold
from antiphon.rollout import Rollout
from antiphon.types import Call, Task

from . import _texts
from ._bandit import REWARDS, Bandit
from ._decision import TYPICAL_TOKENS, Usd, checked_usd, expected_costs

VERSION = 1


class C2MABV:
    """Asks the set of members that is best by upper confidence bounds of rewards and lower ones of costs, and learns
    from each reply, by the task's golden answers, and from what it cost. Without golden answers it learns costs alone.

    Args:
        state: the file that holds what it has learnt; made when first needed, replaced as a whole after every question,
            and shared by processes that serve the same pool.
        metric: judges a reply.
        most: members a set has, at most. Their answers are voted on, by mean reward.
        reward: what a set is worth: `any` (one good reply is enough), `sum`, or `all` (every reply has to be good).
        explore: factor of the confidence radius.
        budget_usd: USD a question, on average.
        usd_per_point: USD a question that one more point of reward (0.01) is worth; in place of a budget.

    Raises:
        ConfigError: a setting does not hold; when run: the state cannot be read or written, or, with a budget or
            `usd_per_point`, members have no price.
    """

    name = "c2mabv"

    def __init__(
        self,
        *,
        state: str,
        metric: str = "em",
        most: int = 1,
        reward: str = "any",
        explore: float = 1.0,
        budget_usd: float | None = None,
        usd_per_point: float | None = None,
    ) -> None:
        from antiphon.registry import default_registry

        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigError(f"policy c2mabv: most is a whole number of at least 1, got {most!r}")
        if reward not in REWARDS:
            raise ConfigError(f"policy c2mabv: no reward {reward!r}{did_you_mean(reward, REWARDS)}")
        if not 0 <= explore < math.inf:
            raise ConfigError(f"policy c2mabv: explore is a number of at least 0, got {explore!r}")
        if budget_usd is not None and (usd_per_point is not None or not 0 <= budget_usd < math.inf):
            raise ConfigError(
                f"policy c2mabv: budget_usd is USD a question, at least 0, and stands in place of usd_per_point; "
                f"got {budget_usd!r} and {usd_per_point!r}"
            )
        self._file = Path(state).expanduser()
        self._metric: Metric = default_registry().metric(metric)
        self._most, self._worth, self._explore = most, REWARDS[reward], explore
        self._budget = budget_usd
        self._usd: Usd = checked_usd(usd_per_point, self.name)
        self._flying: Counter[str] = Counter()  # questions under way in this process, by member

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        bandit = await asyncio.to_thread(read, self._file)
        chosen = self._choose(bandit, task, rollout)  # counted before any other question chooses: nothing is awaited
        self._flying.update(chosen)
        try:
            messages = _texts.short_answer(task)
            calls = await asyncio.gather(*(rollout.ask(name, task.question, messages=messages) for name in chosen))
            bandit = await asyncio.to_thread(self.learn, task, calls)
        finally:
            self._flying.subtract(chosen)
        return self._vote(calls, bandit)

    def choose(self, task: Task, rollout: Rollout) -> tuple[str, ...]:
        """The members to ask."""
        return self._choose(read(self._file), task, rollout)

    def _choose(self, bandit: Bandit, task: Task, rollout: Rollout) -> tuple[str, ...]:
        pool = rollout.pool
        scale = 0.0
        if self._budget is not None or self._usd is not None:
            usual = dict.fromkeys((view.name for view in pool), TYPICAL_TOKENS)
            scale = max(expected_costs(pool, usual, task.question, self.name).values())
        return bandit.choose(
            [view.name for view in pool],
            min(self._most, len(pool)),
            self._worth,
            self._explore,
            scale,
            self._budget,
            self._usd,
            rollout.random,
            self._flying,
        )

    def learn(self, task: Task, calls: Sequence[Call]) -> Bandit:
        """Take in what the calls brought; when it returns, it is on disk. A call that failed is a reward of 0."""
        asked = {call.member: (self._reward(call, task), call.cost_usd) for call in calls}
        with changing(self._file) as bandit:
            bandit.learn(asked)
        return bandit

    def _reward(self, call: Call, task: Task) -> float | None:
        if not call.ok:
            return 0.0
        answer = _texts.answer_span(call.reply or "")
        if task.golden_answers is None:
            return None
        return 0.0 if answer is None else float(self._metric(answer, task.golden_answers))

    def _vote(self, calls: Sequence[Call], bandit: Bandit) -> str | None:
        """The answer of the greatest sum of mean rewards; answers that fold alike are one."""
        votes: dict[str, float] = defaultdict(float)
        said: dict[str, str] = {}
        for call in calls:
            answer = _texts.answer_span(call.reply or "") if call.ok else None
            if answer is not None:
                arm = bandit.arms.get(call.member)
                said.setdefault(fold(answer), answer)
                votes[fold(answer)] += arm.rewards / arm.judged if arm is not None and arm.judged else 0.5
        return said[max(votes, key=lambda key: votes[key])] if votes else None


# ---- the state ----------------------------------------------------------------------------------------------------


def read(file: Path) -> Bandit:
    """What has been learnt; nothing where the file is not there.

    Raises:
        ConfigError: it is no state, or of another version.
    """
    try:
        data = json.loads(file.read_text("utf-8"))
        if data["antiphon_bandit"] != VERSION:
            raise ConfigError(f"{file} is of another version of bandits' states; name a new file")
        return Bandit.from_json(data)
    except FileNotFoundError:
        return Bandit()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} holds no bandit's state ({error}); name a new file") from None


@contextmanager
def changing(file: Path) -> Iterator[Bandit]:
    """The state, to be changed and then written whole; one process and thread at a time.

    Raises:
        ConfigError: it cannot be read or written.
    """
    import fcntl

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{file}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            bandit = read(file)
            yield bandit
            _replace(file, json.dumps({"antiphon_bandit": VERSION, **bandit.to_json()}))
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from None


def _replace(file: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}-", delete=False) as new:
        new.write(text)
        new.flush()
        os.fsync(new.fileno())
    os.replace(new.name, file)
