"""`antiphon pool profile`: measures members on a few questions, and writes what is found as overriding tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from antiphon.cli._options import config_options, json_option
from antiphon.cli._output import plural, print_json, seconds, table, usd, warn
from antiphon.cli._recording import failures, question_options, recorder_of, run, what_of
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.record import Recorder
    from antiphon.record.profile import Profile

QUESTIONS = 50
HEAD = "# Measured by `antiphon pool profile`"


@click.command()
@click.argument("name", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE.toml",
    help="The tables; the replies go beside it, into FILE.jsonl.",
)
@question_options(QUESTIONS)
@json_option
@config_options
@click.pass_context
def profile(
    context: click.Context,
    /,
    name: str | None,
    out: Path,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure the members of pool NAME on a few questions, and write scores, latency and prices as tables to paste
    into antiphon.toml.

    What it may cost is said first. Replies are kept as `antiphon record` keeps them, so that a second run asks nothing
    again: remove FILE.jsonl to measure anew. Exit status 1: replies are missing.
    """
    _check_out(out)
    what = what_of(pool=name, out=out.with_suffix(".jsonl"), **asked)
    with recorder_of(what) as (recorder, pool):
        run(recorder, pool, what)
        profiles = _profiles(recorder)
    if recorder.interrupted:
        raise KeyboardInterrupt
    if any(each.replies for each in profiles):
        _write(out, profiles, recorder)
    if as_json:
        print_json({"out": str(out), "replies": str(what.out), "members": [_data(each) for each in profiles]})
    else:
        _show(profiles)
    if recorder.left:
        context.exit(1)


def _check_out(out: Path) -> None:
    """Refuse to write over anything but an earlier profile, before anything is spent."""
    if out.suffix == ".jsonl":
        raise ConfigError(f"--out {out}: the tables are TOML, and the replies go into the .jsonl; name it FILE.toml")
    if out.exists() and not out.read_text(encoding="utf-8", errors="replace").startswith(HEAD):
        raise ConfigError(f"--out {out} holds something else than a profile; name a new file, and paste from it")


def _profiles(recorder: Recorder) -> list[Profile]:
    from antiphon.record.profile import profile

    rows = list(recorder.rows())
    failed = failures(recorder)
    return [
        profile(view, [row for row in rows if row.llm == member], sum(failed.get(member, {}).values()))
        for member, view in recorder.views.items()
    ]


def _write(out: Path, profiles: list[Profile], recorder: Recorder) -> None:
    from antiphon.record.profile import to_toml

    datasets = ", ".join(dict.fromkeys(task.dataset or "" for task in recorder.tasks))
    how = f"{HEAD} on {plural(len(recorder.tasks), 'question')} of {datasets}; paste it into antiphon.toml."
    scratch = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        scratch.write_text(to_toml(profiles, how.removeprefix("# ")), encoding="utf-8")
        scratch.replace(out)  # whole or not at all
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from None
    warn(f"{out}: paste it into antiphon.toml")


def _data(each: Profile) -> dict[str, Any]:
    return {
        "name": each.member,
        "replies": each.replies,
        "failed": each.failed,
        "cost_usd": each.cost_usd,
        "scores": dict(each.scores),
        "latency": None if each.latency is None else each.latency.model_dump(),
        "charged_over_quoted": each.charged,
        "notes": list(each.notes),
    }


def _show(profiles: list[Profile]) -> None:
    rows = []
    for each in profiles:
        latency = ""
        if each.latency is not None:
            latency = f"{seconds(each.latency.first_token_s)} + {each.latency.tokens_per_s:g} tokens/s"
        scores = ", ".join(f"{name} {score:.3f}" for name, score in each.scores.items())
        rows.append((each.member, str(each.replies), scores, latency, usd(each.cost_usd), "; ".join(each.notes)))
    table(("member", "replies", "scores", "latency", "cost", "notes"), rows)
