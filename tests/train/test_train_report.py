"""The report of training runs: true numbers, every text escaped, several runs over each other, unfinished ones too."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from antiphon.card import FILE, Base, Card, Spoken
from antiphon.cli import run as antiphon
from antiphon.errors import ConfigError
from antiphon.train.report import summary, write
from antiphon.train.writers import METRICS, open_writers
from antiphon.types import Attempt, Call, Segment, Task, Trajectory, Usage

EVIL = "</span><script>alert(1)</script>"
CALL = Call("Geo", "capital?", "ok", "Lima", (Attempt("local:geo", "ok", usage=Usage(5, 3), cost_usd=0.001),))
DID = Trajectory(
    "1",
    Task(f"Where? {EVIL}", golden_answers=("Lima",)),
    "router_r1",
    "Lima",
    "answer",
    (
        Segment("prompt", "You may ask."),
        Segment("policy", "<think>I ask.</think><search>Geo: capital?</search>"),
        Segment("information", f"\n<information>\nLima {EVIL}\n</information>\n"),
        Segment("policy", "<answer>Lima</answer>"),
    ),
    calls=(CALL,),
    format_problems=("no_think",),
)
CARD = Card(
    name="chamber",
    base=Base(name="tiny", hash="0" * 64),
    policy="router_r1",
    grammar=Spoken(name="router_r1", version="1", template="abc"),
)


class Page(HTMLParser):
    """Checks that what is opened is closed in order; keeps tags, their classes and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.classes.update((dict(attrs).get("class") or "").split())
        if tag not in ("meta", "path", "use", "rect", "image"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run(name, steps)`: a run of 40 steps planned, as its folder has it."""

    def make(
        name: str = "run", steps: int = 40, *, calls: float = 1.0, kl: float = 0.01, folder: Path = tmp_path
    ) -> Path:
        run = folder / name
        writers = open_writers(run, ())
        writers.step({"step": 0, "val_em": 0.1, "val_s": 36.0})
        for step in range(1, steps + 1):
            row = {"step": step, "reward": step / 100, "reward_format": -0.1, "reward_outcome": 0.1, "em": step / 40}
            row |= {"entropy": 1 / step, "kl": kl, "format_ok": 1.0, "cost": 2.0, "calls": calls, "step_s": 360.0}
            writers.step(row | ({"val_em": 0.5} if step % 20 == 0 else {}) | {"spent_usd": step / 1000})
            if step % 10 == 0:
                writers.rollouts(step, [DID] * 12)
        writers.close()
        spec = {"train": {"steps": 40}, "collapse": {"window": 20}, "data": {"dataset": EVIL}}
        (run / "spec.json").write_text(json.dumps({"spec": spec}))
        (run / "checkpoints" / "step-000010").mkdir(parents=True)
        (run / "checkpoints" / "step-000010" / FILE).write_text(CARD.to_json())
        return run

    return make


def test_the_page_holds_curves_rollouts_card_and_spec(make_run: Callable[..., Path]) -> None:
    pytest.importorskip("matplotlib")
    path = write([make_run()])
    page = Page(path.read_text("utf-8"))
    assert page.tags["svg"] == 5  # reward and entropy; EM and form; cost and calls; parts; KL
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == 0
    assert page.classes["step"] == 4
    assert page.classes["policy"] == 4 * 8 * 2 + 1  # two spans of a rollout, at most eight a step; and the key
    assert page.classes["information"] == 4 * 8 + 1
    assert "run: 40 of 40 steps, 4.0 h" in page.text
    assert "grammar router_r1/1, template abc" in page.text
    assert "Geo (ok, 3 tokens, $0.001, 0.00 s)" in page.text
    assert f"Lima {EVIL}" in page.text  # as text


def test_the_numbers_are_means_of_the_first_and_the_last_steps(make_run: Callable[..., Path]) -> None:
    (found,) = summary([make_run()])["runs"]
    assert (found["steps"], found["planned"], found["collapsed"]) == (40, 40, None)
    assert found["spent_usd"] == 0.04
    assert found["hours"] == pytest.approx(4.01)
    reward = found["metrics"]["reward"]
    assert (reward["first"], reward["last"], reward["highest"]) == (0.01, 0.4, 0.4)
    assert (reward["start"], reward["end"]) == (pytest.approx(0.045), pytest.approx(0.365))  # 8 values
    assert found["metrics"]["val_em"] == pytest.approx(
        {"first": 0.1, "last": 0.5, "start": 0.1, "end": 0.5, "lowest": 0.1, "highest": 0.5}
    )


def test_several_runs_are_drawn_over_each_other_and_averaged(make_run: Callable[..., Path]) -> None:
    pytest.importorskip("matplotlib")
    page = Page(write([make_run("seed-0", 40), make_run("seed-1", 20)]).read_text("utf-8"))
    assert page.tags["svg"] == 5
    assert "seed-0, reward: 0.01 at step 1, 0.4 at step 40; seed-1, reward: 0.01 at step 1, 0.2 at step 20" in page.text
    assert "mean of the runs" in page.text
    assert page.classes["step"] == 4 + 2


def test_a_run_that_went_on_beyond_its_plan_has_none(make_run: Callable[..., Path]) -> None:
    (found,) = summary([make_run(steps=41)])["runs"]
    assert (found["steps"], found["planned"]) == (41, None)


def test_runs_of_one_name_are_told_apart(make_run: Callable[..., Path], tmp_path: Path) -> None:
    runs = [make_run(folder=tmp_path / "a"), make_run(folder=tmp_path / "b")]
    assert [one["name"] for one in summary(runs)["runs"]] == [str(run) for run in runs]


def test_a_run_that_has_only_begun_or_was_cut_off_is_shown(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run(steps=1)
    (run / METRICS).write_text((run / METRICS).read_text() + '{"step": 2, "re')
    (run / "spec.json").unlink()
    assert "run: 1 steps" in Page(write([run]).read_text("utf-8")).text
    (found,) = summary([run])["runs"]
    assert (found["steps"], found["planned"]) == (1, None)


def test_why_a_run_stopped_itself_is_said(make_run: Callable[..., Path]) -> None:
    run = make_run(calls=0.0)
    (found,) = summary([run])["runs"]
    assert "asked 0 members on average" in found["collapsed"]
    page = Page(write([run]).read_text("utf-8"))
    assert f"run stopped itself: {found['collapsed']}" in page.text
    assert page.classes["warning"] == 1


def test_a_run_whose_numbers_ran_away_is_said_to_have_collapsed(make_run: Callable[..., Path]) -> None:
    (found,) = summary([make_run(kl=float("nan"))])["runs"]
    assert "divergence from the reference" in found["collapsed"]
    assert "kl" not in found["metrics"]


def test_without_matplotlib_the_page_says_so(make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "There are no curves" in Page(write([make_run()]).read_text("utf-8")).text


def test_a_folder_without_a_run_and_a_damaged_rollout_are_named(make_run: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is .*nothing the folder of a training run"):
        write([tmp_path / "nothing"])
    run = make_run()
    (run / "rollouts" / "step-000020.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"step-000020\.jsonl, line 1: not a trajectory"):
        write([run])


def test_the_command_writes_the_page_or_prints_the_summary(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    assert antiphon(["train", "report", str(run)]) == 0
    said = capsys.readouterr()
    assert "run: 40 of 40 steps, 4.01 h, $0.040000 spent; reward 0.045 -> 0.365" in said.out
    assert "report.html" in said.err
    assert (run / "report.html").is_file()
    assert antiphon(["train", "report", str(run), "--json", "--out", str(tmp_path / "page.html")]) == 0
    assert json.loads(capsys.readouterr().out) == summary([run])
    assert (tmp_path / "page.html").is_file()
