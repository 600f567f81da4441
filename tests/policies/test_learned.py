"""Learned routers: each finds what the question decides, falls to the best single member where nothing does, keeps to
its pool, weighs cost alike, and is the same in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np

from antiphon.contracts import MemberView, TrainableRouter
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError
from antiphon.registry import Registry
from antiphon.rollout import Rollout
from antiphon.types import Task
from antiphon_policies import _calibration
from antiphon_policies._decision import decide, expected_costs
from antiphon_policies._learned import Learned

from .conftest import PRICES, TOPICS, questions, topical_scores, views

BUILT_IN = Registry.load([])
LEARNED: dict[str, Any] = {
    name: factory
    for name in BUILT_IN.names("policy")
    if isinstance(factory := BUILT_IN.factory("policy", name), TrainableRouter)
}
CHOOSERS = sorted(
    name
    for name, factory in LEARNED.items()
    if getattr(factory, "chooses_by_quality", False) and name not in ("bert", "causal_lm")
)  # bert: in its own file, on an encoder of its own
pytestmark = pytest.mark.usefixtures("no_embedder")


TRAINING = {"features": "tfidf"}  # wherever the tests run


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`artefact(name, **what)`: a router trained once on `topical` scores."""
    folder, made = tmp_path_factory.mktemp("routers"), dict[str, Path]()

    def train(name: str, pool: Sequence[MemberView] = views(), **what: Any) -> Path:
        key = "-".join([name, *(f"{key}={value}" for key, value in what.items())])
        if key not in made:
            LEARNED[name].train(pool, folder / key, scores=topical_scores(folder, **what), options=TRAINING)
            made[key] = folder / key
        return made[key]

    return train


def chosen(policy: Any, asked: Sequence[str], pool: Sequence[MemberView]) -> list[str]:
    return [policy.choose(Task(question), pool) for question in asked]


UNSEEN = questions(60, seed=7)
OPERAS = [question for topic, question in UNSEEN if topic == "operas"]


# ---- every method -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHOOSERS)
def test_it_reaches_the_oracle_where_the_question_decides(name: str, artefact: Any) -> None:
    asked = chosen(LEARNED[name](path=artefact(name)), [question for _, question in UNSEEN], views())
    right = sum(member == TOPICS[topic] for member, (topic, _) in zip(asked, UNSEEN, strict=True))
    assert right >= 0.95 * len(UNSEEN)


@pytest.mark.parametrize("name", CHOOSERS)
def test_it_falls_to_the_best_single_member_where_nothing_decides(name: str, artefact: Any) -> None:
    policy = LEARNED[name](path=artefact(name, shuffled=True))
    asked = chosen(policy, [question for _, question in UNSEEN], views())
    assert asked.count("Physicist") >= 0.9 * len(asked)


@pytest.mark.parametrize("name", CHOOSERS)
def test_what_a_point_is_worth_moves_the_choice_from_the_cheapest_to_the_best(name: str, artefact: Any) -> None:
    """The right member of a question on operas is the dearest: 4 USD per million x 100 tokens = 0.0004 USD."""
    asked = {usd: chosen(LEARNED[name](path=artefact(name), usd_per_point=usd), OPERAS, views()) for usd in (0.0, 1.0)}
    assert set(asked[0.0]) == {"Geographer"}
    assert asked[1.0].count("Musician") >= 0.95 * len(OPERAS)


@pytest.mark.parametrize("name", CHOOSERS)
def test_what_a_new_llm_needs(name: str, artefact: Any) -> None:
    """Where nothing or a descriptor is enough, an artefact takes in a member that it has no score of; the others say
    that they must be trained again."""
    factory = LEARNED[name]
    old = [view for view in views() if view.name != "Musician"]
    policy = factory(path=artefact(name, old, without="Musician"))
    if factory.joins in ("nothing", "descriptor"):
        assert set(chosen(policy, OPERAS, views())) <= set(PRICES)
    else:
        with pytest.raises(ConfigError, match="was not trained for Musician; train it with scores of them"):
            policy.choose(Task(OPERAS[0]), views())


def test_artefacts_are_data_and_decide_the_same_in_another_process(artefact: Any) -> None:
    paths = {name: artefact(name) for name in CHOOSERS}
    for path in paths.values():
        assert sorted(file.name for file in path.iterdir()) == ["router.json", "weights.safetensors"]
        facts = json.loads((path / "router.json").read_text())
        assert len(facts["data_hash"]) == len(facts["pool_hash"]) == 64
    asked = [question for _, question in UNSEEN[:12]]
    here = {name: chosen(LEARNED[name](path=path), asked, views()) for name, path in paths.items()}
    code = (
        "import json, sys\n"
        "from antiphon.contracts import MemberView\n"
        "from antiphon.descriptor import Descriptor\n"
        "from antiphon.registry import Registry\n"
        "from antiphon.types import Task\n"
        "paths, pool, asked = json.load(sys.stdin)\n"
        "pool = [MemberView(one, one.price) for one in map(Descriptor.of, pool)]\n"
        "policies = {name: Registry.load([]).policy(name, path=path) for name, path in paths.items()}\n"
        "print(json.dumps({n: [p.choose(Task(one), pool) for one in asked] for n, p in policies.items()}))\n"
    )
    pool = [view.descriptor.model_dump(mode="json") for view in views()]
    given = json.dumps([{name: str(path) for name, path in paths.items()}, pool, asked])
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == here


# ---- what they share, on one of them ------------------------------------------------------------------------------


def test_an_artefact_chooses_among_those_that_are_there(topical: Any, tmp_path: Path) -> None:
    LEARNED["mlp"].train(views(), tmp_path / "router", scores=topical())
    policy = LEARNED["mlp"](path=str(tmp_path / "router"))
    some = [view for view in views() if view.name != "Physicist"]
    assert set(chosen(policy, [question for _, question in questions(30)], some)) == {"Geographer", "Musician"}
    strangers = [MemberView(Descriptor.of({"name": "X", "description": "x", "model": "x"}), None)]
    with pytest.raises(ConfigError, match=r"knows Geographer, Musician, Physicist and nobody of this pool; train it"):
        policy.choose(Task("Which atoms?"), strangers)


def test_no_question_of_its_own_fold_is_learnt_from(topical: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon_policies import _fitted
    from antiphon_policies._scores import fold_of, question_key

    seen: list[set[str]] = []
    learn = _fitted.learn

    def spied(policy: Any, scores: Any, rows: Any, *more: Any) -> Any:
        seen.append({row.key for row in rows})
        return learn(policy, scores, rows, *more)

    monkeypatch.setattr(_fitted, "learn", spied)
    policy = LEARNED["mlp"](scores=topical(60), folds=3, training={"epochs": 1})
    for _, question in questions(60):
        policy.choose(Task(question), views())
    assert len(seen) == 3
    for _, question in questions(60):
        key = question_key(question)
        assert sum(key in rows for rows in seen) == 2, fold_of(key, 3)


def test_points_of_a_curve_are_trained_once(topical: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon_policies import _fitted

    made: list[Any] = []
    learn = _fitted.learn
    monkeypatch.setattr(_fitted, "learn", lambda *given: made.append(given) or learn(*given))
    for training in ({"epochs": 2}, {"epochs": 3}):
        for usd in (0.0, 1.0):
            policy = LEARNED["mlp"](scores=topical(30), folds=0, training=training, usd_per_point=usd)
            policy.choose(Task("Which atoms?"), views())
    assert len(made) == 2


def test_the_same_seed_gives_the_same_weights(topical: Any, tmp_path: Path) -> None:
    facts = [LEARNED["mlp"].train(views(), tmp_path / f"r{n}", scores=topical(60)) for n in range(2)]
    hashes = [json.loads((tmp_path / f"r{n}/router.json").read_text())["weights_sha256"] for n in range(2)]
    assert hashes[0] == hashes[1]
    assert facts[0]["validation"] == facts[1]["validation"]
    LEARNED["mlp"].train(views(), tmp_path / "r1", scores=topical(60), options={"seed": 5})
    assert json.loads((tmp_path / "r1/router.json").read_text())["weights_sha256"] != hashes[0]


async def test_in_a_rollout(topical: Any, scripted_pool: Callable[..., Any]) -> None:
    members = [
        {"name": view.name, "description": view.descriptor.description, "price": {"output": PRICES[view.name]}}
        for view in views()
    ]
    trajectory = await Rollout(Task("Which atoms are there?"), scripted_pool(members, ["helium"])).run(
        LEARNED["mlp"](scores=topical(), folds=0)
    )
    assert ([call.member for call in trajectory.calls], trajectory.answer) == (["Physicist"], "helium")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either `path` .* or `scores`"),
        ({"scores": "S", "path": "x"}, "give either `path`"),
        ({"path": "x", "training": {"lr": 1}}, "an artefact .* is trained already; leave `training`"),
        ({"scores": "S", "usd_per_point": -1}, "usd_per_point is USD a question for one more point"),
        ({"scores": "S", "folds": 1}, "folds is 0"),
        ({"scores": "S", "training": {"hiden": 3}}, "policy mlp: training: unknown key 'hiden'.*did you mean 'hidden'"),
        ({"scores": "S", "training": {"lr": 0}}, "training: lr"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str, topical: Any) -> None:
    options = {key: topical(20) if value == "S" else value for key, value in options.items()}
    with pytest.raises(ConfigError, match=message):
        BUILT_IN.policy("mlp", **options)


def test_too_few_questions_and_no_prices_are_told(topical: Any) -> None:
    with pytest.raises(ConfigError, match="5 questions have scores of this pool's members; a router needs 10"):
        LEARNED["mlp"](scores=topical(5), folds=0).choose(Task("Which atoms?"), views())
    unpriced = [replace(view, quote=None) for view in views()]
    policy = LEARNED["mlp"](scores=topical(60), folds=0, usd_per_point=1)
    with pytest.raises(ConfigError, match="there is none for Geographer, Physicist, Musician; add it"):
        policy.choose(Task("Which atoms?"), unpriced)


def test_an_artefact_that_does_not_hold_is_refused(topical: Any, tmp_path: Path) -> None:
    def load(folder: Path) -> str:
        return str(LEARNED["mlp"](path=str(folder)).choose(Task("Which atoms?"), views()))

    with pytest.raises(ConfigError, match=r"none is no trained router; make one with `antiphon train-router`"):
        load(tmp_path / "none")
    out = tmp_path / "router"
    LEARNED["mlp"].train(views(), out, scores=topical(60))
    facts = json.loads((out / "router.json").read_text())
    (out / "router.json").write_text(json.dumps({**facts, "policy": "other"}))
    with pytest.raises(ConfigError, match="is a router of policy 'other', not of 'mlp'"):
        load(out)
    (out / "router.json").write_text(json.dumps({**facts, "antiphon_router": 99}))
    with pytest.raises(ConfigError, match="another version"):
        load(out)
    (out / "router.json").write_text(json.dumps({**facts, "members": None}))
    with pytest.raises(ConfigError, match="lacks a part"):
        load(out)
    (out / "router.json").write_text(json.dumps(facts))
    weights = (out / "weights.safetensors").read_bytes()
    (out / "weights.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ConfigError, match="is damaged"):
        load(out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letters").touch()
    with pytest.raises(ConfigError, match="exists and is no trained router"):
        LEARNED["mlp"].train(views(), tmp_path / "mine", scores=topical(60))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# ---- decision and calibration, by hand ----------------------------------------------------------------------------


def test_the_decision_by_hand() -> None:
    pool, quality = views(), {"Geographer": 0.50, "Physicist": 0.55, "Musician": 0.60}
    costs = {"Geographer": 0.0001, "Physicist": 0.0003, "Musician": 0.0020}
    assert decide(quality, None, pool, None) == "Musician"
    assert decide(quality, costs, pool, 0.0) == "Geographer"
    # five points more: worth it from 0.0002 / 5 = 0.00004 a point for Physicist, 0.0017 / 5 = 0.00034 for Musician
    for usd, member in (
        (0.000039, "Geographer"),
        (0.000041, "Physicist"),
        (0.00033, "Physicist"),
        (0.00035, "Musician"),
    ):
        assert decide(quality, costs, pool, usd) == member
    assert decide(dict.fromkeys(quality, 0.5), None, pool, None) == "Geographer"  # a tie: the cheaper


def test_expected_costs_by_hand() -> None:
    """40 characters: 10 tokens read at 1 USD per million, 50 written at 2; who was not counted writes as the others."""
    price = {"input": 1, "output": 2}
    made = [Descriptor.of({"name": name, "description": "d", "model": "m", "price": price}) for name in ("A", "B", "C")]
    pool = [MemberView(one, one.price) for one in made]
    costs = expected_costs(pool, {"A": 50, "B": 150}, "x" * 40, "p")
    assert costs == pytest.approx({"A": 110e-6, "B": 310e-6, "C": 210e-6})
    assert expected_costs(pool, {}, "x" * 40, "p")["A"] == pytest.approx(266e-6)


def test_predictions_count_as_far_as_held_out_questions_confirm_them() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 0.1, (400, 3))
    scores = np.array([0.3, 0.5, 0.4]) + truth + rng.normal(0, 0.05, truth.shape)
    right = _calibration.fit(2 * truth[:200] + 7, scores[:200], 2 * truth[200:] + 7, scores[200:], True)
    assert right["slopes"] == pytest.approx([0.5, 0.5], abs=0.03)  # a scale of its own is undone
    assert np.abs(_calibration.apply(right, 2 * truth + 7, range(3)) - scores).mean() < 0.06
    noise = rng.normal(0, 1, (200, 3))
    wrong = _calibration.fit(noise, scores[:200], noise, scores[200:], True)
    assert wrong["slopes"] == pytest.approx([0, 0], abs=0.01)
    assert _calibration.apply(wrong, noise, range(3)).argmax(axis=1).tolist() == [1] * 200


def test_an_llm_that_is_not_predicted_is_never_chosen() -> None:
    predicted = np.array([[0.2, np.nan, 0.6], [0.7, np.nan, 0.1]] * 20)
    scores = np.array([[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]] * 20)
    calibration = _calibration.fit(predicted, scores, predicted, scores, True)
    expected = _calibration.apply(calibration, predicted, range(3))
    assert np.isnan(expected[:, 1]).all()
    assert np.nanargmax(expected, axis=1).tolist() == [2, 0] * 20


# ---- the command --------------------------------------------------------------------------------------------------


def test_the_command_trains_what_the_policy_then_uses(topical: Any, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from antiphon.cli.train_router import train_router

    members = "".join(
        f'[members.{name}]\ndescription = "Knows {topic}."\nmodel = "m"\nprice = {{ input = 0, output = 1 }}\n'
        for topic, name in TOPICS.items()
    )
    config = tmp_path / "antiphon.toml"
    config.write_text(f"{members}[pools.three]\nmembers = {json.dumps(list(PRICES))}\n", "utf-8")
    arguments = ["mlp", "--data", topical(60), "--out", str(tmp_path / "r"), "--pool", "three", "--config", str(config)]
    done = CliRunner().invoke(train_router, [*arguments, "--option", "epochs=30", "--json"])
    assert done.exception is None, done.output
    facts = json.loads(done.stdout)
    assert facts["questions"] == {"train": 48, "validation": 12}
    assert facts["settings"]["epochs"] == 30
    assert set(facts["validation"]) == {"router", "best_single", "oracle"}
    assert chosen(LEARNED["mlp"](path=facts["out"]), ["Which atoms?"], views()) == ["Physicist"]
    shown = CliRunner().invoke(train_router, arguments)
    assert "use it with [policies.mlp] path =" in shown.output
    for wrong, message in (
        (["random", *arguments[1:]], "nothing of policy 'random' is trained from scores; these are: .*mlp"),
        ([*arguments, "--option", "epochs"], "--option 'epochs' is not KEY=VALUE"),
        ([*arguments, "--option", "epoch=3"], "unknown key 'epoch'.*did you mean 'epochs'"),
    ):
        failed = CliRunner().invoke(train_router, wrong)
        assert isinstance(failed.exception, ConfigError)
        with pytest.raises(ConfigError, match=message):
            raise failed.exception


def test_every_learned_policy_offers_the_same_options() -> None:
    import inspect

    shared = list(inspect.signature(Learned).parameters)
    for name, factory in LEARNED.items():
        assert list(inspect.signature(factory).parameters)[: len(shared)] == shared, name
