"""Tables say what the summary says: best in bold, losers kept, what was not run said so, no name is ever markup."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.evaluate.report._headline import audit, headline
from antiphon.evaluate.report._markup import files, latex, markdown
from antiphon.evaluate.report._results import Results
from antiphon.evaluate.report.tables import Cell, Column, Row, Table, tables, usd


def estimate(mean: float, half: float = 0.1) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half}


def cell(policy: str, dataset: str, em: float, cost: float, **more: Any) -> dict[str, Any]:
    base = {"policy": policy, "pool": "paper", "dataset": dataset, "n": 500, "status": "run", "note": None}
    spent = {"members_usd": estimate(cost / 1e6), "policy_usd": estimate(0.0)}
    return {
        **base,
        "metrics": {"em": estimate(em)},
        "raw_cost": estimate(cost),
        **spent,
        "calls": estimate(1.0),
        **more,
    }


def not_run(policy: str, dataset: str, note: str | None) -> dict[str, Any]:
    return {**cell(policy, dataset, 0.0, 0.0, metrics={}), "status": "not run", "note": note}


def summary(*cells: dict[str, Any], **more: Any) -> Results:
    return Results({"spec": {}, "cells": list(cells), "baseline": "largest", **more})


SMALL = (
    cell("largest", "nq", 0.3, 20.2),
    cell("largest", "popqa", 0.35, 17.6),
    cell("R1_a & b", "nq", 0.388, 150.6),
    cell("R1_a & b", "popqa", 0.341, 98.3),
    cell("KNN*", "nq", 0.236, 102.2),
    not_run("KNN*", "popqa", "its parts were not recorded"),
)
ORACLE = [
    {"pool": "paper", "dataset": name, "metric": "em", "mean": mean} for name, mean in (("nq", 0.5), ("popqa", 0.6))
]


def named(results: Results, name: str) -> Table:
    return next(table for table in tables(results) if table.name == name)


def test_em_in_markdown() -> None:
    expected = """\
## Exact match \\(EM\\)

| policy | nq | popqa | average |
| --- | ---: | ---: | ---: |
| largest (baseline) | 0.300 <sub>0.200 to 0.400</sub> | **0.350** <sub>0.250 to 0.450</sub> | 0.325 |
| R1\\_a \\& b | **0.388** <sub>0.288 to 0.488</sub> | 0.341 <sub>0.241 to 0.441</sub> | **0.365** |
| KNN\\* | 0.236 <sub>0.136 to 0.336</sub> | *not run*<sup>a</sup> | 0.236<sup>b</sup> |
| *best member per question* | 0.500 | 0.600 | 0.550 |

- a: its parts were not recorded
- b: over nq only
"""
    written = markdown(named(summary(*SMALL, oracle=ORACLE), "em"))
    heading, caption, rest = written.split("\n\n", 2)
    assert "Questions: nq 500, popqa 500." in caption
    assert f"{heading}\n\n{rest}" == expected.replace("\\(", "(").replace("\\)", ")")


def test_em_and_cost_in_latex() -> None:
    written = latex(named(summary(*SMALL), "cost"))
    assert written.split("\\toprule\n")[1] == (
        " & \\multicolumn{2}{c}{nq} & \\multicolumn{2}{c}{popqa} \\\\\n"
        "\\cmidrule(lr){2-3}\n\\cmidrule(lr){4-5}\n"
        "policy & EM & cost & EM & cost \\\\\n\\midrule\n"
        "largest & 0.300 & 20.2 & \\textbf{0.350} & 17.6 \\\\\n"
        "R1\\_a \\& b & \\textbf{0.388} & 150.6 & 0.341 & 98.3 \\\\\n"
        "KNN* & 0.236 & 102.2 & \\emph{not run}\\textsuperscript{a} & \\emph{not run}\\textsuperscript{a} \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\par\\footnotesize a: its parts were not recorded\n\\end{table}\n"
    )


def test_intervals_in_latex_stand_small_under_their_means() -> None:
    table = named(summary(*SMALL, oracle=ORACLE), "em")
    written = latex(table)
    assert r"largest & \under{0.300}{0.200 to 0.400} & \under{\textbf{0.350}}{0.250 to 0.450} & 0.325 \\" in written
    assert r"\emph{best member per question} & 0.500 & 0.600 & 0.550 \\" in written.split("\\midrule\n")[-1]
    assert r"\providecommand{\under}" in files([table])["em.tex"]


def test_a_cell_that_counts_for_nothing_still_leads_to_what_was_tried() -> None:
    tried = named(summary(*SMALL), "em").rows[2].cells[1]
    assert (tried.text, tried.key) == ("not run", ("KNN*", "paper", "popqa"))


def test_a_summary_average_is_used_and_a_partial_one_is_never_the_best() -> None:
    averages = [
        {"policy": "largest", "pool": "paper", "over": ["nq", "popqa"], "metrics": {"em": estimate(0.325, 0.02)}},
        {"policy": "KNN*", "pool": "paper", "over": ["nq"], "metrics": {"em": estimate(0.9)}},
    ]
    rows = {row.label: row.cells[-1] for row in named(summary(*SMALL, averages=averages), "em").rows}
    assert rows["largest"].small == "0.305 to 0.345"
    assert rows["KNN*"].text == "0.900"
    assert not rows["KNN*"].best
    assert rows["R1_a & b"].best


def test_all_that_read_the_same_are_best_and_nobody_where_there_is_no_choice() -> None:
    tied = named(summary(cell("a", "nq", 0.5, 1), cell("b", "nq", 0.5001, 1), cell("c", "nq", 0.4, 1)), "em")
    assert [row.cells[0].best for row in tied.rows] == [True, True, False]
    assert not named(summary(cell("a", "nq", 0.5, 1)), "em").rows[0].cells[0].best


def test_an_upper_line_stands_last_and_never_in_bold() -> None:
    spec = {
        "evaluate": {"oracle": "best of EM"},
        "policies": [
            {"label": "best of EM", "name": "o"},
            {"label": "best of F1", "name": "o"},
            {"label": "a", "name": "a"},
        ],
    }
    cells = [
        cell("best of EM", "nq", 0.9, 1),
        cell("best of F1", "nq", 0.8, 1),
        cell("a", "nq", 0.4, 1),
        cell("b", "nq", 0.3, 1),
    ]
    rows = named(summary(*cells, spec=spec, oracle=ORACLE), "em").rows
    assert [(row.label, row.line, row.cells[0].best) for row in rows] == [
        ("a", "", True),
        ("b", "", False),
        ("best of EM", "oracle", False),
        ("best of F1", "oracle", False),
    ]


def test_each_reader_has_its_own_table_and_who_has_none_stands_in_both() -> None:
    policies = [
        {"label": "direct"},
        {"label": "m", "answer_by": "member"},
        {"label": "b", "options": {"answer_by": "base"}},
    ]
    cells = [cell(name, "nq", 0.4, 1) for name in ("direct", "m", "b")]
    found = [table for table in tables(summary(*cells, spec={"policies": policies})) if table.name == "em"]
    assert [[row.label for row in table.rows] for table in found] == [["direct", "m"], ["direct", "b"]]
    assert "answer by the base" in found[1].caption
    assert files(found)["em.md"].count("## ") == 2


def test_a_policy_that_needs_its_own_pool_stands_beside_the_others() -> None:
    cells = [cell("largest", "nq", 0.4, 1), cell("a", "nq", 0.4, 1), cell("rag", "nq", 0.5, 1, pool="paper and wiki")]
    (table,) = (table for table in tables(summary(*cells)) if table.name == "em")
    assert [row.label for row in table.rows] == ["largest", "a", "rag"]
    assert "paper and wiki" in table.caption


def test_what_an_unpriced_pool_costs_is_unknown_and_not_nothing() -> None:
    spec = {"pools": [{"name": "paper", "members": [{"name": "m", "output_price": None}]}]}
    results = summary(*SMALL, spec=spec)
    assert "cost" not in {table.name for table in tables(results)}
    _, table = headline(results, results.sections[0])
    assert {row.cells[3].text for row in table.rows} == {"–", "not run"}
    assert named(results, "use").rows[0].cells[0].text == "–"


def test_two_pools_have_a_table_each_and_one_that_sets_them_side_by_side() -> None:
    cells = [cell(name, "nq", mean, 1, pool=pool) for pool, mean in (("six", 0.458), ("eight", 0.463)) for name in "ab"]
    found = {table.name: table for table in tables(summary(*cells))}
    assert [column.text for column in found["pools"].head] == ["six", "eight"]
    assert [c.text for c in found["pools"].rows[0].cells] == ["0.458", "0.463"]


def test_paired_differences_are_signed_and_small_p_is_not_rounded_to_nothing() -> None:
    shared = {"baseline": "largest", "pool": "paper", "metric": "em", "n": 500}
    paired = [
        {**shared, "policy": "R1", "dataset": "nq", "difference": 0.088, "low": 0.04, "high": 0.13, "p": 0.0004},
        {**shared, "policy": "KNN*", "dataset": "nq", "difference": -0.064, "low": -0.11, "high": -0.02, "p": 0.01},
    ]
    first, second = named(summary(*SMALL, paired=paired), "paired").rows
    assert [one.text for one in first.cells[2:]] == ["500", "+0.088", "< 0.001"]
    assert [one.text for one in second.cells[2:]] == ["500", "−0.064", "0.010"]
    assert second.cells[3].small == "−0.110 to −0.020"


def test_the_headline_says_who_wins_and_at_what_price() -> None:
    paired = [
        {"policy": "R1_a & b", "baseline": "largest", "pool": "paper", "dataset": name, "metric": "em", "n": 500,
         "difference": difference, "low": 0.0, "high": 0.0, "p": 0.01}
        for name, difference in (("nq", 0.088), ("popqa", -0.009))
    ]  # fmt: skip
    results = summary(*SMALL, paired=paired)
    sentences, table = headline(results, results.sections[0])
    assert sentences[0] == (
        "R1_a & b has the highest average EM: 0.365, 0.040 above the baseline largest (0.325), "
        "at 6.6 times its raw cost (124.4 against 18.9 a question)."
    )
    assert "of 2 data sets it is better than largest on 1 and worse on 1" in sentences[1]
    assert [row.label for row in table.rows] == ["R1_a & b", "largest", "KNN*"]
    assert {one.text for one in table.rows[2].cells} == {"not run"}


def test_the_headline_admits_that_the_baseline_wins_and_names_who_is_as_good_for_less() -> None:
    results = summary(cell("largest", "nq", 0.5, 20), cell("small", "nq", 0.5, 2), cell("dear", "nq", 0.4, 90))
    sentences, _ = headline(results, results.sections[0])
    assert sentences[0].startswith("No policy has a higher EM than the baseline largest: 0.500")
    assert "cheapest policy that is not below the baseline is small" in sentences[1]


def test_the_audit_names_placeholders_gifts_and_substitutes() -> None:
    found = {
        "rows": 1200, "calls": 1500, "rows_without_usage": 7, "estimated": 9, "unpriced_calls": 3,
        "unpriced_members": ["m"],
        "constant_token_counts": [{"member": "a", "which": "output", "tokens": 512, "calls": 600}],
        "substituted": [{"member": "a", "served": "b", "calls": 4}],
    }  # fmt: skip
    table = audit(summary(*SMALL, audit={"paper": found}))
    assert table is not None
    assert [one.text for one in table.rows[0].cells] == ["1,200", "1,500", "7", "9", "1", "1", "3", "4"]
    notes = " ".join(table.notes)
    for said in ("a 512 output tokens (600 calls)", "m, which counts as free", "b for a (4 calls)"):
        assert said in notes
    assert audit(summary(*SMALL)) is None


@pytest.mark.parametrize(("amount", "written"), [(0, "$0"), (12.345, "$12.35"), (0.1, "$0.10"), (0.00012, "$0.00012")])
def test_money_keeps_two_digits(amount: float, written: str) -> None:
    assert usd(amount) == written


@given(st.text(max_size=30))
def test_no_name_is_markup(text: str) -> None:
    name = f"{text}x"
    table = Table("t", name, name, (Column(name, name),), (Row(name, (Cell(name, name, mark=name),)),), (name,))
    written = markdown(table).splitlines()
    rows = [line for line in written if line.startswith("| ")]
    assert len(rows) == 3
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {3}
    outside = re.sub(r"</?su[bp]>", "", "".join(written))
    assert not re.search(r"(?<!\\)(?:\\\\)*[<`]", outside)
    ampersands = re.findall(r"(?<!\\)&", latex(table))
    assert len(ampersands) == 3  # one a line: groups, columns, the row


@pytest.mark.parametrize("label", ["[2pt] x", "* x"])
def test_a_name_is_no_option_of_the_line_before(label: str) -> None:
    rows = (Row("a", (Cell("1"),)), Row(label, (Cell("2"),)))
    assert f"\n{{}}{label} & 2" in latex(Table("t", "t", "t", (Column("x"),), rows))


def test_latex_special_characters_are_escaped() -> None:
    table = Table("t", "t", r"\input{/etc/passwd} 50% of $5 & #1_{a}^b ~ <x>", (), ())
    assert (
        r"\caption{\textbackslash{}input\{/etc/passwd\} 50\% of \$5 \& \#1\_\{a\}\textasciicircum{}b "
        r"\textasciitilde{} \textless{}x\textgreater{}}"
    ) in latex(table)
