"""Updates a policy's weights from scored samples: PPO, GRPO or RLOO, for any causal language model of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from antiphon.errors import ConfigError
from antiphon.train.algorithms import (
    gae,
    grpo_advantages,
    kl,
    masked_whiten,
    policy_loss,
    rloo_advantages,
    token_weights,
    value_loss,
)
from antiphon.train.batches import Batch, Figures, put
from antiphon.train.batches import Scored as Scored
from antiphon.train.packing import Row, pack
from antiphon.train.scoring import Scorer
from antiphon.train.settings import AlgorithmSettings as AlgorithmSettings


class Learner:
    """Holds what an update needs beside the network: the optimiser, the value head, the reference.

    The reference of the KL term is the network as it is when the learner is made: an adapter that was trained before,
    the base where an adapter is new, or the whole model.

    Args:
        network: see `antiphon.train.lora.load_trainable`; what requires a gradient is trained, and is float32.
        temperature: at which the rollouts are sampled.
        seed: of the order of mini-batches.

    Raises:
        ConfigError: nothing to train, weights that are not float32, or an architecture that cannot be trained here.
    """

    def __init__(self, network: Any, settings: AlgorithmSettings, *, temperature: float = 1.0, seed: int = 0) -> None:
        self.settings = settings
        self._weights = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        if not self._weights:
            raise ConfigError("the network has no weights to train; load it with `load_trainable`")
        if any(weight.dtype != torch.float32 for weight in self._weights.values()):
            raise ConfigError(
                "weights in 16 bits round small steps away: train LoRA (its weights are float32), or load the model "
                'with dtype = "float32"'
            )
        head = None
        if settings.algorithm == "ppo":
            width = network.get_input_embeddings().weight.shape[1]
            head = torch.nn.Linear(width, 1, device=next(iter(self._weights.values())).device)
            for weight in head.parameters():  # drawn at random, a resumed or repeated run would differ
                torch.nn.init.zeros_(weight)
        self._value_head = head
        self._scorer = Scorer(network, temperature=temperature, value_head=head)
        groups = [{"params": [*self._weights.values()], "lr": settings.lr, "weight_decay": settings.weight_decay}]
        if head is not None:
            groups.append({"params": [*head.parameters()], "lr": settings.critic_lr, "weight_decay": 0.0})
        self._optimizer = torch.optim.AdamW(groups)
        self._reference = self._copy() if settings.kl_coefficient else {}
        self._random = torch.Generator().manual_seed(seed)

    def update(self, batch: Sequence[Scored]) -> dict[str, float]:
        """Go through a batch of fresh rollouts, and change the weights.

        Samples in which the policy said nothing count in their group's mean and are not learnt from.

        Returns:
            tokens: policy tokens of the batch.
            loss, policy_loss, value_loss: means over the steps; the whole holds the KL and entropy terms too.
            kl: k3 to the reference, per policy token.
            entropy: nats per policy token: the mean of -log-probability of what was sampled.
            clip_fraction: of policy tokens.
            grad_norm: mean over the steps, before clipping.
            mismatch: mean |rollout's log-probability - the network's before the update|, per token.
            advantage_std: over policy tokens.
            value_explained: share of the returns' variance that the values explain (PPO).
            skipped_steps: optimiser steps left out because a gradient was not finite.

            A figure that this batch gives no ground for is left out.

        Raises:
            ConfigError: an empty batch.
        """
        if not batch:
            raise ConfigError("there is nothing to learn from: give at least one scored sample")
        data = Batch.of(batch, mask_information=self.settings.mask_information, device=self._scorer.device)
        figures = Figures()
        if not data.spoken.any():
            return data.figures()
        with self._scorer.ready():
            with torch.no_grad():
                self._look(data)
            self._judge(data)
            for _ in range(self.settings.epochs):
                for part in self._mini_batches(data):
                    self._step(data, part, figures)
        return {**data.figures(), **figures.means()}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, value head, reference and randomness: tensors and plain data, for `torch.save`."""
        return {
            "weights": self._copy(),
            "optimizer": self._optimizer.state_dict(),
            "value_head": None if self._value_head is None else self._value_head.state_dict(),
            "reference": dict(self._reference),
            "random": self._random.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            ConfigError: it is of other weights or of another algorithm.
        """
        for name, kept in (("weights", self._weights), ("reference", self._reference)):
            if {key: value.shape for key, value in state[name].items()} != {k: v.shape for k, v in kept.items()}:
                raise ConfigError(
                    f"the {name} of this state are not those of this network and these settings; resume with the "
                    "model, the LoRA and the algorithm it was saved with"
                )
        if (state["value_head"] is None) != (self._value_head is None):
            raise ConfigError("the state has a value head and the settings have none, or the other way round")
        with torch.no_grad():
            for kept in (self._weights, self._reference):
                for key, value in kept.items():
                    value.copy_(state["weights" if kept is self._weights else "reference"][key])
        if self._value_head is not None:
            self._value_head.load_state_dict(state["value_head"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._random.set_state(state["random"])

    # ---- before the first step ------------------------------------------------------------------------------------

    def _look(self, data: Batch) -> None:
        """Score the batch before it is learnt from: old log-probabilities and values where the loss needs them first,
        and the reference's."""
        settings = self.settings
        several = settings.epochs > 1 or (settings.mini_batch or len(data.samples)) < len(data.samples)
        logprobs = several or (settings.kl_coefficient > 0 and settings.kl_in == "reward")
        if logprobs:
            data.old = data.current
        if self._value_head is not None:
            data.values = data.blank()
        if data.old is not None or data.values is not None:
            for row in self._rows(data, data.spoken):
                scores = self._scorer(row, logprobs=logprobs)
                if data.old is not None:
                    put(data.old, row, scores.logprobs)
                if data.values is not None and scores.values is not None:
                    put(data.values, row, scores.values)
        if settings.kl_coefficient:
            data.reference = data.blank()
            with self._as_reference():
                for row in self._rows(data, data.spoken):
                    put(data.reference, row, self._scorer(row).logprobs)

    def _judge(self, data: Batch) -> None:
        """From rewards to advantages and, for PPO, returns."""
        settings = self.settings
        penalty = data.blank()
        if settings.kl_in == "reward" and data.old is not None and data.reference is not None:
            divergence = kl(data.old, data.reference, settings.estimator)
            penalty = torch.where(data.mask, -settings.kl_coefficient * divergence, 0.0)
        if data.values is not None:
            rewards = penalty + data.rewards[:, None] * data.last
            advantages, data.returns = gae(rewards, data.values, data.mask, gamma=settings.gamma, lam=settings.lam)
            data.advantages = masked_whiten(advantages, data.mask)
            return
        outcomes = data.rewards + penalty.sum(1)
        if settings.algorithm == "grpo":
            each = grpo_advantages(outcomes, data.groups, divide_by_std=settings.divide_by_std)
        else:
            each = rloo_advantages(outcomes, data.groups)
        data.advantages = each[:, None] * data.mask

    def _mini_batches(self, data: Batch) -> Iterator[Tensor]:
        """Which samples are in each step: [samples], bool. Groups stay whole, in a new order each epoch."""
        groups: dict[str, list[int]] = {}
        for index, group in enumerate(data.groups):
            groups.setdefault(group, []).append(index)
        members = list(groups.values())
        size = self.settings.mini_batch or len(data.samples)
        part = torch.zeros(len(data.samples), dtype=torch.bool, device=data.mask.device)
        for which in torch.randperm(len(members), generator=self._random).tolist():
            part[members[which]] = True
            if part.sum() >= size:
                yield part
                part = torch.zeros_like(part)
        if part.any():
            yield part

    # ---- a step of the optimiser ----------------------------------------------------------------------------------

    def _step(self, data: Batch, part: Tensor, figures: Figures) -> None:
        weights = token_weights(data.mask * part[:, None], self.settings.aggregation)
        losses = [self._backward(row, data, weights, figures) for row in self._rows(data, part & self._teaches(data))]
        if not losses:
            return
        norm = torch.nn.utils.clip_grad_norm_(self._weights.values(), self.settings.max_grad_norm)
        if self._value_head is not None:
            torch.nn.utils.clip_grad_norm_(self._value_head.parameters(), self.settings.max_grad_norm)
        if torch.isfinite(norm):
            self._optimizer.step()
            figures.add("grad_norm", float(norm))
        figures.add("skipped_steps", float(not torch.isfinite(norm)))
        self._optimizer.zero_grad(set_to_none=True)
        for name in losses[0]:
            figures.add(name, sum(each[name] for each in losses))

    def _teaches(self, data: Batch) -> Tensor:
        """Samples whose loss has a gradient: by the policy's term alone, a group that all earned the same has none."""
        settings = self.settings
        everywhere = self._value_head is not None or settings.entropy_coefficient > 0 or data.reference is not None
        return data.spoken if everywhere else data.spoken & (data.advantages != 0).any(1)

    def _backward(self, row: Row, data: Batch, weights: Tensor, figures: Figures) -> dict[str, float]:
        """Add a row's part of the gradient; returns its part of the losses."""
        settings, here = self.settings, (row.samples, row.tokens)
        scores = self._scorer(row, entropy=settings.entropy_coefficient > 0)
        weight = weights[here]
        old = scores.logprobs.detach() if data.old is None else data.old[here]
        losses, clipped = policy_loss(
            scores.logprobs,
            old,
            data.advantages[here],
            clip=settings.clip,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
        )
        parts = {"policy_loss": (losses * weight).sum()}
        loss = parts["policy_loss"]
        if data.reference is not None and settings.kl_in == "loss":
            divergence = kl(scores.logprobs, data.reference[here], settings.estimator)
            loss = loss + settings.kl_coefficient * (divergence * weight).sum()
        if scores.entropy is not None:
            loss = loss - settings.entropy_coefficient * (scores.entropy * weight).sum()
        if scores.values is not None and data.values is not None and data.returns is not None:
            errors = value_loss(scores.values, data.values[here], data.returns[here], clip=settings.value_clip)
            parts["value_loss"] = (errors * weight).sum()
            loss = loss + settings.value_coefficient * parts["value_loss"]
        loss.backward()
        if data.old is None:
            put(data.current, row, scores.logprobs)
        figures.add("clip_fraction", clipped.sum().item(), len(clipped))
        return {"loss": loss.item(), **{name: part.item() for name, part in parts.items()}}

    def _rows(self, data: Batch, which: Tensor) -> Iterator[Row]:
        chosen = [(index, data.samples[index]) for index in which.nonzero()[:, 0].tolist()]
        return pack(chosen, data.mask, self.settings.micro_tokens)

    # ---- the reference --------------------------------------------------------------------------------------------

    def _copy(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self._weights.items()}

    @contextmanager
    def _as_reference(self) -> Iterator[None]:
        """Within it the network has the reference's weights; the tensors change places, nothing is copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, weight in self._weights.items():
            weight.data, self._reference[name] = self._reference[name], weight.data
