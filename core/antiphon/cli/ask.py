"""`antiphon ask`: one question, its answer on standard output, how it came about on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from antiphon.cli._options import config_options, json_option
from antiphon.cli._output import note, plural, print_json, safe, seconds, shorten, usd, warn
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.config import Config
    from antiphon.contracts import MemberView
    from antiphon.orchestrator import Orchestrator
    from antiphon.types import Event, Trajectory

MOST_QUESTION_BYTES = 1_000_000
SHOWN_OF_A_FAILURE = 300  # characters of the policy's last words


@click.command()
@click.argument("question")
@click.option("--pool", metavar="NAME", help="Who can be asked (see `antiphon pool list`).")
@click.option("--policy", metavar="NAME", help="Who decides (see `antiphon plugins`).")
@click.option("--model", metavar="NAME|DIR", help="The policy's model: a configured one, or a folder of weights.")
@click.option("--grammar", metavar="NAME", help="The grammar that the policy's model writes.")
@click.option("--stream", is_flag=True, help="Show thinking, routes and prices as they come.")
@click.option("--max-cost", type=click.FloatRange(min=0), metavar="USD", help="Spend no more than this.")
@click.option("--rounds", type=click.IntRange(min=0), metavar="N", help="Rounds of asking members.")
@click.option("--temperature", type=click.FloatRange(min=0), metavar="T", help="Of the policy's model; 0: greedy.")
@click.option("--seed", type=int, metavar="N", help="Makes chance (sampling, the random policy) repeat itself.")
@json_option
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Append the trajectory.")
@config_options
@click.option("--allow-unpriced", is_flag=True, help="Take members without a price; they count as free.")
@click.pass_context
def ask(
    context: click.Context,
    question: str,
    pool: str | None,
    policy: str | None,
    model: str | None,
    grammar: str | None,
    stream: bool,
    max_cost: float | None,
    rounds: int | None,
    temperature: float | None,
    seed: int | None,
    as_json: bool,
    save: Path | None,
    config_file: Path | None,
    data: Path | None,
    allow_unpriced: bool,
) -> None:
    """Answer QUESTION ("-" reads it from standard input).

    The answer goes to standard output. Where there is none, the reason is said and the exit status is 1. `--json`
    prints the whole trajectory and its costs; `--save` appends it to FILE as one JSON line, for `antiphon show`.
    """
    from antiphon.config import load_config
    from antiphon.orchestrator import Interrupted, Orchestrator

    text = _question(question)
    names = {"pool": pool, "policy": policy, "model": model, "grammar": grammar, "data": data and str(data)}
    limits = {"rounds": rounds, "max_cost_usd": max_cost}
    config = load_config(config_file, overrides={"defaults": names, "limits": limits})
    sampling = {"temperature": temperature, "seed": seed}
    orchestrator = Orchestrator(
        config=config,
        grammar=grammar,
        sampling={key: value for key, value in sampling.items() if value is not None},
        seed=seed or 0,
        allow_unpriced=True if allow_unpriced else None,
    )
    # A plugin or a member that prints must not spoil the results.
    with _appending(save) as keep, redirect_stdout(sys.stderr), orchestrator:
        note(_cost_ahead(config, orchestrator.members))
        try:
            if stream:
                trajectory = _streamed(orchestrator, text)
            else:
                with _waiting():
                    trajectory = orchestrator.ask(text)
        except Interrupted as interrupted:
            for trajectory in interrupted.trajectories:
                _keep(keep, trajectory)
            raise
        fault = _keep(keep, trajectory)
    _report(trajectory, config, as_json=as_json)
    if fault is not None:  # after the answer, which has been paid for
        raise fault
    if trajectory.answer is None:
        context.exit(1)


def _question(argument: str) -> str:
    if argument == "-":
        read = sys.stdin.buffer.read(MOST_QUESTION_BYTES + 1)
        if len(read) > MOST_QUESTION_BYTES:
            raise ConfigError(f"the question on standard input is longer than {MOST_QUESTION_BYTES} bytes; shorten it")
        argument = read.decode("utf-8", "replace")
    else:  # as UTF-8 whatever the locale: under LC_ALL=C Python has not decoded it
        argument = os.fsencode(argument).decode("utf-8", "replace")
    if not argument.strip():
        raise ConfigError("there is no question; give one as the argument, or `-` to read it from standard input")
    return argument.strip()


def _cost_ahead(config: Config, members: tuple[MemberView, ...]) -> str:
    """What a question may cost, before anything is spent: every round at the dearest member, at its full length."""
    limits = config.limits
    reply, query = limits.member_tokens, limits.turn_tokens
    per_call = {
        view.name: (view.quote.output * reply + (view.quote.input or 0.0) * query) / 1e6
        for view in members
        if view.quote is not None
    }
    cap = "" if limits.max_cost_usd is None else f"; at most {usd(limits.max_cost_usd)} is spent"
    if not per_call:
        return f"cost: nobody in pool {config.defaults.pool!r} has a price{cap}"
    dearest = max(per_call, key=lambda name: per_call[name])
    if per_call[dearest] == 0:
        return f"cost: asking pool {config.defaults.pool!r} is free{cap}"
    most = usd(per_call[dearest] * limits.rounds)
    return f"cost: up to about {most} ({plural(limits.rounds, 'round')} with {dearest}, the dearest member){cap}"


@contextmanager
def _waiting() -> Iterator[None]:
    """A sign of life on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("asking … (--stream shows how it goes)"):
        yield


def _streamed(orchestrator: Orchestrator, question: str) -> Trajectory:
    from antiphon.orchestrator import Interrupted

    prices = {view.name: view.quote for view in orchestrator.members}
    stream = orchestrator.stream(question)
    try:
        at_line_start = True
        for event in stream:
            at_line_start = _show(event, prices, at_line_start)
    except KeyboardInterrupt:
        stream.close()
        raise Interrupted([stream.trajectory] if stream.trajectory else []) from None
    if not at_line_start:
        note("")
    assert stream.trajectory is not None  # a stream that came to its end has one
    return stream.trajectory


def _show(event: Event, prices: dict[str, Any], at_line_start: bool) -> bool:
    """Show one event on standard error; whether the next one starts on a new line."""
    if event.kind == "thinking":
        note(event.text, nl=False)
        return event.text.endswith("\n")
    if event.kind in ("route_started", "route_finished") and not at_line_start:
        note("")
    if event.kind == "route_started":
        quote = prices.get(event.member or "")
        price = "" if quote is None else f" (${quote.output:g} per million output tokens)"
        warn(f"-> {event.member}{price}: {event.text}")
    elif event.kind == "route_finished" and event.call is not None:
        call = event.call
        said = call.reply if call.ok and call.reply else f"{call.outcome}: {call.error}"
        warn(f"<- {call.member} ({usd(call.cost_usd)}, {seconds(call.latency_s)}): {shorten(said, 500)}")
    else:
        return at_line_start
    return True


def _report(trajectory: Trajectory, config: Config, *, as_json: bool) -> None:
    if as_json:
        costs = {"cost_usd": trajectory.cost_usd, "members_cost_usd": trajectory.members_cost_usd}
        print_json({**json.loads(trajectory.to_json()), **costs})
    elif trajectory.answer is not None:
        click.echo(safe(trajectory.answer) if sys.stdout.isatty() else trajectory.answer)
    if trajectory.answer is None:
        for line in no_answer(trajectory, config):
            warn(line)
    for line in summary(trajectory):
        note(line)


def no_answer(trajectory: Trajectory, config: Config) -> Iterator[str]:
    """Why there is no answer, where the policy stopped, and what to try."""
    wordless = trajectory.calls and not any(call.ok for call in trajectory.calls)
    reasons = {
        "no_action": "the policy's model ended its turn with neither an answer nor somebody to ask",
        "length": "the policy's model reached its token limit with neither an answer nor somebody to ask",
    }
    if trajectory.stop in reasons and not trajectory.turns:
        yield f"no answer: {'nobody who was asked replied' if wordless else 'the policy gave none'}"
    else:
        yield f"no answer: {reasons.get(trajectory.stop) or trajectory.error or trajectory.stop}"
    for call in trajectory.calls:
        if not call.ok:
            yield f"  {call.member} failed: {call.outcome}: {call.error or 'no reason given'}"
    last = " ".join(trajectory.turns[-1].text.split()) if trajectory.turns else ""
    if last:
        dots = "…" if len(last) > SHOWN_OF_A_FAILURE else ""
        yield f"  its last words: {dots}{last[-SHOWN_OF_A_FAILURE:]}"
    remark = config.models[config.defaults.model].note if config.defaults.model in config.models else None
    if remark is not None and trajectory.turns:
        yield f"  {remark}"


def summary(trajectory: Trajectory) -> Iterator[str]:
    """Rounds, who was asked, tokens, cost, time: two lines."""
    asked = ", ".join(
        f"{call.member} ({usd(call.cost_usd)}{'' if call.ok else ', ' + call.outcome})" for call in trajectory.calls
    )
    yield f"{plural(trajectory.rounds, 'round')}; asked {asked or 'nobody'}"
    tokens = sum(call.usage.output_tokens for call in trajectory.calls if call.usage is not None)
    policy = trajectory.policy_usage.output_tokens
    yield (
        f"cost {usd(trajectory.cost_usd)} (members {usd(trajectory.members_cost_usd)}, policy "
        f"{usd(trajectory.policy_cost_usd)}); {plural(tokens, 'token')} from members, {policy} from the policy; "
        f"{seconds(trajectory.timings.wall_s)}"
    )


@contextmanager
def _appending(path: Path | None) -> Iterator[BinaryIO | None]:
    """The file to save to, opened before anything is spent; a line torn by a crash is left alone and stays readable."""
    if path is None:
        yield None
        return
    try:
        file = path.open("ab+", buffering=0)
    except OSError as error:
        raise ConfigError(f"--save {path}: {error.strerror}; nothing has been asked") from None
    with file:
        if file.seekable() and file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        yield file


def _keep(file: BinaryIO | None, trajectory: Trajectory) -> ConfigError | None:
    """Save a trajectory as one line; what went wrong, if it did."""
    if file is None:
        return None
    line = trajectory.to_json().encode() + b"\n"
    try:
        written = file.write(line)
    except OSError as error:
        return ConfigError(f"--save {file.name}: {error.strerror}; the trajectory is not saved")
    whole = written == len(line)
    return None if whole else ConfigError(f"--save {file.name}: the disk is full; the trajectory is not saved whole")
