"""`antiphon record`: what the members of a pool say to the questions of a dataset, kept for good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from antiphon.cli._options import config_options, json_option
from antiphon.cli._output import print_json, table, usd
from antiphon.cli._recording import What, failures, question_options, recorder_of, run, what_of

if TYPE_CHECKING:
    from antiphon.record import Recorder


@click.command()
@click.option("--pool", metavar="NAME", help="Whom to ask [default: the configured one].")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="JSON lines."
)
@click.option(
    "--samples", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Of each question."
)
@click.option("--temperature", type=click.FloatRange(min=0), metavar="T", help="[default: the members' own]")
@question_options()
@json_option
@config_options
@click.pass_context
def record(
    context: click.Context,
    /,
    as_json: bool,
    **asked: Any,
) -> None:
    """Ask every member every question, and keep the replies in FILE, which recorded pools read back.

    What it may cost is said first. A reply is on disk before it counts, and FILE is only ever appended to: killed,
    stopped or out of money, the same command goes on where it was, and asks nothing again that has a reply. Calls that
    failed are tried again. Exit status 1: replies are missing.
    """
    what = what_of(**asked)
    with recorder_of(what) as (recorder, made):
        run(recorder, made, what)
    if as_json:
        print_json(summary(recorder, what))
    else:
        _show(recorder)
    if recorder.interrupted:
        raise KeyboardInterrupt
    if recorder.left:
        context.exit(1)


def summary(recorder: Recorder, what: What) -> dict[str, Any]:
    """What `--json` prints."""
    failed = failures(recorder)
    return {
        "out": str(what.out),
        "questions": len(recorder.tasks),
        "samples": recorder.samples,
        "total": recorder.total,
        "recorded": len(recorder.done),
        "asked": recorder.asked,
        "interrupted": recorder.interrupted,
        "spent_usd": recorder.spent_usd,
        "spent_now_usd": recorder.spent_usd - recorder.spent_before_usd,
        "members": {
            member: {
                "replies": totals.replies,
                "score": totals.mean_score,
                "output_tokens": totals.mean_output_tokens,
                "without_usage": totals.replies - totals.counted,
                "cost_usd": totals.cost_usd,
                "failed": dict(failed.get(member, {})),
                "too_dear": member in recorder.too_dear,
                "gave_up": recorder.gave_up.get(member),
            }
            for member, totals in recorder.totals.items()
        },
    }


def _show(recorder: Recorder) -> None:
    failed = failures(recorder)
    rows = []
    for member, totals in recorder.totals.items():
        score, tokens = totals.mean_score, totals.mean_output_tokens
        rows.append(
            (
                member,
                str(totals.replies),
                str(sum(failed.get(member, {}).values())),
                "" if score is None else f"{score:.3f}",
                "" if tokens is None else f"{tokens:.1f}",
                usd(totals.cost_usd),
            )
        )
    table(("member", "replies", "failed", "score", "tokens a reply", "cost"), rows)
