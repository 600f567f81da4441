"""A recorded reply as one JSON object: the schema of recorded pools, and what else is known of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from antiphon.answers import answer_span
from antiphon.contracts import Metric
from antiphon.descriptor import explain
from antiphon.errors import ConfigError
from antiphon.types import Call, Outcome, Task

FIRST_KEY = "question_id"

KEPT: frozenset[Outcome] = frozenset({"ok", "empty_response"})
"""Outcomes that are the member's own word on a question, paid for and never asked again; all others are tried again."""

Key = tuple[str, str, str, int]
"""Dataset, question id, member, sample."""


class Row(BaseModel):
    """One line of the file. `None` where something is not known.

    Attributes:
        llm: the member's name.
        response: None where the call failed.
        score: of the answer in the reply (`antiphon.answers.answer_span`) by `metric`; `scores`: by every metric.
        input_tokens, output_tokens: of the reply that was served, as the provider counted them.
        cost_usd: USD over all attempts.
        latency_s: seconds of the attempt that was answered.
        temperature: the one asked for; None: the member's own.
        attempts: how many requests it took.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    question_id: str
    dataset: str
    question: str
    golden_answers: tuple[str, ...] | None
    llm: str
    response: str | None
    score: float | None
    metric: str
    input_tokens: Annotated[int, Field(ge=0)] | None
    output_tokens: Annotated[int, Field(ge=0)] | None
    sample: Annotated[int, Field(ge=0)]
    cost_usd: Annotated[float, Field(ge=0)]
    latency_s: Annotated[float, Field(ge=0)] | None
    outcome: Outcome
    scores: dict[str, float] = Field(default_factory=dict)
    served_model: str | None = None
    truncated: bool = False
    attempts: int = 1
    temperature: float | None = None
    error: str | None = None

    @property
    def key(self) -> Key:
        return (self.dataset, self.question_id, self.llm, self.sample)

    @property
    def kept(self) -> bool:
        return self.outcome in KEPT


def read_row(data: Mapping[str, Any], where: str) -> Row:
    """A line of the file, checked.

    Raises:
        ConfigError: names the place and the field.
    """
    try:
        return Row.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: not a reply that `antiphon record` wrote: {explain(error, Row)}") from None


def row_of(
    call: Call, task: Task, sample: int, metrics: Sequence[Metric], *, dataset: str, temperature: float | None
) -> Row:
    """What is kept of a call. Token counts that the provider did not report are left out, not guessed."""
    last = call.attempts[-1] if call.attempts else None
    usage = None if last is None or last.usage is None or last.usage.estimated else last.usage
    reply = call.reply if call.ok else "" if call.outcome in KEPT else None
    scores: dict[str, float] = {}
    if reply is not None and task.golden_answers:
        answer = answer_span(reply) or ""
        scores = {metric.name: float(metric(answer, task.golden_answers)) for metric in metrics}
    return Row(
        question_id=task.id,
        dataset=dataset,
        question=task.question,
        golden_answers=task.golden_answers,
        llm=call.member,
        response=reply,
        score=scores.get(metrics[0].name),
        metric=metrics[0].name,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
        sample=sample,
        cost_usd=call.cost_usd,
        latency_s=None if last is None else last.latency_s,
        outcome=call.outcome,
        scores=scores,
        served_model=None if last is None else last.served_model,
        truncated=call.truncated,
        attempts=len(call.attempts),
        temperature=temperature,
        error=None if call.ok else call.error,
    )


@dataclass(slots=True)
class Totals:
    """Sums over the rows of one member; failed calls count in `cost_usd` alone."""

    replies: int = 0
    cost_usd: float = 0.0
    counted: int = 0
    output_tokens: int = 0
    scored: int = 0
    score: float = 0.0

    def add(self, row: Row) -> None:
        self.cost_usd += row.cost_usd
        if not row.kept:
            return
        self.replies += 1
        if row.output_tokens is not None:
            self.counted += 1
            self.output_tokens += row.output_tokens
        if row.score is not None:
            self.scored += 1
            self.score += row.score

    @property
    def mean_score(self) -> float | None:
        return self.score / self.scored if self.scored else None

    @property
    def mean_output_tokens(self) -> float | None:
        return self.output_tokens / self.counted if self.counted else None

    @property
    def mean_cost_usd(self) -> float | None:
        """USD that a reply took, failures on the way included."""
        return self.cost_usd / self.replies if self.replies else None
