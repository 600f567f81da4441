"""The formulas: by hand, by property, and against verl's `core_algos` where verl is installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.train import algorithms

SEEDS = st.integers(0, 10_000)
CLIP: dict[str, Any] = {"clip": 0.2, "clip_high": None, "dual_clip": 3.0}


def tensors(seed: int, count: int, rows: int = 5, tokens: int = 9) -> list[Any]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, tokens, generator=random) for _ in range(count)]


def holes(seed: int, rows: int = 5, tokens: int = 9) -> Any:
    """A mask with information anywhere; the first row has some policy tokens, the last none."""
    mask = torch.rand(rows, tokens, generator=torch.Generator().manual_seed(seed + 1)) < 0.6
    mask[0, :2] = True
    mask[-1] = False
    return mask


# ---- by hand ------------------------------------------------------------------------------------------------------


def test_gae_by_hand_over_a_hole() -> None:
    # policy tokens at 0 and 3 with values 0.5 and 0.2; the information between says 9 and must not count. r = 1 at 3.
    values = torch.tensor([[0.5, 9.0, 9.0, 0.2]])
    mask = torch.tensor([[1, 0, 0, 1]])
    rewards = torch.tensor([[0.0, 7.0, 7.0, 1.0]])
    advantages, returns = algorithms.gae(rewards, values, mask, gamma=0.9, lam=0.5)
    # at 3: 1 - 0.2 = 0.8; at 0: 0 + 0.9 * 0.2 - 0.5 + 0.9 * 0.5 * 0.8 = 0.04
    assert advantages[0].tolist() == pytest.approx([0.04, 0, 0, 0.8])
    assert returns[0].tolist() == pytest.approx([0.54, 0, 0, 1.0])


def test_group_advantages_by_hand() -> None:
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.3])
    groups = ["a", "a", "b", "a", "c"]
    # a: mean 1/3, deviation sqrt(1/3) = .57735; b and c stand alone and keep their reward
    grpo = algorithms.grpo_advantages(rewards, groups, epsilon=0.0)
    assert grpo.tolist() == pytest.approx([1.1547, -0.57735, 1, -0.57735, 0.3], abs=1e-4)
    # a: 1 - mean(0, 0); 0 - mean(1, 0)
    assert algorithms.rloo_advantages(rewards, groups).tolist() == pytest.approx([1, -0.5, 1, -0.5, 0.3])


def test_a_group_that_all_earned_the_same_has_no_advantage_at_all() -> None:
    rewards = torch.full((7,), 0.7)
    assert not algorithms.grpo_advantages(rewards, ["a"] * 7).any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.1, 1.0, -1.1, 0),  # within
        (1.5, 1.0, -1.2, 1),  # too likely already: held at 1 + clip
        (0.5, 1.0, -0.5, 0),  # to be made more likely: free
        (0.5, -1.0, 0.8, 1),  # unlikely already: held at 1 - clip
        (1.5, -1.0, 1.5, 0),
        (9.0, -1.0, 3.0, 0),  # dual clip
    ],
)
def test_the_clipped_loss_by_hand(ratio: float, advantage: float, loss: float, clipped: int) -> None:
    got = algorithms.policy_loss(torch.tensor(ratio).log(), torch.tensor(0.0), torch.tensor(advantage), **CLIP)
    assert [got[0].item(), got[1].item()] == pytest.approx([loss, clipped])


def test_aggregations_by_hand() -> None:
    losses = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    mask = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 0]])
    total = {
        mode: (losses * algorithms.token_weights(mask, mode)).sum().item()
        for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
    }
    assert total == pytest.approx(
        {"token-mean": 9 / 3, "seq-mean-token-mean": (2 + 5) / 2, "seq-mean-token-sum": (4 + 5) / 2}
    )


def test_k3_and_k1_agree_in_the_mean_and_k3_is_never_negative() -> None:
    policy = torch.log_softmax(torch.randn(50, generator=torch.Generator().manual_seed(0)), 0)
    reference = torch.log_softmax(policy + torch.linspace(-0.5, 0.5, 50), 0)
    exact = (policy.exp() * (policy - reference)).sum()
    for estimator in ("k1", "k3"):
        estimates = algorithms.kl(policy, reference, estimator)
        assert (policy.exp() * estimates).sum().item() == pytest.approx(exact.item(), abs=1e-5)
    assert (algorithms.kl(policy, reference, "k3") >= -1e-6).all()


# ---- information changes nothing ----------------------------------------------------------------------------------


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_what_stands_at_information_reaches_no_advantage_return_or_loss(seed: int) -> None:
    rewards, values, logprobs, old, reference, noise = tensors(seed, 6)
    mask = holes(seed)

    def everything(shift: Any) -> list[Any]:
        advantages, returns = algorithms.gae(rewards + shift, values + shift, mask, gamma=0.97, lam=0.9)
        white = algorithms.masked_whiten(advantages + shift, mask)
        loss, clipped = algorithms.policy_loss(logprobs + shift, old, white + shift, **CLIP)
        per_token = [
            loss,
            clipped,
            algorithms.value_loss(values + shift, values, returns + shift, clip=0.5),
            algorithms.kl(logprobs + shift, reference, "k3"),
        ]
        weights = algorithms.token_weights(mask, "seq-mean-token-mean")
        return [
            advantages,
            returns,
            white,
            *((each * weights).sum() for each in per_token),
            *(algorithms.masked_mean(each, mask) for each in per_token),
        ]

    plain, noisy = everything(torch.zeros(())), everything(torch.where(mask, 0.0, 50 * noise))
    for one, other in zip(plain, noisy, strict=True):
        torch.testing.assert_close(one, other)


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_gae_over_holes_is_gae_of_the_policy_tokens_alone(seed: int) -> None:
    rewards, values = tensors(seed, 2)
    mask = holes(seed)
    whole = algorithms.gae(rewards, values, mask, gamma=0.97, lam=0.9)
    for row in range(len(mask)):
        ours = mask[row]
        if not ours.any():
            continue
        dense = torch.ones(1, int(ours.sum()))
        alone = algorithms.gae(rewards[row, ours][None], values[row, ours][None], dense, gamma=0.97, lam=0.9)
        for one, other in zip(whole, alone, strict=True):
            torch.testing.assert_close(one[row, ours], other[0])
            assert not one[row, ~ours].any()


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_whitening_leaves_mean_0_and_variance_1_over_the_mask(seed: int) -> None:
    (values,) = tensors(seed, 1)
    mask = holes(seed)
    white = algorithms.masked_whiten(values, mask)
    assert white[mask].mean().item() == pytest.approx(0, abs=1e-5)
    assert white[mask].var().item() == pytest.approx(1, abs=1e-4)


# ---- the same as verl's -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def core_algos() -> Any:
    pytest.importorskip("verl")
    from verl.trainer.ppo import core_algos

    return core_algos


@pytest.mark.parametrize("seed", range(5))
def test_gae_and_whitening_are_those_of_verl(core_algos: Any, seed: int) -> None:
    rewards, values = tensors(seed, 2)
    mask = holes(seed)
    wanted = core_algos.compute_gae_advantage_return(rewards, values, mask.float(), 0.97, 0.9)
    advantages, returns = algorithms.gae(rewards, values, mask, gamma=0.97, lam=0.9)
    torch.testing.assert_close(algorithms.masked_whiten(advantages, mask)[mask], wanted[0][mask])
    torch.testing.assert_close(returns[mask], wanted[1][mask])


@pytest.mark.parametrize("seed", range(5))
def test_group_advantages_are_those_of_verl(core_algos: Any, seed: int) -> None:
    import numpy as np

    (scores,) = tensors(seed, 1)
    rewards, mask, groups = scores[:, 0], holes(seed).float(), ["a", "b", "a", "a", "c"]
    by_token = torch.zeros_like(mask)
    by_token[:, -1] = rewards
    index = np.array(groups)
    for ours, name, options in (
        (algorithms.grpo_advantages(rewards, groups), "compute_grpo_outcome_advantage", {}),
        (
            algorithms.grpo_advantages(rewards, groups, divide_by_std=False),
            "compute_grpo_outcome_advantage",
            {"norm_adv_by_std_in_grpo": False},
        ),
        (algorithms.rloo_advantages(rewards, groups), "compute_rloo_outcome_advantage", {}),
    ):
        wanted, _ = getattr(core_algos, name)(by_token.clone(), mask, index, **options)
        torch.testing.assert_close(ours[:, None] * mask, wanted)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("clip_high", [None, 0.3])
def test_the_policy_loss_is_that_of_verl_for_each_aggregation(
    core_algos: Any, mode: Any, clip_high: float | None
) -> None:
    logprobs, old, advantages = tensors(3, 3)
    mask = holes(3)

    class ActorConfig(SimpleNamespace):
        def get(self, name: str, default: Any) -> Any:
            return getattr(self, name, default)

    config = ActorConfig(clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=clip_high, global_batch_info={})
    wanted, metrics = core_algos.compute_policy_loss_vanilla(
        old, logprobs, advantages, mask.float(), loss_agg_mode=mode, config=config
    )
    losses, clipped = algorithms.policy_loss(logprobs, old, advantages, **{**CLIP, "clip_high": clip_high})
    torch.testing.assert_close((losses * algorithms.token_weights(mask, mode)).sum(), wanted)
    assert algorithms.masked_mean(clipped, mask).item() == pytest.approx(metrics["actor/pg_clipfrac"])


def test_the_value_loss_is_that_of_verl(core_algos: Any) -> None:
    values, old, returns = tensors(4, 3)
    mask = holes(4)
    wanted, _ = core_algos.compute_value_loss(values, returns, old, mask.float(), cliprange_value=0.5)
    losses = algorithms.value_loss(values, old, returns, clip=0.5)
    torch.testing.assert_close((losses * algorithms.token_weights(mask, "token-mean")).sum(), wanted)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_estimators_of_kl_are_those_of_verl(core_algos: Any, estimator: Any) -> None:
    logprobs, reference = tensors(5, 2)
    scaled = (3 * logprobs, 3 * reference)
    torch.testing.assert_close(algorithms.kl(*scaled, estimator), core_algos.kl_penalty(*scaled, estimator))
