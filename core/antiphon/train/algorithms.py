"""The maths of PPO, GRPO and RLOO, on tensors of [samples, tokens].

A mask is 1 where the policy wrote the token, else 0. What stands where it is 0 has no effect on the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "abs"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]

_LARGEST_LOG_RATIO = 20.0  # exp of more overflows what follows
_LARGEST_K3 = 10.0


# ---- from rewards to advantages -----------------------------------------------------------------------------------


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16), from each policy token to the next one.

        delta_t = r_t + gamma V_t' - V_t        A_t = delta_t + gamma lam A_t'

    with t' the sample's next policy token after t: information in between takes no time, earns nothing and has no
    value. After the last policy token both are 0.

    Args:
        rewards: [samples, tokens]; counted at policy tokens only.
        values: [samples, tokens]; of the context before each token.

    Returns:
        Advantages, not whitened, and returns (advantage + value), [samples, tokens]; both 0 off the mask.
    """
    advantages = torch.zeros_like(values)
    value, advantage = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        ours = mask[:, t].bool()
        now = rewards[:, t] + gamma * value - values[:, t] + gamma * lam * advantage
        advantages[:, t] = torch.where(ours, now, 0.0)
        advantage = torch.where(ours, now, advantage)
        value = torch.where(ours, values[:, t], value)
    return advantages, torch.where(mask.bool(), advantages + values, 0.0)


def grpo_advantages(
    rewards: Tensor, groups: Sequence[str], *, divide_by_std: bool = True, epsilon: float = 1e-6
) -> Tensor:
    """A reward against its group's mean, in units of the group's standard deviation (arXiv 2402.03300, §4.1.2).

    A group of one keeps its reward as it is. Without `divide_by_std`: Dr. GRPO (arXiv 2503.20783).

    Args:
        rewards: [samples].
        groups: whose samples are compared, one name per sample.
    """
    advantages = rewards.clone()
    for rows in _rows(groups):
        if len(rows) > 1:
            own = rewards[rows] - rewards[rows].mean()
            if rewards[rows].unique().numel() == 1:
                own = torch.zeros_like(own)  # not its rounding error over epsilon
            advantages[rows] = own / (own.std() + epsilon) if divide_by_std else own
    return advantages


def rloo_advantages(rewards: Tensor, groups: Sequence[str]) -> Tensor:
    """A reward less the mean of the other samples of its group (REINFORCE leave-one-out, arXiv 2402.14740).

    A group of one keeps its reward as it is. [samples].
    """
    advantages = rewards.clone()
    for rows in _rows(groups):
        if (n := len(rows)) > 1:
            own = rewards[rows]
            advantages[rows] = (own - own.mean()) * n / (n - 1)
    return advantages


def _rows(groups: Sequence[str]) -> list[list[int]]:
    rows: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        rows.setdefault(group, []).append(index)
    return list(rows.values())


# ---- losses of single tokens; any shape ---------------------------------------------------------------------------


def policy_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, *, clip: float, clip_high: float | None, dual_clip: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective, negated (arXiv 1707.06347, eq. 7), with dual clip (arXiv 1912.09729, eq. 4).

        ratio = exp(logprob - old)    L = max(-A ratio, -A clip(ratio, 1 - clip, 1 + clip_high))

    and at most -A dual_clip where A < 0.

    Returns:
        The loss of each token, and whether it was clipped (1 or 0).
    """
    ratio = torch.exp((logprobs - old).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO))
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    loss = torch.maximum(plain, clipped)
    loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return loss, (clipped > plain).float()


def value_loss(values: Tensor, old: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Half the squared error, the larger of the value's and of the value held within `clip` of its old one."""
    held = torch.maximum(torch.minimum(values, old + clip), old - clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (held - returns) ** 2)


def kl(logprobs: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """KL(policy || reference) from one sampled token each (J. Schulman, "Approximating KL divergence", 2020).

    With d = logprob - reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (at most 10), abs = |d|.
    """
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference**2
    if estimator == "abs":
        return difference.abs()
    less = (-difference).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return (torch.exp(less) - less - 1).clamp(max=_LARGEST_K3)


# ---- over the mask ------------------------------------------------------------------------------------------------


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean where the mask is 1; 0 where it is nowhere."""
    return torch.where(mask.bool(), values, 0.0).sum() / mask.sum().clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Shifted and scaled to mean 0 and variance 1 (of n - 1) over the mask; 0 off it. Fewer than two are left alone."""
    if mask.sum() < 2:
        return torch.where(mask.bool(), values, 0.0)
    kept = values[mask.bool()]
    whitened = (values - kept.mean()) * torch.rsqrt(kept.var() + 1e-8)
    return torch.where(mask.bool(), whitened, 0.0)


def token_weights(mask: Tensor, aggregation: Aggregation) -> Tensor:
    """What each token's loss counts, [samples, tokens]: the loss is the sum of losses times weights.

    A sample without policy tokens counts for nothing. Weights of a whole mini-batch make the sum of its parts' losses
    the loss of the whole.
    """
    mask = mask.float()
    lengths = mask.sum(1, keepdim=True)
    if aggregation == "token-mean":
        return mask / lengths.sum().clamp(min=1)
    samples = (lengths > 0).sum().clamp(min=1)
    if aggregation == "seq-mean-token-sum":
        return mask / samples
    return mask / lengths.clamp(min=1) / samples
