"""The update: the same numbers as a plain padded pass, whatever is shared, packed or masked."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch

from antiphon.errors import ConfigError
from antiphon.train import algorithms
from antiphon.train.batches import Batch
from antiphon.train.learner import AlgorithmSettings, Learner, Scored
from antiphon.train.packing import pack
from antiphon.train.samples import Sample
from antiphon.train.scoring import Scorer

VOCABULARY = 61


def llama(seed: int = 0, **options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, initializer_range=0.3, **{**sizes, **options})
    return LlamaForCausalLM(config)


def lora(seed: int = 0, dtype: Any = torch.float32) -> Any:
    """A peft model whose adapter has been trained a little already."""
    import peft

    network = peft.get_peft_model(llama(seed).to(dtype), peft.LoraConfig(r=4, target_modules="all-linear"))
    torch.manual_seed(seed + 1)
    for name, weight in network.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.float()
        if "lora_B" in name:
            weight.data.normal_(0, 0.1)
    return network


def scored(seed: int = 0, groups: int = 3, size: int = 4, cls: type = Scored) -> list[Scored]:
    """Groups of one prompt each, all with the same beginning; responses of many lengths, with information in them."""
    random = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int) -> list[int]:
        count = int(torch.randint(low, high, (), generator=random))
        return torch.randint(1, VOCABULARY, (count,), generator=random).tolist()

    batch, pool = [], ids(6, 7)
    for group in range(groups):
        prompt = pool + ids(1, 5)
        for _ in range(size):
            parts = [(ids(1, 6), 1), (ids(0, 5), 0), (ids(1, 6), 1)]
            response = [token for part, _ in parts for token in part]
            mask = [ours for part, ours in parts for _ in part]
            logprobs = [-2.0 * ours for ours in mask]
            reward = float(torch.rand((), generator=random))
            batch.append(cls(Sample(prompt, response, mask, logprobs), reward, f"q{group}"))
    return batch


def settings(**options: Any) -> AlgorithmSettings:
    return AlgorithmSettings.model_validate({"kl_coefficient": 0.0, "lr": 1e-2, "max_grad_norm": 1e9, **options})


def padded(network: Any, samples: Sequence[Sample], temperature: float = 1.0) -> tuple[Any, Any]:
    """The textbook way: every sample a padded row. Log-probabilities and mask, [samples, response tokens]."""
    whole = [[*sample.prompt_ids, *sample.response_ids] for sample in samples]
    width = max(map(len, whole))
    ids = torch.tensor([each + [0] * (width - len(each)) for each in whole])
    attention = torch.tensor([[1] * len(each) + [0] * (width - len(each)) for each in whole])
    logits = network(input_ids=ids, attention_mask=attention).logits[:, :-1].float() / temperature
    every = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[:, :, 0]
    longest = max(len(sample.response_ids) for sample in samples)
    logprobs = torch.zeros(len(samples), longest)
    mask = torch.zeros(len(samples), longest)
    for row, sample in enumerate(samples):
        start, size = len(sample.prompt_ids) - 1, len(sample.response_ids)
        logprobs[row, :size] = every[row, start : start + size]
        mask[row, :size] = torch.tensor(sample.mask)
    return logprobs, mask


def gradients(network: Any) -> dict[str, Any]:
    return {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}


def weights(network: Any) -> dict[str, Any]:
    return {name: weight.detach().clone() for name, weight in network.named_parameters() if weight.requires_grad}


def same(one: dict[str, Any], other: dict[str, Any], **tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


# ---- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [llama, lora])
@pytest.mark.parametrize("limit", [1, 30, 1000])
def test_packed_rows_give_the_loss_and_the_gradients_of_the_padded_pass(make: Any, limit: int) -> None:
    batch = scored()
    samples = [each.sample for each in batch]
    network = make()
    factor = torch.randn(len(samples), 20, generator=torch.Generator().manual_seed(9)) / 50
    logprobs, mask = padded(network, samples, temperature=0.7)
    plain = (logprobs * mask * factor[:, : mask.shape[1]]).sum()
    plain.backward()
    wanted = gradients(network)
    network.zero_grad()

    scorer = Scorer(network, temperature=0.7)
    total = 0.0
    with scorer.ready():
        for row in pack(list(enumerate(samples)), mask.bool(), limit):
            scores = scorer(row).logprobs
            torch.testing.assert_close(scores, logprobs[row.samples, row.tokens], atol=1e-5, rtol=1e-5)
            loss = (scores * factor[row.samples, row.tokens]).sum()
            loss.backward()
            total += loss.item()
    assert total == pytest.approx(plain.item(), rel=1e-5)
    same(gradients(network), wanted, atol=1e-5, rtol=1e-4)


def test_what_samples_share_stands_in_a_row_once() -> None:
    a = Sample([1, 2, 3, 4], [5, 6, 7], [1, 1, 1], None)
    b = Sample([1, 2, 3, 4], [5, 8], [1, 1], None)  # the same prompt and first token
    c = Sample([1, 2, 9], [5], [1], None)  # the same first two
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    (row,) = pack([(0, a), (1, b), (2, c)], mask, 100)
    assert row.ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 5]]
    assert row.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 5, 2, 3]]
    assert [branch.path.tolist() for branch in row.branches] == [
        [0, 1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3, 4, 7],
        [0, 1, 8, 9],
    ]
    found = sorted(zip(row.samples.tolist(), row.tokens.tolist(), row.at.tolist(), row.targets.tolist(), strict=True))
    assert found == [(0, 0, 3, 5), (0, 1, 4, 6), (0, 2, 5, 7), (1, 0, 3, 5), (1, 1, 4, 8), (2, 0, 8, 5)]


def test_a_row_holds_no_more_tokens_than_the_limit_unless_one_sample_does() -> None:
    samples = [each.sample for each in scored()]
    mask = torch.ones(len(samples), 20)
    mask = torch.tensor([each.mask + [0] * (20 - len(each.mask)) for each in samples])
    rows = list(pack(list(enumerate(samples)), mask, 40))
    assert len(rows) > 1
    assert all(row.ids.shape[1] <= 40 for row in rows)
    assert sum(len(row.at) for row in rows) == int(mask.sum())
    assert len(list(pack(list(enumerate(samples)), mask, 1))) == len(samples)


def test_the_entropy_bonus_has_the_gradient_of_the_entropy() -> None:
    network = llama()
    (sample,) = [Sample([1, 2, 3], [4, 5], [1, 1], None)]
    logits = network(input_ids=torch.tensor([[1, 2, 3, 4, 5]])).logits[0, 2:4] / 0.7
    every = torch.log_softmax(logits, -1)
    entropy = -(every.exp() * every).sum(-1)
    entropy.sum().backward()
    wanted = gradients(network)
    network.zero_grad()
    scorer = Scorer(network, temperature=0.7)
    with scorer.ready():
        (row,) = pack([(0, sample)], torch.ones(1, 2), 100)
        got = scorer(row, entropy=True).entropy
        assert got is not None
        got.sum().backward()
    torch.testing.assert_close(got, entropy, atol=1e-5, rtol=1e-5)
    same(gradients(network), wanted, atol=2e-5, rtol=1e-4)


def test_lora_weights_over_a_base_of_16_bits_get_float32_gradients() -> None:
    network = lora(dtype=torch.bfloat16)
    samples = [each.sample for each in scored()]
    logprobs, mask = padded(network, samples)
    scorer = Scorer(network)
    with scorer.ready():
        for row in pack(list(enumerate(samples)), mask.bool(), 1000):
            got = scorer(row).logprobs
            got.mean().backward()
            assert (got - logprobs[row.samples, row.tokens]).abs().mean() < 0.1  # bf16 has 8 bits
    assert {grad.dtype for grad in gradients(network).values()} == {torch.float32}
    assert all("lora_" in name for name in gradients(network))


def test_an_architecture_whose_head_is_not_all_is_refused() -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = GraniteConfig(vocab_size=61, logits_scaling=7.0, initializer_range=0.5, **sizes)
    with pytest.raises(ConfigError, match="'granite' gives other scores"):
        Scorer(GraniteForCausalLM(config))


def test_rounding_in_16_bits_is_taken_for_no_other_architecture() -> None:
    for seed in range(8):
        network = llama(seed, num_hidden_layers=6).bfloat16()
        with torch.no_grad():
            network.lm_head.weight *= 4  # scores far apart, as those of a trained model
        Scorer(network, temperature=0.5)


def test_a_sample_longer_than_the_attention_window_is_refused() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = MistralConfig(vocab_size=61, num_key_value_heads=2, sliding_window=8, **sizes)
    learner = Learner(MistralForCausalLM(config), settings())
    with pytest.raises(ConfigError, match="attention window of 8"):
        learner.update(scored())


# ---- the update ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_an_update_is_adamw_on_the_textbook_loss(algorithm: Any, aggregation: Any) -> None:
    batch = scored()
    network, plain = llama(), llama()
    learner = Learner(
        network,
        settings(
            algorithm=algorithm, aggregation=aggregation, micro_tokens=40, kl_coefficient=0.1, entropy_coefficient=0.01
        ),
    )
    figures = learner.update(batch)

    logprobs, mask = padded(plain, [each.sample for each in batch])
    rewards, groups = torch.tensor([each.reward for each in batch]), [each.group for each in batch]
    each = (
        algorithms.grpo_advantages(rewards, groups)
        if algorithm == "grpo"
        else algorithms.rloo_advantages(rewards, groups)
    )
    # in the first step the ratio is 1 and the reference is the network itself
    losses, _ = algorithms.policy_loss(
        logprobs, logprobs.detach(), each[:, None], clip=0.2, clip_high=None, dual_clip=3.0
    )
    divergence = algorithms.kl(logprobs, logprobs.detach(), "k3")
    weight = algorithms.token_weights(mask, aggregation)
    loss = ((losses + 0.1 * divergence - 0.01 * entropies(plain, batch)) * weight).sum()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1e9)
    torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.0).step()
    assert figures["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert figures["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert figures["kl"] == pytest.approx(0, abs=1e-6)
    # AdamW's first step divides a gradient by itself: compare where it is not all rounding
    for (name, one), other in zip(network.named_parameters(), plain.parameters(), strict=True):
        clear = other.grad.abs() > 1e-4
        torch.testing.assert_close(one[clear], other[clear], atol=1e-4, rtol=1e-3, msg=name)


def entropies(network: Any, batch: Sequence[Scored]) -> Any:
    """[samples, response tokens], by the padded pass."""
    rows = []
    longest = max(len(each.sample.response_ids) for each in batch)
    for one in batch:
        start = len(one.sample.prompt_ids) - 1
        whole = torch.tensor([[*one.sample.prompt_ids, *one.sample.response_ids]])
        every = torch.log_softmax(network(input_ids=whole).logits[0, start:-1], -1)
        entropy = -(every.exp() * every).sum(-1)
        rows.append(torch.nn.functional.pad(entropy, (0, longest - len(entropy))))
    return torch.stack(rows)


@pytest.mark.parametrize("options", [{"algorithm": "ppo"}, {"algorithm": "grpo", "kl_coefficient": 0.1}])
@pytest.mark.parametrize("mini_batch", [None, 4])
def test_how_a_batch_is_packed_does_not_change_the_update(options: dict[str, Any], mini_batch: int | None) -> None:
    results = []
    for micro_tokens in (1, 50, 10_000):
        network = lora()
        learner = Learner(
            network, settings(**options, micro_tokens=micro_tokens, mini_batch=mini_batch, epochs=2, lr=1e-3)
        )
        figures = learner.update(scored())
        results.append((figures, weights(network)))
    for figures, changed in results[1:]:
        assert figures == pytest.approx(results[0][0], rel=1e-3, abs=1e-5)
        same(changed, results[0][1], atol=2e-4, rtol=1e-2)


@pytest.mark.parametrize(
    "options", [{"algorithm": "ppo", "kl_in": "reward"}, {"algorithm": "grpo"}, {"algorithm": "rloo"}]
)
def test_information_teaches_nothing(options: dict[str, Any]) -> None:
    """Whatever a member's last word is, and whatever its log-probability, the update is the same: it is only read.

    (Information in the middle does change what comes after it, so here it stands at the end.)
    """
    results = []
    for last in (7, 8):
        batch = scored()
        batch = [
            Scored(
                Sample(
                    each.sample.prompt_ids,
                    [*each.sample.response_ids, last, last],
                    [*each.sample.mask, 0, 0],
                    [*(each.sample.logprobs or []), -float(last), -30.0],
                ),
                each.reward,
                each.group,
            )
            for each in batch
        ]
        network = llama()
        figures = Learner(network, settings(**options, kl_coefficient=0.05, epochs=2)).update(batch)
        results.append((figures, weights(network)))
    assert results[0][0] == pytest.approx(results[1][0])
    same(results[0][1], results[1][1])

    network = llama()
    figures = Learner(network, settings(**options, kl_coefficient=0.05, epochs=2, mask_information=False)).update(batch)
    with pytest.raises(AssertionError):  # the ablation does learn from it
        same(results[1][1], weights(network))


def test_the_reward_is_earned_by_the_last_policy_token_even_if_information_follows() -> None:
    batch = [Scored(Sample([1, 2], [3, 4, 5, 6], [1, 0, 1, 0], None), 1.0, "q")]
    data = Batch.of(batch, mask_information=True, device=torch.device("cpu"))
    assert data.last.tolist() == [[False, False, True, False]]
    data = Batch.of(batch, mask_information=False, device=torch.device("cpu"))
    assert data.last.tolist() == [[False, False, False, True]]


def test_groups_that_all_earned_the_same_are_not_run_but_count_in_the_mean() -> None:
    idle = [Scored(each.sample, 1.0, "idle") for each in scored(seed=5, groups=1)]
    with_idle, without = llama(), llama()
    figures = Learner(with_idle, settings(aggregation="seq-mean-token-sum")).update([*scored(), *idle])
    plain = Learner(without, settings(aggregation="seq-mean-token-sum")).update(scored())
    # 12 of 16 samples have an advantage: the mean over samples is 3/4 of theirs
    assert figures["policy_loss"] == pytest.approx(plain["policy_loss"] * 12 / 16, rel=1e-4)
    assert figures["grad_norm"] == pytest.approx(plain["grad_norm"] * 12 / 16, rel=1e-4)
    before = weights(with_idle)
    assert "grad_norm" not in Learner(with_idle, settings()).update(idle)
    same(weights(with_idle), before)


def test_a_good_answer_becomes_likelier_and_a_bad_one_less_so() -> None:
    good, bad = Sample([1, 2, 3], [4, 5], [1, 1], None), Sample([1, 2, 3], [6, 7], [1, 1], None)
    for algorithm in ("ppo", "grpo", "rloo"):
        network = llama()
        before, _ = padded(network, [good, bad])
        learner = Learner(network, settings(algorithm=algorithm, lr=1e-3))
        learner.update([Scored(good, 1.0, "q"), Scored(bad, 0.0, "q")])
        after, _ = padded(network, [good, bad])
        change = (after - before).sum(1)
        assert change[0] > 0 > change[1], algorithm


# ---- the reference ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [llama, lora])
@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_the_reference_is_the_network_at_the_start_and_holds_it_back(make: Any, kl_in: Any) -> None:
    network = make()
    start, _ = padded(make(), [each.sample for each in scored()])
    distances = {}
    for coefficient in (1e-9, 3.0):
        network = make()
        learner = Learner(network, settings(kl_coefficient=coefficient, kl_in=kl_in, lr=1e-2))
        figures = [learner.update(scored(seed)) for seed in (0, 0, 0, 0)]
        now, mask = padded(network, [each.sample for each in scored()])
        assert figures[0]["kl"] == pytest.approx(0, abs=1e-6)
        # `kl` of the next update is that of the network as it is now
        wanted = algorithms.masked_mean(algorithms.kl(now, start, "k3"), mask)
        assert learner.update(scored())["kl"] == pytest.approx(wanted.item(), rel=1e-3)
        distances[coefficient] = wanted.item()
    assert distances[3.0] < 0.5 * distances[1e-9]


def test_mismatch_and_entropy_are_those_of_the_rollout() -> None:
    network = llama()
    batch = scored()
    logprobs, mask = padded(network, [each.sample for each in batch])
    figures = Learner(network, settings()).update(batch)
    assert figures["entropy"] == pytest.approx(2.0)
    assert figures["mismatch"] == pytest.approx(algorithms.masked_mean((logprobs + 2).abs(), mask).item(), rel=1e-4)
    assert figures["tokens"] == mask.sum()


# ---- edges --------------------------------------------------------------------------------------------------------


def test_a_sample_in_which_the_policy_said_nothing_counts_in_its_group_only() -> None:
    silent = Scored(Sample([1, 2, 3], [], [], []), 0.0, "q0")
    network = llama()
    figures = Learner(network, settings()).update([*scored(), silent])
    assert figures["grad_norm"] > 0
    before = weights(network)
    assert Learner(network, settings(algorithm="ppo")).update([silent]) == {"tokens": 0.0}
    same(weights(network), before)


def test_an_infinite_gradient_changes_nothing_and_is_counted() -> None:
    network = llama()
    before = weights(network)
    batch = [
        Scored(each.sample, float("inf") if at == 0 else each.reward, each.group) for at, each in enumerate(scored())
    ]
    figures = Learner(network, settings(algorithm="rloo")).update(batch)
    assert figures["skipped_steps"] == 1
    same(weights(network), before)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_learner_goes_on_from_its_state_as_if_it_had_not_stopped(algorithm: Any, tmp_path: Any) -> None:
    options = {"algorithm": algorithm, "kl_coefficient": 0.1, "mini_batch": 4, "lr": 1e-3}
    straight = lora()
    learner = Learner(straight, settings(**options), seed=3)
    learner.update(scored(0))
    torch.save(learner.state_dict(), tmp_path / "state.pt")
    wanted = learner.update(scored(1))

    resumed = lora(seed=4)  # other weights, which the state replaces
    resumed.load_state_dict({n: w for n, w in straight.state_dict().items() if "lora_" not in n}, strict=False)
    again = Learner(resumed, settings(**options), seed=0)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.update(scored(1)) == pytest.approx(wanted)
    same(weights(resumed), weights(straight))
    with pytest.raises(ConfigError, match="not those of this network"):
        Learner(llama(), settings(**options)).load_state_dict(again.state_dict())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Learner(llama().requires_grad_(False), settings()), "no weights to train"),
        (lambda: Learner(llama().bfloat16(), settings()), "16 bits"),
        (lambda: Learner(llama(), settings(), temperature=0.0), "temperature above 0"),
        (lambda: Learner(llama(), settings()).update([]), "nothing to learn from"),
    ],
)
def test_what_cannot_be_trained_is_said_at_once(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_network_is_left_as_the_generator_needs_it() -> None:
    network = lora()
    plain = copy.deepcopy(network)
    learner = Learner(network, settings(lr=1e-12, kl_coefficient=0.1))
    learner.update(scored())
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        torch.testing.assert_close(network(input_ids=ids).logits, plain.eval()(input_ids=ids).logits)
    assert not network.training
    assert network.config._attn_implementation == plain.config._attn_implementation
