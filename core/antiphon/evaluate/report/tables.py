"""The tables of an evaluation, shaped like the paper's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from antiphon.evaluate.report._results import Entry, Estimate, Key, Results, Section

NOT_RUN = "not run"
TITLES = {"em": "Exact match (EM)", "f1": "Token F1", "strict_em": "Strict exact match"}
SHORT = {"em": "EM", "f1": "F1", "strict_em": "strict EM"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry.

    Attributes:
        small: what stands beside it in a smaller form: an interval.
        best: the best of its column.
        mark: the letter of a note under the table.
        key: the cell of the run whose questions, if it has any, stand behind it.
    """

    text: str
    small: str = ""
    best: bool = False
    mark: str = ""
    key: Key | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head. Neighbours of the same `group` stand under it."""

    text: str
    group: str = ""

    @property
    def flat(self) -> str:
        return f"{self.group} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Row:
    """A line. `line` names what it is beside the policies: `baseline` or `oracle`."""

    label: str
    cells: tuple[Cell, ...]
    line: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; those of one `name` go into one file."""

    name: str
    title: str
    caption: str
    head: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    first: str = "policy"


def tables(results: Results) -> list[Table]:
    """Every table of a run, in the order in which the page shows them."""
    made = [_metric(results, section, metric) for metric in results.metrics for section in results.sections]
    made += [_cost(results, section) for section in results.sections if _has_costs(results, section)]
    made += [_use(results, section) for section in results.sections]
    pools = tuple(dict.fromkeys(section.pool for section in results.sections))
    if len(pools) > 1:
        made.append(_pools(results, pools))
    made += _paired(results)
    return made


def metric_name(metric: str) -> str:
    """`EM`, `F1`, or the metric's own name."""
    return SHORT.get(metric, metric)


def usd(amount: float) -> str:
    """USD with enough digits to tell a question's cost."""
    return "$0" if amount == 0 else f"${amount:.2f}" if amount >= 1 else f"${amount:#.2g}"


def _metric(results: Results, section: Section, metric: str) -> Table:
    """Policies x data sets, and the average (the paper's Tables 1 and 4)."""
    datasets, notes = section.datasets, Notes()
    averaged = len(datasets) > 1

    def row(entry: Entry) -> Row:
        cells = [_cell(results, (entry.policy, entry.pool, name), metric, _score, notes) for name in datasets]
        if averaged:
            cells.append(_average(results, entry, section.datasets, metric, notes))
        return Row(entry.label, tuple(cells), _line(results, entry))

    rows = [row(entry) for entry in section.entries]
    best = [_best(results, section, name, metric) for name in datasets]
    rows = _embolden(rows, [*best, _best_average(results, section, metric)] if averaged else best)
    upper = [results.oracle(section, name, metric) for name in datasets]
    if results.upper is None and any(value is not None for value in upper):
        upper += [results.oracle_mean(section, metric)] if averaged else []
        rows.append(Row("best member per question", tuple(_plain(value, _score) for value in upper), "oracle"))
    head = [Column(name) for name in datasets] + ([Column("average")] if averaged else [])
    caption = f"{_title(metric)} of each policy, {section.title}. {_sizes(results, section)} {_INTERVALS}"
    return Table(_slug(metric), _title(metric), caption, tuple(head), tuple(rows), notes.lines())


def _cost(results: Results, section: Section) -> Table:
    """The first metric and raw cost side by side, by data set (the paper's Table 2)."""
    datasets, metric, notes = section.datasets, results.metric, Notes()
    rows = []
    for entry in section.entries:
        cells: list[Cell] = []
        for name in datasets:
            key = (entry.policy, entry.pool, name)
            score = _cell(results, key, metric, _score, notes)
            cost = _cell(results, key, "raw_cost", _one_decimal, Notes())
            cells += [replace(score, small=""), replace(cost, small="")]
        rows.append(Row(entry.label, tuple(cells), _line(results, entry)))
    best: list[frozenset[str]] = []
    for name in datasets:
        best += [_best(results, section, name, metric), frozenset()]
    head = [Column(text, name) for name in datasets for text in (metric_name(metric), "cost")]
    caption = (
        f"{metric_name(metric)} and raw cost a question (quoted output price in USD per million tokens x the replies' "
        f"output tokens, summed over calls: the paper's unit), {section.title}. Bold: the best {metric_name(metric)}; "
        "no cost is bold, since nothing costs less than to ask nobody."
    )
    title = f"{metric_name(metric)} and raw cost"
    return Table("cost", title, caption, tuple(head), tuple(_embolden(rows, best)), notes.lines())


def _has_costs(results: Results, section: Section) -> bool:
    return any(results.value(e.policy, e.pool, d, "raw_cost") for e in section.entries for d in section.datasets)


def _use(results: Results, section: Section) -> Table:
    """What a policy does and takes: unweighted means over its data sets."""
    columns: tuple[tuple[Column, str, Callable[[float], str]], ...] = (
        (Column("members", "USD per 1,000 questions"), "members_usd", lambda v: usd(v * 1000)),
        (Column("policy", "USD per 1,000 questions"), "policy_usd", lambda v: usd(v * 1000)),
        (Column("calls", "a question"), "calls", _two_decimals),
        (Column("rounds", "a question"), "rounds", _two_decimals),
        (Column("escalated", "share of questions"), "escalation", _percent),
        (Column("ill-formed", "share of questions"), "format_failures", _percent),
        (Column("no answer", "share of questions"), "no_answer", _percent),
        (Column("p50", "seconds"), "p50", _two_decimals),
        (Column("p95", "seconds"), "p95", _two_decimals),
        (Column("entropy", "bits"), "entropy", _two_decimals),
    )
    rows = []
    for entry in section.entries:
        over = results.run_on(entry, section.datasets)
        cells = [
            _plain(_mean_of(results, entry, over, what), write) if over else Cell(NOT_RUN) for _, what, write in columns
        ]
        rows.append(Row(entry.label, tuple(cells), _line(results, entry)))
    caption = (
        f"What each policy does and takes, {section.title}: unweighted means over the data sets that it was run on. "
        "Escalated: a smaller member first, then a larger one. Entropy: of whom it asks; 0 where it is always the same."
    )
    return Table("use", "Calls, money and time", caption, tuple(column for column, _, _ in columns), tuple(rows))


def _pools(results: Results, pools: Sequence[str]) -> Table:
    """The average by pool: what members that join or leave change (the paper's Table 3)."""
    metric, notes = results.metric, Notes()
    rows = []
    for policy in results.policies:
        entries = [Entry(policy, pool, policy) for pool in pools]
        cells = [_average(results, entry, results.datasets, metric, notes) for entry in entries]
        rows.append(Row(policy, tuple(cells), _line(results, entries[0])))
    caption = f"Average {metric_name(metric)} of each policy by pool. {_INTERVALS}"
    head = tuple(Column(pool) for pool in pools)
    return Table("pools", f"{metric_name(metric)} by pool", caption, head, tuple(rows), notes.lines())


def _paired(results: Results) -> list[Table]:
    """Differences from the baseline on the questions that both have."""
    made = []
    for metric in results.metrics:
        entries = [entry for entry in results.paired if entry["metric"] == metric]
        rows = []
        for entry in entries:
            value = Estimate.of({**entry, "mean": entry["difference"]})
            cells = (
                Cell(str(entry["dataset"])),
                Cell(str(entry["pool"])),
                Cell(str(entry["n"])),
                Cell(NOT_RUN) if value is None else Cell(signed(value.mean), _interval(value, signed)),
                Cell("" if entry.get("p") is None else p_value(entry["p"])),
            )
            rows.append(Row(str(entry["policy"]), cells))
        if rows:
            name = metric_name(metric)
            caption = (
                f"{name} less that of {entries[0]['baseline']}, on the questions that both have. Interval: 95 %, "
                "bootstrap over questions. p: two-sided sign-flip permutation test, not corrected for many comparisons."
            )
            head = tuple(Column(text) for text in ("data set", "pool", "questions", "difference", "p"))
            made.append(Table("paired", f"{name} against {entries[0]['baseline']}", caption, head, tuple(rows)))
    return made


class Notes:
    """Notes under a table, each with a letter, said once."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def mark(self, text: str | None) -> str:
        return "" if not text else self._said.setdefault(text, _letter(len(self._said)))

    def lines(self) -> tuple[str, ...]:
        return tuple(f"{mark}: {text}" for text, mark in self._said.items())


def _line(results: Results, entry: Entry) -> str:
    return "oracle" if results.is_upper(entry.policy) else "baseline" if entry.policy == results.baseline else ""


def _cell(results: Results, key: Key, what: str, write: Callable[[float], str], notes: Notes) -> Cell:
    value, mark = results.value(*key, what), notes.mark(results.note(*key))
    if value is None:
        return Cell("–", mark=mark) if results.cell(*key) else Cell(NOT_RUN, mark=mark, key=key)
    return Cell(write(value.mean), _interval(value, write), mark=mark, key=key)


def _average(results: Results, entry: Entry, datasets: Sequence[str], metric: str, notes: Notes) -> Cell:
    found = results.average(entry, metric, datasets)
    if found is None:
        return Cell(NOT_RUN)
    value, over = found
    mark = "" if set(over) >= set(datasets) else notes.mark(f"over {_and(over)} only")
    return Cell(_score(value.mean), _interval(value, _score), mark=mark)


def _best(results: Results, section: Section, dataset: str, metric: str) -> frozenset[str]:
    values = {e: results.value(e.policy, e.pool, dataset, metric) for e in _contenders(results, section)}
    return _top({entry.label: value.mean for entry, value in values.items() if value is not None})


def _best_average(results: Results, section: Section, metric: str) -> frozenset[str]:
    """Among those that have every data set."""
    found = {e: results.average(e, metric, section.datasets) for e in _contenders(results, section)}
    every = set(section.datasets)
    return _top({entry.label: pair[0].mean for entry, pair in found.items() if pair and set(pair[1]) >= every})


def _contenders(results: Results, section: Section) -> list[Entry]:
    return [entry for entry in section.entries if not results.is_upper(entry.policy)]


def _top(means: dict[str, float]) -> frozenset[str]:
    """The best, and what reads the same as written; nobody where there is no choice."""
    highest = max(means.values(), default=0.0)
    best = frozenset(label for label, mean in means.items() if _score(mean) == _score(highest))
    return best if len(best) < len(means) else frozenset()


def _embolden(rows: list[Row], best: list[frozenset[str]]) -> list[Row]:
    return [
        replace(row, cells=tuple(replace(c, best=row.label in b) for c, b in zip(row.cells, best, strict=True)))
        for row in rows
    ]


def _mean_of(results: Results, entry: Entry, over: Sequence[str], what: str) -> float | None:
    if what not in ("p50", "p95"):
        return results.mean(entry, what, over)
    cells = [results.cell(entry.policy, entry.pool, name) or {} for name in over]
    known = [value for cell in cells if (value := Estimate.of((cell.get("latency") or {}).get(what)))]
    return sum(value.mean for value in known) / len(known) if known else None


def _plain(value: float | None, write: Callable[[float], str]) -> Cell:
    return Cell("–" if value is None else write(value))


_INTERVALS = "Small: 95 % interval, bootstrap over questions. Bold: the best of its column."


def _sizes(results: Results, section: Section) -> str:
    sizes = []
    for name in section.datasets:
        cells = [results.cell(entry.policy, entry.pool, name) for entry in section.entries]
        counts = sorted({int(cell["n"]) for cell in cells if cell is not None})
        if counts:
            sizes.append(f"{name} {counts[0]}" if len(counts) == 1 else f"{name} {counts[0]} to {counts[-1]}")
    return f"Questions: {', '.join(sizes)}." if sizes else ""


def _title(metric: str) -> str:
    return TITLES.get(metric, f"Metric {metric}")


def _score(value: float) -> str:
    return f"{value:.3f}"


def signed(value: float) -> str:
    """A difference with its sign; `0.000` has none."""
    return "0.000" if abs(value) < 0.0005 else f"{value:+.3f}".replace("-", "−")


def _one_decimal(value: float) -> str:
    return f"{value:.1f}"


def _two_decimals(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def p_value(value: float) -> str:
    """Three decimals; `< 0.001` below that."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _interval(value: Estimate, write: Callable[[float], str]) -> str:
    return "" if value.low is None or value.high is None else f"{write(value.low)} to {write(value.high)}"


def _letter(index: int) -> str:
    return chr(ord("a") + index) if index < 26 else _letter(index // 26 - 1) + _letter(index % 26)


def _and(names: Iterable[str]) -> str:
    *most, last = list(names) or ["none"]
    return f"{', '.join(most)} and {last}" if most else last


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "metric"
