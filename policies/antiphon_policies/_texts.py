"""What the built-in policies say to members and to the base model, and how they read what comes back."""

from __future__ import annotations

import re
from collections.abc import Sequence

from antiphon.answers import SHORT_ANSWER as SHORT_ANSWER
from antiphon.answers import answer_span as answer_span
from antiphon.answers import short_answer as short_answer
from antiphon.types import Call, Message, Task

MEMBER_PROMPT = """\
You are one of several experts that a coordinator consults over several rounds. It has split a larger task into small \
questions, and puts one of them to you. Answer it directly and add one or two sentences of explanation, or give facts \
that bear on it. If you can do neither, say so plainly and advise the coordinator to ask another expert. Keep to the \
question, be concise, and stay below 512 tokens."""

_DIRECT = """\
Answer the question with the answer alone, as short as it can be: no sentence, no explanation.

Question: {question}
Answer:"""

_CHAIN_OF_THOUGHT = """\
Answer the question. First think step by step. Then write a last line that begins with "Answer:" and holds the answer \
alone, as short as it can be.

Question: {question}"""

_PICK = """\
Below are language models and what each is good at. Choose the one that is most likely to answer the question \
correctly at a reasonable price. Reply with its name alone, exactly as it is written.

{members}

Question: {question}
Name:"""

_READ = """\
A language model was asked the question below. Read its reply, and answer the question with the answer alone, as short \
as it can be: no sentence, no explanation. The reply may be wrong or beside the point; then rely on what you know.

Reply of {member}:
{reply}

Question: {question}
Answer:"""

_DECOMPOSE = """\
Split the question below into the small questions that have to be answered before it can be, {most} at the most. Each \
must make sense to somebody who reads nothing else. Write one a line and nothing more. A question that needs no \
splitting is written once, as it is.

Question: {question}
Small questions:"""

_COMBINE = """\
To answer the question below, language models were asked small questions. Read their replies, and answer the question \
with the answer alone, as short as it can be: no sentence, no explanation. A reply may be wrong or beside the point; \
then rely on what you know.

{replies}

Question: {question}
Answer:"""

_PASSAGES = """\
Read the passages that a search brought up, and answer the question with the answer alone, as short as it can be: no \
sentence, no explanation. Where they do not help, rely on what you know.

{passages}

Question: {question}
Answer:"""

_VERIFY = """\
Decide whether the answer to the last question is right. Reply with one word, Correct or Incorrect.

Question: Which planet is closest to the sun?
Answer: Mercury
Verdict: Correct

Question: Who wrote the novel Emma?
Answer: Charlotte Brontë
Verdict: Incorrect

Question: How many sides does a hexagon have?
Answer: 8
Verdict: Incorrect

Question: {question}
Answer: {answer}
Verdict:"""

_PLACE = re.compile(r"\{(\w+)\}")
_ANSWER_LINE = re.compile(
    r"^\W*(?:the\s+)?(?:final\s+)?answer\W*?(?::|\bis\b)[ \t*]*(.*)$", re.IGNORECASE | re.MULTILINE
)


def direct(task: Task) -> list[Message]:
    return _prompt(_DIRECT, task)


def chain_of_thought(task: Task) -> list[Message]:
    return _prompt(_CHAIN_OF_THOUGHT, task)


def pick(task: Task, members: str) -> list[Message]:
    return _prompt(_PICK, task, members=members)


def read(task: Task, member: str, reply: str) -> list[Message]:
    return _prompt(_READ, task, member=member, reply=reply)


def decompose(task: Task, most: int) -> list[Message]:
    return _prompt(_DECOMPOSE, task, most=str(most))


def combine(task: Task, calls: Sequence[Call]) -> list[Message]:
    replies = (f"Small question: {call.query}\nReply of {call.member}:\n{call.reply}" for call in calls)
    return _prompt(_COMBINE, task, replies="\n\n".join(replies) or "No model replied.")


def passages(task: Task, found: str) -> list[Message]:
    return _prompt(_PASSAGES, task, passages=found)


def verify(task: Task, answer: str) -> list[Message]:
    return _prompt(_VERIFY, task, answer=answer)


def answer_line(text: str) -> str | None:
    """What stands on the last line that begins with `Answer:`, else the last line that is not empty."""
    found = [line.strip() for line in _ANSWER_LINE.findall(text) if line.strip()]
    lines = found or [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def _prompt(text: str, task: Task, **values: str) -> list[Message]:
    """Earlier turns, then the prompt. Filled in one pass: braces in a question or a reply stay as they are."""
    filled = _PLACE.sub(lambda match: {**values, "question": task.question}[match[1]], text)
    return [*task.messages, Message("user", filled)]
