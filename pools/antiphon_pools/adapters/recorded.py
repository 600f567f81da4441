"""The `recorded` adapter: replays what LLMs really answered, from files, so that a pool runs without a key or a bill.

A recorded reply belongs to a question and an LLM. It is found by the *task's* question, whatever the query says: a
policy that asks something else about the same question gets the same reply. Only where the task's question is not
recorded is the query looked up as a question of its own. Where an LLM was asked several times, each sample of a task
gets a reply of its own.
"""

from __future__ import annotations

import asyncio
import glob
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import explain
from antiphon.errors import ConfigError, MemberError
from antiphon.names import fold
from antiphon.types import Usage, clean
from antiphon_pools.adapters._chat import usage_from
from antiphon_pools.adapters._options import (
    OncePerKey,
    Options,
    expand_path,
    in_thread,
    last_user_text,
    read_options,
    within,
)

if TYPE_CHECKING:
    from antiphon.descriptor import Descriptor, Endpoint

_files = OncePerKey()


class RecordedOptions(Options):
    """Attributes:
    path: a file, a glob, or a list of either; the first file that has a reply wins. `${NAME}` and `~` are expanded.
    """

    path: str | Annotated[tuple[str, ...], Field(min_length=1)]


class _Row(BaseModel):
    """One line of a recorded file; what else it has is left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    question: Annotated[str, Field(min_length=1)]
    llm: Annotated[str, Field(min_length=1)]
    response: str | None
    question_id: str | None = None
    dataset: str | None = None
    input_tokens: Annotated[int, Field(ge=0)] | None = None
    output_tokens: Annotated[int, Field(ge=0)] | None = None
    latency_s: Annotated[float, Field(ge=0)] | None = None
    sample: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class Record:
    """A reply as recorded; `text` is None where the source has none."""

    llm: str
    text: str | None
    input_tokens: int | None
    output_tokens: int | None
    latency_s: float | None


@dataclass(frozen=True, slots=True)
class Recording:
    """One file: its records by question, folded LLM name and sample; and which question each id stands for."""

    records: Mapping[str, Mapping[str, Mapping[int, Record]]]
    questions: Mapping[tuple[str, str], str]  # (folded dataset, id) -> question key


class RecordedAdapter:
    """Looks a reply up by the task's question, by its id and dataset, or by the query; the LLM by the endpoint's model,
    the member's name or an alias. Files are read once per process.

    An id counts only within its dataset, and only where it does not stand for a question in other words than the
    task's.

    Raises:
        ConfigError: no such file, or an unknown option; from the first call: a line that is no record.
    """

    replays = True
    """Says that how long a call takes is no property of the member, where no latency was recorded."""

    def __init__(self, *, endpoint: Endpoint, descriptor: Descriptor) -> None:
        options = read_options(RecordedOptions, endpoint, descriptor)
        self._member = descriptor.name
        self._names = tuple(dict.fromkeys(map(fold, (endpoint.model, descriptor.name, *descriptor.aliases))))
        patterns = (options.path,) if isinstance(options.path, str) else options.path
        self._paths = tuple(path for pattern in patterns for path in _paths(pattern, f"member {descriptor.name!r}"))

    async def complete(self, request: Request, context: CallContext) -> Reply:
        with within(request.timeout_s):
            async with asyncio.timeout(request.timeout_s):
                if all(_files.ready(path) for path in self._paths):
                    recordings = self._recordings()
                else:
                    recordings = await in_thread(self._recordings)
        record = self._find(recordings, context, last_user_text(request))
        text = clean(record.text or "")
        usage: Usage | None = None
        if record.input_tokens is not None or record.output_tokens is not None:
            usage = usage_from(record.input_tokens, record.output_tokens, request, text)
        if not text.strip():
            raise MemberError(
                "empty_response", f"{record.llm} gave an empty reply", usage=usage, served_model=record.llm
            )
        return Reply(text, usage, record.llm, latency_s=record.latency_s)

    async def aclose(self) -> None:
        """The records stay for the next pool of this process."""

    def _recordings(self) -> list[Recording]:
        return [_files.get(path, partial(read_recording, path)) for path in self._paths]

    def _find(self, recordings: list[Recording], context: CallContext, query: str) -> Record:
        """The first record with a text.

        Raises:
            MemberError: `not_recorded`; says what is missing.
        """
        known_question = without_text = False
        for key in _keys(recordings, context, query):
            for by_llm in (recording.records.get(key, {}) for recording in recordings):
                known_question = known_question or bool(by_llm)
                for samples in (by_llm[name] for name in self._names if name in by_llm):
                    said = [samples[number] for number in sorted(samples) if samples[number].text is not None]
                    if said:
                        return said[context.sample % len(said)]
                    without_text = True
        shown = f"question {_cut(context.question or query)!r}"
        if without_text:
            raise MemberError("not_recorded", f"{self._member}'s reply to {shown} was recorded without its text")
        if known_question:
            raise MemberError("not_recorded", f"{self._member} has no recorded reply to {shown}; other LLMs have")
        raise MemberError("not_recorded", self._unknown(recordings, context, shown))

    def _unknown(self, recordings: list[Recording], context: CallContext, shown: str) -> str:
        files = ", ".join(path.name for path in self._paths[:3]) + (", …" if len(self._paths) > 3 else "")
        for recording in recordings:
            if other := recording.questions.get(_id_of(context)):
                return f"{shown} is not recorded in {files}; there {context.task_id!r} is another one: {_cut(other)!r}"
        return f"{shown} is not recorded in {files}"


def _keys(recordings: list[Recording], context: CallContext, query: str) -> list[str]:
    """Keys of the questions to look for, the surest first."""
    by_id = [recording.questions.get(_id_of(context)) for recording in recordings]
    same = [key for key in by_id if key and (not context.question or _bare(key) == _bare(context.question))]
    asked = [question_key(text) for text in (context.question, query) if text]
    return list(dict.fromkeys([*asked[:1], *same, *asked[1:]] if context.question else [*same, *asked]))


def _id_of(context: CallContext) -> tuple[str, str]:
    return fold(context.dataset or ""), context.task_id


def _bare(question: str) -> str:
    """Letters and digits alone: two sources rarely punctuate alike."""
    return "".join(char for char in question_key(question) if char.isalnum())


def question_key(question: str) -> str:
    """What two spellings of one question share: NFKC, one space, no case, no final question mark."""
    folded = unicodedata.normalize("NFKC", question).casefold()
    return " ".join(folded.split()).rstrip("? ")


def read_recording(path: Path) -> Recording:
    """Read a file.

    Raises:
        ConfigError: names the file, the line and the field.
    """
    records: dict[str, dict[str, dict[int, Record]]] = {}
    questions: dict[tuple[str, str], str] = {}
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    row = _row(line, f"{path}, line {number}")
                    key = question_key(row.question)
                    record = Record(row.llm, row.response, row.input_tokens, row.output_tokens, row.latency_s)
                    samples = records.setdefault(key, {}).setdefault(fold(row.llm), {})
                    if samples.setdefault(row.sample, record).text is None:
                        samples[row.sample] = record
                    if row.question_id is not None:
                        questions.setdefault((fold(row.dataset or ""), row.question_id), key)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return Recording(records, questions)


def _row(line: str, where: str) -> _Row:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    try:
        return _Row.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: not a recorded reply: {explain(error, _Row)}") from None


def _paths(pattern: str, where: str) -> list[Path]:
    path = expand_path(pattern, where)
    found = (
        [path] if path.is_file() else [Path(match) for match in sorted(glob.glob(str(path))) if Path(match).is_file()]
    )
    if not found:
        raise ConfigError(f"{where}: {path}: no such file; path names JSONL files of recorded replies")
    return [file.resolve() for file in found]


def _cut(text: str) -> str:
    return text if len(text) <= 120 else text[:119] + "…"
