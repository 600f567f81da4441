"""What our trainer does at the end of verl's steps, and its figures of the tensors that verl trains on; no workers run.

`make verl-cpu` runs the whole of it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")
pytest.importorskip("transfer_queue")

import torch

from antiphon.errors import GeneratorError
from antiphon.train import verl_trainer
from antiphon.train.agent_loop import digest
from antiphon.train.batches import Batch, Scored
from antiphon.train.samples import Sample
from antiphon.train.spec import make_spec

SAMPLES = [
    Sample([1, 2], [5, 6, 7, 8], [1, 1, 0, 1], [-0.5, -1.0, 0.0, -0.2]),
    Sample([1, 3], [9, 4], [1, 1], [-2.0, -0.1]),
]


def jagged(rows: list[list[Any]], kind: Any = torch.float32) -> Any:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=kind) for row in rows], layout=torch.jagged)


def fields(**changed: Any) -> Any:
    """What the queue holds of the two samples, the actor's log-probabilities a tenth lower than the rollout's."""
    return {
        "responses": jagged([sample.response_ids for sample in SAMPLES], torch.int64),
        "response_mask": jagged([sample.mask for sample in SAMPLES], torch.int64),
        "rollout_log_probs": jagged([sample.logprobs or [] for sample in SAMPLES]),
        "old_log_probs": jagged([[value - 0.1 for value in sample.logprobs or []] for sample in SAMPLES]),
        "advantages": jagged([[1.0, 1.0, 0.0, 1.0], [-1.0, -1.0]]),
        "extra_fields": [{"antiphon_digest": digest(s.response_ids, s.mask)} for s in SAMPLES],
        **changed,
    }


def trainer(monkeypatch: pytest.MonkeyPatch, data: Any = None, **tables: Any) -> Any:
    """A trainer of a spec that writes down what it tells the hub and what it saves."""
    made: Any = object.__new__(verl_trainer.Trainer)
    spec = make_spec(
        {
            "train": {"engine": "verl", "steps": 6},
            "data": {"dataset": "arithmetic"},
            "model": {"base": "tiny"},
            "checkpoints": {"every": 4},
            **tables,
        },
        "spec.toml",
    )
    made._job = SimpleNamespace(spec=spec, validation_tasks=2)
    made._over = made._saved = None
    made.use_reference_policy = made.use_critic = False
    made.total_training_steps = 6
    made.told, made.saved, made.answers = [], [], {}
    made._tell = lambda what, *args: made.told.append(what) or made.answers.get(what)
    made._save = lambda best=False: made.saved.append((made.global_steps, best))
    monkeypatch.setattr(verl_trainer.PPOTrainerSync, "_compute_metrics", lambda *args, **kwargs: None)
    monkeypatch.setattr(verl_trainer.PPOTrainerSync, "_validate", lambda self: {"val": 1.0})
    monkeypatch.setattr(verl_trainer.tq, "kv_batch_get", lambda **kwargs: data or fields())
    return made


def ended(made: Any, step: int) -> dict[str, Any]:
    """A step's end, as verl comes to it."""
    made.global_steps, metrics = step, {"actor/pg_loss": 0.25, "actor/grad_norm": 1.5, "what": "text"}
    batch = SimpleNamespace(keys=["a_0_0", "a_1_0", "pad"], tags=[{}, {}, {"is_padding": True}], partition_id="train")
    made._compute_metrics(batch, metrics, {"gen": 1.0, "step": 2.0}, global_steps=step, epoch=0)
    return metrics


def test_checkpoints_are_made_when_due_at_the_best_validation_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(monkeypatch, validation={"every": 3})
    for step in range(1, 7):
        made.answers["validated"] = step == 3
        ended(made, step)
    assert made.saved == [(3, True), (4, False), (6, False)]
    assert made.told.count("validated") == 2
    assert made.total_training_steps == 6


def test_a_run_that_the_hub_ends_is_saved_and_stops_verls_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(monkeypatch)
    made.answers["kept"] = ("collapse", "nobody is asked")
    ended(made, 2)
    assert made.saved == [(2, False)]
    assert made.total_training_steps == 2
    made.fit = lambda manager: setattr(made, "global_steps", 3)  # verl counts on
    made._saved = 2
    done = made.run(None)
    assert (done.end, done.step, done.why) == ("collapse", 2, "nobody is asked")


def test_a_step_from_which_nothing_is_learnt_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(monkeypatch)
    made.checkpoint_manager = SimpleNamespace(sleep_replicas=lambda: None)
    made.curr_step_profile = False
    made.answers["sampled"] = ("budget", "no more than $1")

    def fit(manager: Any) -> None:
        made.global_steps = 4
        made.on_sample_end()

    made.fit = fit
    done = made.run(None)
    assert (done.end, done.step) == ("budget", 3)
    assert made.saved == [(3, False)], "the weights are those of the step before"


def test_a_run_that_ends_at_its_first_validation_has_taken_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(monkeypatch, validation={"every": 3})
    made.answers["kept"] = ("budget", "no more than $1")
    made.global_steps, made._save = 0, lambda best=False: setattr(made, "_saved", made.global_steps)
    made.fit = lambda manager: made._validate()
    done = made.run(None)
    assert (done.end, done.step, done.why, made._saved) == ("budget", 0, "no more than $1", 0)


def test_figures_are_those_of_the_local_engine_on_the_same_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(monkeypatch)
    figures = made._figures(
        SimpleNamespace(keys=["a", "b"], tags=[{}, {}], partition_id="train"), {"actor/pg_loss": 0.25, "perf/x": 3}
    )
    ours = Batch.of([Scored(s, 0.0, "g") for s in SAMPLES], mask_information=True, device=torch.device("cpu"))
    ours.current = ours.sampled - 0.1
    ours.advantages = torch.tensor([[1.0, 1.0, 0.0, 1.0], [-1.0, -1.0, 0.0, 0.0]])
    expected = ours.figures()
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    assert figures["mismatch"] == pytest.approx(0.1)
    assert figures["logprob_correlation"] == pytest.approx(1.0)
    assert (figures["checked"], figures["policy_loss"], figures["perf/x"]) == (2, 0.25, 3)


@pytest.mark.parametrize(
    "changed",
    [
        {"response_mask": jagged([[1, 1, 1, 1], [1, 1]], torch.int64)},
        {"responses": jagged([[5, 6, 7, 8], [9, 3]], torch.int64)},
    ],
    ids=["mask", "tokens"],
)
def test_what_was_not_handed_over_is_not_trained_on_in_silence(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    made = trainer(monkeypatch, fields(**changed))
    with pytest.raises(GeneratorError, match="verl trains on other tokens, or under another mask"):
        ended(made, 1)
