"""The answer in short: who is best, against the baseline, and at what price; and what to know of the money."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.evaluate.report._results import Entry, Results, Section
from antiphon.evaluate.report.tables import NOT_RUN, Cell, Column, Notes, Row, Table, metric_name, signed, usd

SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy's averages over all data sets of its section, and on how many it beats and loses to the baseline."""

    entry: Entry
    quality: float
    cost: float | None
    usd: float | None
    better: int
    worse: int
    compared: int


def headline(results: Results, section: Section) -> tuple[list[str], Table]:
    """Sentences that answer the question, and the table behind them, the best policy first."""
    standings = sorted(_standings(results, section), key=lambda one: -one.quality)
    return list(_sentences(results, section, standings)), _table(results, section, standings)


def audit(results: Results) -> Table | None:
    """What to know before a run's costs are believed, a line for each pool; None where the run has no audit."""
    given: Mapping[str, Mapping[str, Any]] = results.summary.get("audit") or {}
    notes, rows = Notes(), []
    for pool, found in given.items():
        constant, unpriced, others = (
            list(found.get(name) or ()) for name in ("constant_token_counts", "unpriced_members", "substituted")
        )
        said = (
            [f"{one['member']} {one['tokens']} {one['which']} tokens ({one['calls']:,} calls)" for one in constant],
            [f"{member}, which counts as free" for member in unpriced],
            [f"{one['served']} for {one['member']} ({one['calls']:,} calls)" for one in others],
        )
        about = ("always the same count", "no price is known", "answered in another's place")
        marks = [
            notes.mark(f"pool {pool}: {what}: {'; '.join(texts)}" if texts else None)
            for what, texts in zip(about, said, strict=True)
        ]
        numbers = [_count(found.get(name)) for name in ("rows", "calls", "rows_without_usage", "estimated")]
        substituted = sum(one["calls"] for one in others)
        cells = [
            *(Cell(number) for number in numbers),
            Cell(_count(len(constant)), mark=marks[0]),
            Cell(_count(len(unpriced)), mark=marks[1]),
            Cell(_count(found.get("unpriced_calls"))),
            Cell(_count(substituted), mark=marks[2]),
        ]
        rows.append(Row(str(pool), tuple(cells)))
    if not rows:
        return None
    head = (
        Column("rollouts", "all"),
        Column("calls", "all"),
        Column("rollouts", "usage estimated"),
        Column("calls", "usage estimated"),
        Column("constant token counts"),
        Column("members", "unpriced"),
        Column("calls", "unpriced"),
        Column("calls that another model answered"),
    )
    caption = (
        "What to know before the costs are believed. Usage estimated: the provider left token counts out, and they "
        "were counted here. Constant token counts: always the same number for different questions, so a placeholder."
    )
    return Table("audit", "Money audit", caption, head, tuple(rows), notes.lines(), first="pool")


def _standings(results: Results, section: Section) -> Iterator[Standing]:
    for entry in section.entries:
        average = results.average(entry, results.metric, section.datasets)
        if average is None or set(average[1]) < set(section.datasets):
            continue
        pairs = [
            one
            for one in results.paired
            if (one["policy"], one["pool"], one["metric"]) == (entry.policy, entry.pool, results.metric)
            and one["dataset"] in section.datasets
        ]
        sure = [one["difference"] for one in pairs if one.get("p") is not None and one["p"] < SIGNIFICANT]
        spent = [results.mean(entry, what, section.datasets) for what in ("members_usd", "policy_usd")]
        yield Standing(
            entry,
            average[0].mean,
            results.mean(entry, "raw_cost", section.datasets),
            None if None in spent else sum(one for one in spent if one is not None),
            sum(difference > 0 for difference in sure),
            sum(difference < 0 for difference in sure),
            len(pairs),
        )


def _sentences(results: Results, section: Section, standings: list[Standing]) -> Iterator[str]:
    metric = f"{'average ' if len(section.datasets) > 1 else ''}{metric_name(results.metric)}"
    contenders = [one for one in standings if not results.is_upper(one.entry.policy)]
    if not contenders:
        yield "No policy was run on every data set: the tables have what there is."
        return
    best = contenders[0]
    base = next((one for one in contenders if one.entry.policy == results.baseline), None)
    if base is None:
        yield f"{best.entry.label} has the highest {metric}: {best.quality:.3f}{_at(best)}."
    elif best.quality <= base.quality:
        yield f"No policy has a higher {metric} than the baseline {base.entry.label}: {base.quality:.3f}{_at(base)}."
    else:
        yield (
            f"{best.entry.label} has the highest {metric}: {best.quality:.3f}, {best.quality - base.quality:.3f} above "
            f"the baseline {base.entry.label} ({base.quality:.3f}){_times(best, base)}."
        )
        yield _compared(best, base)
    if base is not None and base.cost is not None:
        cheaper = [one for one in contenders if one.cost is not None and one.cost < base.cost]
        cheaper = [one for one in cheaper if one.quality >= base.quality]
        if cheaper and (best.cost is None or min(one.cost or 0.0 for one in cheaper) < best.cost):
            thrifty = min(cheaper, key=lambda one: (one.cost or 0.0, -one.quality))
            yield (
                f"The cheapest policy that is not below the baseline is {thrifty.entry.label}: "
                f"{thrifty.quality:.3f}{_times(thrifty, base)}."
            )
    upper = next((one.quality for one in standings if one.entry.policy == results.upper), None)
    upper = results.oracle_mean(section, results.metric) if upper is None else upper
    if upper is not None:
        yield f"The best member for each question, known beforehand, would reach {upper:.3f}."


def _compared(best: Standing, base: Standing) -> str:
    if not best.compared:
        return f"It was not compared with {base.entry.label} question by question."
    if best.compared == 1:
        how = "better than" if best.better else "worse than" if best.worse else "not to be told from"
        p = "p < 0.05" if best.better + best.worse else "p ≥ 0.05"
        return f"Question by question, it is {how} {base.entry.label} ({p})."
    return (
        f"Question by question (p < 0.05), of {best.compared} data sets it is better than {base.entry.label} on "
        f"{best.better} and worse on {best.worse}."
    )


def _at(one: Standing) -> str:
    return "" if one.cost is None else f", at a raw cost of {one.cost:.1f} a question"


def _times(one: Standing, base: Standing) -> str:
    if one.cost is None or base.cost is None:
        return ""
    if base.cost == 0:
        return f", at a raw cost of {one.cost:.1f} a question against 0"
    times = one.cost / base.cost
    shown = f"{times:.2g}" if times < 10 else f"{times:.0f}"
    return f", at {shown} times its raw cost ({one.cost:.1f} against {base.cost:.1f} a question)"


def _table(results: Results, section: Section, standings: list[Standing]) -> Table:
    metric = metric_name(results.metric)
    base = next((one for one in standings if one.entry.policy == results.baseline), None)
    rows = []
    for one in standings:
        less = "" if base is None or one is base else signed(one.quality - base.quality)
        cells = (
            Cell(f"{one.quality:.3f}"),
            Cell(less or "–"),
            Cell(f"{one.better} / {one.worse} of {one.compared}" if one.compared else "–"),
            Cell("–" if one.cost is None else f"{one.cost:.1f}"),
            Cell("–" if one.usd is None else usd(one.usd * 1000)),
        )
        line = "oracle" if results.is_upper(one.entry.policy) else "baseline" if one is base else ""
        rows.append(Row(one.entry.label, cells, line))
    there = {one.entry for one in standings}
    left_out = [entry for entry in section.entries if entry not in there]
    rows += [Row(entry.label, tuple(Cell(NOT_RUN) for _ in range(5))) for entry in left_out]
    notes = (f"{NOT_RUN}: not on every data set",) if left_out else ()
    head = (
        Column(f"average {metric}" if len(section.datasets) > 1 else metric),
        Column("less baseline"),
        Column("better / worse"),
        Column("raw cost"),
        Column("USD per 1,000 questions"),
    )
    caption = (
        f"Policies by {metric} over all data sets, {section.title}. Better / worse: on how many data sets, question by "
        "question, against the baseline (p < 0.05). Raw cost: a question, in the paper's unit. USD: members and the "
        "policy's own tokens."
    )
    return Table("headline", "Quality and price", caption, head, tuple(rows), notes)


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"
