"""verl's synchronous trainer with our steps' ends: figures, validation, checkpoints, and a run that ends itself.

It runs in verl's task runner, a Ray actor, and tells the run's hub (`antiphon.train.verl_ledger`) how each step goes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from antiphon.errors import GeneratorError, MissingExtra
from antiphon.train import card
from antiphon.train.agent_loop import digest
from antiphon.train.batches import Batch
from antiphon.train.checkpoint import CHECKPOINTS, SHARDS, Checkpoints, save_state
from antiphon.train.verl_weights import merge

try:
    import ray
    import torch
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
except ImportError as error:
    raise MissingExtra(f"antiphon.train.verl_trainer ({error})", "train") from error

if TYPE_CHECKING:
    from antiphon.card import Card
    from antiphon.train.run import Ended
    from antiphon.train.spec import TrainSpec
    from antiphon.train.verl_ledger import Over

_NAMES = {
    "policy_loss": "actor/pg_loss",
    "value_loss": "critic/vf_loss",
    "clip_fraction": "actor/pg_clipfrac",
    "grad_norm": "actor/grad_norm",
}
"""Our names of figures that verl measures as we do; all of verl's own stand beside them under verl's names."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the trainer is given beside verl's configuration.

    Attributes:
        folder: of the run.
        card: of the weights, but for steps and results.
        validation_tasks: 0: there is no validation.
        done: the step after which the checkpoint was made that the run goes on from; None: it is a new run.
    """

    spec: TrainSpec
    folder: Path
    card: Card
    validation_tasks: int
    done: int | None


class _Over(Exception):
    """The run ends here, in the middle of a step."""

    def __init__(self, over: Over) -> None:
        super().__init__(*over)
        self.over = over


class Trainer(PPOTrainerSync):  # type: ignore[misc]
    """Args: verl's configuration, what is to be done, and the Ray actor of the hub."""

    def __init__(self, config: Any, job: Job, hub: Any) -> None:
        super().__init__(config)
        self._job, self._hub = job, hub
        settings = job.spec.checkpoints
        self._checkpoints = Checkpoints(job.folder / CHECKPOINTS, settings.keep, settings.keep_every)
        self._saved = job.done
        self._over: Over | None = None
        self.global_steps: int = 0

    def run(self, agent_loop_manager: Any) -> Ended:
        """Train to the end of the run, whichever it is."""
        from antiphon.train.run import Ended

        try:
            self.fit(agent_loop_manager)
        except _Over as raised:  # nothing has been learnt from the step under way
            self._over, self.global_steps = raised.over, max(0, self.global_steps - 1)
        else:
            self.global_steps -= 1  # verl counts on
        end, why = self._over or ("done", "")
        if self._saved != self.global_steps:
            self._save()
        return Ended(end, self.global_steps, why)

    # ---- verl's hooks ---------------------------------------------------------------------------------------------

    def on_sample_end(self) -> None:
        """All rollouts of the step have ended."""
        super().on_sample_end()
        if (over := self._tell("sampled", self.global_steps)) is not None:
            raise _Over(over)

    def _validate(self) -> dict[str, float]:
        """verl's validation; at the start of a run it is a step of its own, step 0."""
        began = time.monotonic()
        measured: dict[str, float] = super()._validate()
        seconds = time.monotonic() - began
        self._is_best = self._tell("validated", self.global_steps, seconds, self._job.validation_tasks)
        if self.global_steps == 0:
            over = self._tell("kept")
            self._save(best=self._is_best)
            if over is not None:
                raise _Over(over)
        return measured

    def on_train_begin(self) -> None:
        """The first step is about to begin; without a validation before it nothing has been saved yet."""
        super().on_train_begin()
        if self.global_steps == 1 and self._saved is None:
            self.global_steps = 0
            self._save()
            self.global_steps = 1

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        """The last thing that verl does in a step."""
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        spec, step = self._job.spec, global_steps
        self._tell("learnt", step, self._figures(batch, metrics), timing_raw["gen"], timing_raw["step"])
        self._is_best, last = False, step == spec.train.steps
        if spec.validation is not None and (last or step % spec.validation.every == 0):
            self.on_validate_begin()
            metrics |= self._validate()
            self.on_validate_end()
        self._over = self._tell("kept")
        if self._is_best or last or self._over is not None or step % spec.checkpoints.every == 0:
            self._save(best=self._is_best)
        if self._over is not None:
            self.total_training_steps = step

    # ---- what a step came to --------------------------------------------------------------------------------------

    def _figures(self, batch: Any, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Ours (see `Learner.update`), of the very tensors that verl has trained on, and verl's own.

        Beside them: `checked`, samples whose tokens and mask are those that the rollouts handed over (all of them, or
        it raises); `logprob_correlation`, of the rollout's log-probabilities and those of verl's actor.

        Raises:
            GeneratorError: they are not what the rollouts handed over.
        """
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        wanted = ["responses", "response_mask", "rollout_log_probs", "old_log_probs", "advantages", "extra_fields"]
        wanted += ["ref_log_prob"] if self.use_reference_policy else []
        wanted += ["values", "returns"] if self.use_critic else []
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=wanted)
        _check(data)
        compared = _batch(data)
        figures = {**compared.figures(), "checked": float(len(keys))}
        if (ours := compared.policy & ~compared.sampled.isnan()).sum() > 1:
            pair = torch.stack([compared.sampled[ours], compared.current[ours]])
            figures["logprob_correlation"] = float(torch.corrcoef(pair)[0, 1])
        figures |= {ours: float(metrics[verl]) for ours, verl in _NAMES.items() if verl in metrics}
        return figures | {name: float(value) for name, value in metrics.items() if _is_number(value)}

    # ---- the hub --------------------------------------------------------------------------------------------------

    def _tell(self, what: str, *args: Any) -> Any:
        return ray.get(getattr(self._hub, what).remote(*args))

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def _save(self, *, best: bool = False) -> None:
        """verl's checkpoint in ours: weights as they are used elsewhere, their card, and what resuming needs."""
        step, awake = self.global_steps, self.config.actor_rollout_ref.rollout.free_cache_engine
        if awake:  # verl saves while no server holds the GPU's memory
            self._servers("sleep_replicas")
        state = self._tell("state")
        made = self._job.card.model_copy(update={"steps": step, "results": self._tell("results")})

        def fill(part: Path) -> None:
            self.config.trainer.default_local_dir = str(part)
            PPOTrainerSync._save_checkpoint(self)
            (part / "latest_checkpointed_iteration.txt").unlink()
            shards = part / f"{SHARDS}{step}"
            (shards / "data.pt").unlink()  # which questions come next is decided by the step alone
            merge(shards / "actor", part, base=made.base.name)
            save_state(part, state)
            card.write(part, made)

        self._checkpoints.save(step, fill, best=best)
        self._saved = step
        if awake:
            self._servers("update_weights", step)

    def _servers(self, what: str, *args: Any) -> None:
        """Have verl's servers do it; verl waits by itself where, as here, no event loop runs."""
        getattr(self.checkpoint_manager, what)(*args)


def _check(data: Any) -> None:
    """Each response and mask is the one that the agent loop handed over."""
    handed = [getattr(fields, "data", fields)["antiphon_digest"] for fields in data["extra_fields"]]
    for ids, mask, expected in zip(data["responses"].unbind(), data["response_mask"].unbind(), handed, strict=True):
        if digest(ids.tolist(), mask.tolist()) != expected:
            raise GeneratorError(
                "verl trains on other tokens, or under another mask, than a rollout handed over; this is a fault of "
                "ours or of verl's: please report it with the versions of both"
            )


def _batch(data: Any) -> Batch:
    padded = {key: data[key].to_padded_tensor(0.0) for key in data.keys() if key != "extra_fields"}  # noqa: SIM118
    mask = padded["response_mask"].bool()
    nothing = torch.full(mask.shape, torch.nan)
    sampled = torch.where(mask, padded["rollout_log_probs"].float(), nothing)
    return Batch(
        samples=(),
        groups=(),
        rewards=torch.empty(0),
        mask=mask,
        policy=mask,
        last=mask,
        sampled=sampled,
        current=torch.where(mask, padded["old_log_probs"].float(), nothing),
        advantages=padded["advantages"].float(),
        reference=padded.get("ref_log_prob"),
        values=padded.get("values"),
        returns=padded.get("returns"),
    )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


class TaskRunner:
    """What verl's own task runner does, with our trainer; to be made a Ray actor."""

    def run(self, config: Any, job: Job, hub: Any) -> Ended:
        """Set everything up, and train."""
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ
        from verl.utils.logging_utils import configure_verl_logging

        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        try:
            trainer = cast(Any, Trainer)(config, job, hub)  # verl's decorator loses the type of its base
            trainer.init()
            manager = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=None,
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            ended: Ended = trainer.run(manager)
            return ended
        finally:
            tq.close()
