"""`antiphon show`: a saved trajectory, readable: rounds, who was asked, what it cost, where time went."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, BinaryIO

import click

from antiphon.cli._options import json_option
from antiphon.cli._output import console, plural, print_json, safe, seconds, shorten, table, usd
from antiphon.cli._trajectories import documents, parsed
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from antiphon.types import Call, Trajectory, Turn, Usage

BAR, INDENT = 30, 10  # characters


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--index", type=click.IntRange(min=0), metavar="N", help="The Nth trajectory of the file, from 0.")
@click.option("--id", "wanted", metavar="ID", help="The trajectory whose id, or whose task's id, starts with this.")
@json_option
def show(file: BinaryIO, index: int | None, wanted: str | None, as_json: bool) -> None:
    """Show the trajectory in FILE (JSON lines as `antiphon ask --save` writes them, or one JSON object; "-": standard
    input).

    Of several, it lists all; pick one with --index or --id.
    """
    if index is not None and wanted is not None:
        raise click.UsageError("give --index or --id, not both")
    found, faults = _read(file, index, wanted)
    if not found and not faults:
        what = "is empty" if index is None and wanted is None else "holds no such trajectory; leave --index or --id out"
        raise ConfigError(f"{file.name} {what}; `antiphon ask --save FILE` writes one")
    if len(found) > 1:
        _list(found, as_json=as_json)
    elif found and as_json:
        trajectory = found[0][1]
        costs = {"cost_usd": trajectory.cost_usd, "members_cost_usd": trajectory.members_cost_usd}
        print_json({**json.loads(trajectory.to_json()), **costs})
    elif found:
        out = console()
        for line in _lines(found[0][1]):
            out.print(line)
    if faults:  # after what can be read: a line torn by a crash does not hide the others
        raise ConfigError(faults[0])


def _read(file: BinaryIO, index: int | None, wanted: str | None) -> tuple[list[tuple[int, Trajectory]], list[str]]:
    """The trajectories asked for, each with its place in the file, and the lines that are none."""
    found, faults = [], []
    for place, (number, line) in enumerate(documents(file)):
        if index is None or place == index:
            try:
                trajectory = parsed(line, file, number)
            except ConfigError as error:
                faults.append(str(error))
                continue
            if wanted is None or trajectory.id.startswith(wanted) or trajectory.task.id.startswith(wanted):
                found.append((place, trajectory))
    return found, faults


def _list(found: list[tuple[int, Trajectory]], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "index": place,
                "id": t.id,
                "task": t.task.id,
                "question": t.task.question,
                "policy": t.policy,
                "answer": t.answer,
                "stop": t.stop,
                "rounds": t.rounds,
                "cost_usd": t.cost_usd,
                "wall_s": t.timings.wall_s,
            }
            for place, t in found
        ]
        print_json({"trajectories": rows})
        return
    table(
        ("index", "id", "question", "policy", "answer", "cost", "time"),
        [
            (
                str(place),
                t.id[:8],
                shorten(t.task.question, 48),
                t.policy,
                f"({t.stop})" if t.answer is None else shorten(t.answer, 32),
                usd(t.cost_usd),
                seconds(t.timings.wall_s),
            )
            for place, t in found
        ],
    )
    click.echo(f"{len(found)} trajectories; show one with --index N or --id ID", err=True)


def _lines(t: Trajectory) -> Iterator[Text]:
    from rich.text import Text

    def field(name: str, value: str, style: str = "") -> Text:
        return Text.assemble((f"{name:<10}", "bold"), (safe(value), style))

    yield field("question", t.task.question)
    if t.answer is None:
        yield field("answer", f"none ({t.stop}{': ' + t.error if t.error else ''})", "yellow")
    else:
        yield field("answer", t.answer, "green")
    if t.task.golden_answers is not None:
        yield field("golden", " | ".join(t.task.golden_answers))
    yield field("policy", ", ".join(f"{name} {_version(value)}" for name, value in t.versions.items()) or t.policy)
    yield field("rounds", f"{t.rounds}; {plural(len(t.calls), 'call')}; stopped: {t.stop}")
    yield field("cost", f"{usd(t.cost_usd)} (members {usd(t.members_cost_usd)}, policy {usd(t.policy_cost_usd)})")
    yield field("tokens", f"policy {_tokens(t.policy_usage)}")
    yield _time(t, field("time", f"{seconds(t.timings.wall_s)}  "))
    if t.format_problems:
        yield field("format", ", ".join(t.format_problems), "yellow")
    for remark in t.notes:
        yield field("note", remark)
    steps = [(turn.started_s, _turn(turn, number)) for number, turn in enumerate(t.turns, start=1)]
    steps += [(call.started_s, _call(call)) for call in t.calls]
    for _, lines in sorted(steps, key=lambda step: step[0]):
        yield Text("")
        yield from lines


def _turn(turn: Turn, number: int) -> Iterator[Text]:
    from rich.text import Text

    context = f" (context {turn.context})" if turn.context else ""
    about = f"{turn.usage.output_tokens} tokens, {seconds(turn.latency_s)}"
    yield Text.assemble((f"turn {number}{context}", "bold cyan"), (f"  {about}", "dim"))
    action = turn.action
    if action is None and turn.thinking == turn.text:  # a generation without a grammar
        yield _indented("says", turn.text.strip())
        return
    if turn.thinking.strip():
        yield _indented("thinks", turn.thinking.strip())
    if action is None:
        yield _indented("stops", f"no action ({turn.finish}); it wrote: {turn.text.strip()}")
    elif action.kind == "route":
        late = "" if turn.executed else " (not carried out: after the last round)"
        yield _indented("asks", f"{action.member}: {action.query}{late}")
    elif action.kind == "answer":
        yield _indented("answers", action.text)
    else:
        yield _indented("invalid", f"{action.reason}: {action.detail}")
    if turn.problems:
        yield _indented("format", ", ".join(turn.problems))


def _call(call: Call) -> Iterator[Text]:
    from rich.text import Text

    about = f"  round {call.round}, {usd(call.cost_usd)}, {seconds(call.latency_s)}"
    usage = f", {_tokens(call.usage)}" if call.usage is not None else ""
    yield Text.assemble((f"{safe(call.member)}", "bold magenta"), (safe(about + usage), "dim"))
    yield _indented("asked", call.query)
    if call.reply is not None:
        yield _indented("replies", call.reply + (" [cut at its output limit]" if call.truncated else ""))
    if not call.ok:
        yield _indented("failed", f"{call.outcome}: {call.error or 'no reason given'}")
    if call.substituted:
        yield _indented("served", f"by {call.served_model}, another model than was asked")
    if len(call.attempts) > 1:
        for attempt in call.attempts:
            why = f": {attempt.error}" if attempt.error else ""
            yield _indented("tried", f"{attempt.endpoint}, {attempt.outcome}, {usd(attempt.cost_usd)}{why}")


def _indented(name: str, value: str) -> Text:
    from rich.text import Text

    lines = safe(value).split("\n")
    if sys.stdout.isatty():
        width = max(20, get_terminal_size().columns - INDENT)
        lines = [piece for line in lines for piece in wrap(line, width) or [""]]
    return Text.assemble((f"  {name:<{INDENT - 2}}", "bold"), f"\n{' ' * INDENT}".join(lines))


def _time(t: Trajectory, line: Text) -> Text:
    """Where time went: the policy's model, waiting for members, and the rest."""
    times = t.timings
    other = max(0.0, times.wall_s - times.policy_s - times.members_s)
    parts = (
        ("policy", times.policy_s, "cyan", "#"),
        ("members", times.members_s, "magenta", "="),
        ("other", other, "dim", "."),
    )
    whole = sum(spent for _, spent, _, _ in parts) or 1.0
    line.append("[")
    before = 0.0
    for _, spent, style, mark in parts:
        start, end = round(BAR * before / whole), round(BAR * (before + spent) / whole)
        line.append(mark * (end - start), style)
        before += spent
    line.append("]  ")
    for index, (name, spent, style, mark) in enumerate(parts):
        line.append(", " if index else "")
        line.append(f"{mark} {name} {seconds(spent)}", style)
    return line


def _tokens(usage: Usage) -> str:
    estimated = " (estimated)" if usage.estimated else ""
    return f"{usage.input_tokens} in, {usage.output_tokens} out{estimated}"


def _version(value: str) -> str:
    return value[:12] if len(value) == 64 else value  # a hash is told apart by its first characters
