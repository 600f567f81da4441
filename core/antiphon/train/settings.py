"""How a policy is updated: the table `[algorithm]` of a training run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from antiphon.tables import Count, Flag, Table

Positive = Annotated[float, Field(gt=0)]
AtLeastZero = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class AlgorithmSettings(Table):
    """PPO, GRPO or RLOO. The formulas are in `docs/explanation/training.md`.

    Attributes:
        algorithm: how a reward becomes advantages: `ppo` by a value head and GAE, `grpo` against the mean and the
            standard deviation of a question's samples, `rloo` against the mean of its other samples.
        lr: of the policy's weights (AdamW).
        critic_lr: of the value head (PPO).
        weight_decay: of the policy's weights.
        max_grad_norm: largest norm of the gradient; the value head's is held to it by itself.
        epochs: how often a batch is gone through.
        mini_batch: samples for each step of the optimiser; None: the whole batch. A question's samples stay together.
        micro_tokens: tokens that go through the network at once; memory and speed only.
        clip: how far below 1 the probability ratio has an effect.
        clip_high: the same above 1; None: as `clip`.
        dual_clip: bounds the loss of a negative advantage, as a multiple of it.
        aggregation: how the losses of tokens become one: their mean; the mean over samples of each sample's mean; the
            mean over samples of each sample's sum.
        kl_coefficient: weight of the KL divergence to the weights at the start; 0: the reference is never run.
        kl_in: where it counts: a term of the `loss`, or a penalty of the `reward`, token by token.
        kl_estimator: k1, k2, k3 or abs; None: k3 in the loss, k1 in the reward.
        entropy_coefficient: weight of an entropy bonus.
        gamma, lam: discount and lambda of GAE (PPO).
        value_coefficient: weight of the value loss (PPO); it reaches the network under the head too.
        value_clip: how far a value may move from its old one within a step (PPO).
        divide_by_std: whether GRPO divides by the standard deviation (false: as in Dr. GRPO).
        mask_information: leave out the tokens that members wrote; false is for showing what that breaks.
    """

    algorithm: Literal["ppo", "grpo", "rloo"] = "grpo"
    lr: Positive = 1e-4
    critic_lr: Positive = 1e-3
    weight_decay: AtLeastZero = 0.0
    max_grad_norm: Positive = 1.0
    epochs: Count = 1
    mini_batch: Count | None = None
    micro_tokens: Count = 1024
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Positive | None = None
    dual_clip: Annotated[float, Field(gt=1)] = 3.0
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    kl_coefficient: AtLeastZero = 0.001
    kl_in: Literal["loss", "reward"] = "loss"
    kl_estimator: Literal["k1", "k2", "k3", "abs"] | None = None
    entropy_coefficient: AtLeastZero = 0.0
    gamma: Share = 1.0
    lam: Share = 1.0
    value_coefficient: Positive = 0.1
    value_clip: Positive = 0.5
    divide_by_std: Flag = True
    mask_information: Flag = True

    @property
    def estimator(self) -> Literal["k1", "k2", "k3", "abs"]:
        """The estimator of KL that is used."""
        return self.kl_estimator or ("k3" if self.kl_in == "loss" else "k1")
