"""The gradient of the local engine's actor loss is that of verl's actor on the same batch.

verl's own code, on the CPU and unpatched: its agent loop's layout of a batch, its FSDP engine's inputs and outputs of
the network, its KL penalty, its advantages, its actor loss over micro-batches. What is not run is FSDP itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")
pytest.importorskip("peft")

import numpy as np
import torch

from antiphon.train.learner import AlgorithmSettings, Learner, Scored
from antiphon.train.samples import Sample

VOCABULARY, LIMIT = 61, 1e-4
KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}


def network(lora: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    made: Any = LlamaForCausalLM(config)
    if lora:
        import peft

        made = peft.get_peft_model(made, peft.LoraConfig(r=4, target_modules="all-linear"))
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(0, 0.1)
    return made


def batch() -> list[Scored]:
    """Three groups of four: responses of many lengths, with information in them, that end in a policy token."""
    random = torch.Generator().manual_seed(3)

    def ids(low: int, high: int) -> list[int]:
        count = int(torch.randint(low, high, (), generator=random))
        return torch.randint(1, VOCABULARY, (count,), generator=random).tolist()

    made, pool = [], ids(6, 7)
    for group in range(3):
        prompt = pool + ids(1, 5)
        for _ in range(4):
            parts = [(ids(1, 6), 1), (ids(1, 5), 0), (ids(1, 6), 1), (ids(0, 4), 0), (ids(1, 4), 1)]
            response = [token for part, _ in parts for token in part]
            mask = [ours for part, ours in parts for _ in part]
            reward = float(torch.rand((), generator=random)) - 0.3
            made.append(Scored(Sample(prompt, response, mask, [-2.0 * ours for ours in mask]), reward, f"q{group}"))
    return made


class Recorder:
    """A learner's optimiser: keeps weights and gradients as they are at each of its steps."""

    def __init__(self, learner: Learner, module: Any) -> None:
        self.seen: list[tuple[dict[str, Any], dict[str, Any]]] = []
        step = learner._optimizer.step

        def record() -> None:
            named = {name: weight for name, weight in module.named_parameters() if weight.grad is not None}
            values = {name: weight.detach().clone() for name, weight in module.named_parameters()}
            self.seen.append((values, {name: weight.grad.clone() for name, weight in named.items()}))
            step()

        learner._optimizer.step = record  # type: ignore[method-assign]


class VerlActor:
    """verl's actor around a plain network."""

    def __init__(self, module: Any, settings: AlgorithmSettings) -> None:
        from verl.workers.config import FSDPActorConfig
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

        self.engine: Any = FSDPEngineWithLMHead.__new__(FSDPEngineWithLMHead)
        self.engine.module, self.engine.pad_to_length = module, False
        self.engine.engine_config = SimpleNamespace(entropy_checkpointing=False)
        in_loss = settings.kl_coefficient > 0 and settings.kl_in == "loss"
        self.config = FSDPActorConfig(
            strategy="fsdp",
            rollout_n=4,
            ppo_micro_batch_size_per_gpu=6,
            clip_ratio=settings.clip,
            clip_ratio_low=settings.clip,
            clip_ratio_high=settings.clip_high or settings.clip,
            clip_ratio_c=settings.dual_clip,
            loss_agg_mode=settings.aggregation,
            entropy_coeff=settings.entropy_coefficient,
            use_kl_loss=in_loss,
            kl_loss_coef=settings.kl_coefficient,
            kl_loss_type=KL[settings.estimator],
        )
        self.settings = settings

    def logprobs(self, samples: Sequence[Sample]) -> Any:
        """[samples, response tokens], padded with 0."""
        from verl.workers.utils.padding import no_padding_2_padding

        data = rows(samples, calculate_entropy=False)
        with torch.no_grad():
            return no_padding_2_padding(self._forward(data)["log_probs"], data)

    def gradients(self, samples: Sequence[Sample], **fields: Any) -> dict[str, Any]:
        """The gradient of the actor loss, summed up over two micro-batches; fields are padded, [samples, tokens]."""
        from verl.workers.utils.losses import ppo_loss

        self.engine.module.zero_grad()
        tokens = sum(sum(sample.mask) for sample in samples)
        for part in (slice(0, 6), slice(6, None)):
            chosen = samples[part]
            data = rows(
                chosen,
                calculate_entropy=self.settings.entropy_coefficient > 0,
                dp_size=1,
                batch_num_tokens=tokens,
                global_batch_size=len(samples),
                **{name: nested(value[part], chosen) for name, value in fields.items()},
            )
            loss, _ = ppo_loss(config=self.config, model_output=self._forward(data), data=data)
            loss.backward()
        named = self.engine.module.named_parameters()
        return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}

    def _forward(self, data: Any) -> Any:
        inputs, arguments = self.engine.prepare_model_inputs(data)
        output = self.engine.module(**inputs, use_cache=False)
        return self.engine.prepare_model_outputs(output, arguments, data, None)


def rows(samples: Sequence[Sample], **more: Any) -> Any:
    """A batch as verl's trainer takes it from the queue: nested tensors, and figures of the whole."""
    from verl.utils import tensordict_utils as tu

    def each(values: Sequence[Sequence[int]]) -> Any:
        return torch.nested.as_nested_tensor([torch.tensor(value) for value in values], layout=torch.jagged)

    whole = [[*sample.prompt_ids, *sample.response_ids] for sample in samples]
    tensors = {
        "prompts": each([sample.prompt_ids for sample in samples]),
        "responses": each([sample.response_ids for sample in samples]),
        "response_mask": each([sample.mask for sample in samples]),
        "input_ids": each(whole),
        "position_ids": each([list(range(len(ids))) for ids in whole]),
        **{name: value for name, value in more.items() if isinstance(value, torch.Tensor)},
    }
    plain = {name: value for name, value in more.items() if not isinstance(value, torch.Tensor)}
    return tu.get_tensordict(tensors, non_tensor_dict={"use_remove_padding": False, "temperature": 1.0, **plain})


def nested(padded: Any, samples: Sequence[Sample]) -> Any:
    parts = [row[: len(sample.response_ids)] for row, sample in zip(padded, samples, strict=True)]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def advantages(scored: Sequence[Scored], settings: AlgorithmSettings, old: Any, reference: Any) -> Any:
    """verl's, from the reward at the last token of each response."""
    from verl.protocol import DataProto
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import FixedKLController
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage

    shape = old.shape
    mask, scores = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    for row, each in enumerate(scored):
        size = len(each.sample.response_ids)
        mask[row, :size] = torch.tensor(each.sample.mask)
        scores[row, size - 1] = each.reward
    tensors = {
        "response_mask": mask,
        "token_level_scores": scores,
        "old_log_probs": old,
        "ref_log_prob": reference,
        "values": torch.zeros(shape),  # as those of the local engine's value head before its first step
        "responses": torch.zeros(shape, dtype=torch.int64),
    }
    groups = [each.group for each in scored]
    data = DataProto.from_dict(tensors, non_tensors={"uid": np.array(groups, dtype=object)})
    if settings.kl_coefficient and settings.kl_in == "reward":
        controller = FixedKLController(settings.kl_coefficient)
        data, _ = apply_kl_penalty(data, kl_ctrl=controller, kl_penalty=KL[settings.estimator])
    else:
        data.batch["token_level_rewards"] = scores
    done = compute_advantage(
        data,
        adv_estimator={"ppo": "gae", "grpo": "grpo", "rloo": "rloo"}[settings.algorithm],
        gamma=settings.gamma,
        lam=settings.lam,
        num_repeat=4,
        norm_adv_by_std_in_grpo=settings.divide_by_std,
        config=AlgoConfig(),
    )
    return done.batch["advantages"]


def distance(ours: dict[str, Any], verls: dict[str, Any]) -> float:
    """The largest relative difference of a weight's gradient."""
    assert ours.keys() == verls.keys()
    return max(float((ours[name] - verls[name]).norm() / verls[name].norm().clamp(min=1e-8)) for name in ours)


CASES: list[dict[str, Any]] = [
    {"algorithm": "grpo"},
    {"algorithm": "grpo", "aggregation": "seq-mean-token-mean", "divide_by_std": False, "clip_high": 0.28},
    {"algorithm": "grpo", "kl_coefficient": 0.1, "entropy_coefficient": 0.01},
    {"algorithm": "grpo", "kl_coefficient": 0.1, "kl_in": "reward", "aggregation": "seq-mean-token-sum"},
    {"algorithm": "rloo", "kl_coefficient": 0.2, "kl_estimator": "k2"},
    {"algorithm": "ppo", "gamma": 0.99, "lam": 0.9},
    {"algorithm": "ppo", "kl_coefficient": 0.1, "kl_in": "reward"},
]


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
@pytest.mark.parametrize("options", CASES, ids=lambda options: "-".join(map(str, options.values())))
def test_the_actors_gradient_is_that_of_verl(options: dict[str, Any], lora: bool) -> None:
    """At the first step of the optimiser and, but for PPO, at the second, where the policy has moved: ratios other than
    1, some of them clipped, and a distance from the reference."""
    steps = 1 if options["algorithm"] == "ppo" else 2  # the value head of ours then reaches the network too
    settings = AlgorithmSettings.model_validate(
        {"kl_coefficient": 0.0, "lr": 2e-2, "max_grad_norm": 1e9, "epochs": steps, **options}
    )
    scored, module = batch(), network(lora)
    verls = copy.deepcopy(module).eval()
    learner = Learner(module, settings)
    recorder = Recorder(learner, module)
    figures = learner.update(scored)
    actor, samples = VerlActor(verls, settings), [each.sample for each in scored]
    old = actor.logprobs(samples)
    found = advantages(scored, settings, old, old)  # at the start the reference is the policy
    assert len(recorder.seen) == steps
    for values, ours in recorder.seen:
        with torch.no_grad():
            for name, weight in verls.named_parameters():
                weight.copy_(values[name])
        fields = {"old_log_probs": old, "advantages": found, "ref_log_prob": old}
        assert distance(ours, actor.gradients(samples, **fields)) < LIMIT
    assert steps == 1 or figures["clip_fraction"] > 0
