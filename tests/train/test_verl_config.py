"""What a training file becomes in verl's own configuration, composed and checked by the real verl."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.train.spec import TrainSpec, load_spec, make_spec, presets
from antiphon.train.verl_config import Files, decided
from antiphon.train.verl_lengths import Lengths

LENGTHS = Lengths(prompt=256, response=512, turns=320, information=320)
FILES = Files(Path("/run/t.parquet"), Path("/run/v.parquet"), Path("/run/agent.yaml"), Path("/models/tiny"))
"""Nothing of it is there; verl looks into the model's folder alone, where there is a critic."""

SMALL: dict[str, Any] = {
    "data": {"dataset": "arithmetic"},
    "model": {"base": "tiny", "lora": False},
    "train": {"engine": "verl", "tasks": 8, "samples": 4, "steps": 5, "seed": 7},
}


def spec(**tables: Any) -> TrainSpec:
    return make_spec({**SMALL, **tables}, "spec.toml")


def composed(made: TrainSpec, model: Path = FILES.model) -> Any:
    pytest.importorskip("verl")
    from antiphon.train.verl_config import compose

    return compose(made, LENGTHS, replace(FILES, model=model))


def test_a_training_file_decides_what_verl_does() -> None:
    algorithm = {
        "algorithm": "grpo",
        "lr": 2e-5,
        "weight_decay": 0.02,
        "max_grad_norm": 0.5,
        "epochs": 2,
        "mini_batch": 16,
        "clip": 0.1,
        "clip_high": 0.3,
        "dual_clip": 4.0,
        "aggregation": "seq-mean-token-mean",
        "kl_coefficient": 0.02,
        "kl_estimator": "k2",
        "entropy_coefficient": 0.003,
        "divide_by_std": False,
    }
    train = {**SMALL["train"], "temperature": 0.7}
    config = composed(spec(train=train, algorithm=algorithm, lora={"rank": 4, "alpha": 8, "targets": ["q_proj"]}))
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (actor.optim.lr, actor.optim.weight_decay, actor.optim.clip_grad) == (2e-5, 0.02, 0.5)
    assert (actor.ppo_epochs, actor.ppo_mini_batch_size) == (2, 4)  # 16 rollouts are 4 questions
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.1, 0.3, 4.0)
    assert (actor.loss_agg_mode, actor.entropy_coeff) == ("seq-mean-token-mean", 0.003)
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.02, "mse")
    assert config.algorithm.adv_estimator == "grpo"
    assert config.algorithm.norm_adv_by_std_in_grpo is False
    assert config.algorithm.use_kl_in_reward is False
    assert (config.data.train_batch_size, rollout.n, config.trainer.total_training_steps) == (8, 4, 5)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (256, 512)
    assert rollout.max_model_len == 768  # all turns and all information, after the longest prompt
    assert (rollout.temperature, rollout.calculate_log_probs, rollout.val_kwargs.temperature) == (0.7, True, 0)
    assert (config.trainer.save_freq, config.trainer.test_freq, config.trainer.resume_mode) == (-1, -1, "disable")
    assert config.actor_rollout_ref.model.lora_rank == 0, "every weight is trained"
    assert rollout.agent.default_agent_loop == "antiphon"


def test_ppo_has_a_critic_and_its_kl_in_the_reward(tiny_policy: Path) -> None:
    algorithm = {"algorithm": "ppo", "critic_lr": 3e-5, "kl_in": "reward", "kl_coefficient": 0.01, "lam": 0.9}
    config = composed(spec(algorithm=algorithm, model={"base": "tiny", "lora": True, "dtype": "float32"}), tiny_policy)
    assert (config.algorithm.adv_estimator, config.algorithm.lam) == ("gae", 0.9)
    assert (config.algorithm.use_kl_in_reward, config.algorithm.kl_penalty) == (True, "kl")
    assert config.algorithm.kl_ctrl.kl_coef == 0.01
    assert config.actor_rollout_ref.actor.use_kl_loss is False
    assert (config.critic.optim.lr, config.critic.model.path) == (3e-5, str(tiny_policy))
    assert (config.actor_rollout_ref.model.lora_rank, config.actor_rollout_ref.model.lora.merge) == (16, True)
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "float32"


def test_a_run_that_goes_on_resumes_from_its_checkpoint_and_is_not_validated_before() -> None:
    step = Path("/run/checkpoints/step-000004/global_step_4")
    keys = {key: value for key, (value, _) in decided(spec(validation={}), replace(FILES, resume=step)).items()}
    assert (keys["trainer.resume_mode"], keys["trainer.resume_from_path"]) == ("resume_path", str(step))
    assert keys["trainer.val_before_train"] is False


def test_what_the_file_leaves_open_may_be_set_and_open_tables_take_any_key() -> None:
    verl = {
        "trainer": {"nnodes": 2, "n_gpus_per_node": 4},
        "actor_rollout_ref": {
            "rollout": {"enable_sleep_mode": False, "engine_kwargs": {"vllm": {"swap_space": 2}}},
            "model": {"override_config": {"attn_implementation": "sdpa"}},
        },
        "ray_kwargs": {"ray_init": {"address": "10.0.0.1:6379"}},
    }
    config = composed(spec(verl=verl))
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 4)
    assert config.actor_rollout_ref.rollout.enable_sleep_mode is False, "a field that verl's own file leaves out"
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space == 2
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "sdpa"
    assert config.ray_kwargs.ray_init.address == "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("verl", "said"),
    [
        ({"trainer": {"nodes": 1}}, r"unknown key 'verl.trainer.nodes'; did you mean 'nnodes'\?"),
        ({"trainor": {"nnodes": 1}}, r"unknown key 'verl.trainor'; did you mean 'trainer'\?"),
        ({"trainer": {"nnodes": {"a": 1}}}, r"verl.trainer.nnodes.a: verl 0.9.1 has no table there"),
        ({"trainer": {"nnodes": "two"}}, r"verl.trainer.nnodes = 'two': verl has 1 there, a value of another kind"),
        ({"trainer": {"total_training_steps": 3}}, r"verl.trainer.total_training_steps is decided by train.steps"),
        ({"actor_rollout_ref": {"actor": {"optim": {"lr": 1.0}}}}, r"is decided by algorithm.lr"),
        ({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}, r"strategy = 'megatron': give one of fsdp, fsdp2"),
        ({"trainer": {"n_gpus_per_node": 5}, "actor_rollout_ref": {"actor": {"use_dynamic_bsz": False}}}, "verl refus"),
    ],
)
def test_what_does_not_hold_is_said_before_anything_starts(verl: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        composed(spec(verl=verl))


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"algorithm": {"mask_information": False}}, "mask_information = false is not to be had with verl"),
        ({"algorithm": {"value_coefficient": 0.5}}, "value_coefficient has no effect with verl"),
        ({"algorithm": {"mini_batch": 10}}, "give a multiple of train.samples = 4"),
        ({"algorithm": {"mini_batch": 12}}, "whose questions divide train.tasks = 8"),
        ({"model": {"base": "tiny"}, "lora": {"layers": [0]}}, "lora.layers is not to be had with verl"),
    ],
)
def test_what_verl_cannot_do_is_refused(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        decided(spec(**tables), FILES)


# ---- presets --------------------------------------------------------------------------------------------------------

PAPER = ("router-r1-qwen2.5-3b", "router-r1-llama-3.2-3b")


@pytest.mark.parametrize("name", PAPER)
def test_a_preset_holds_the_papers_hyperparameters_and_verl_takes_it(name: str, tiny_policy: Path) -> None:
    made = load_spec(Path(name))
    train, algorithm, limits = made.train, made.algorithm, made.limits
    assert (train.engine, train.steps, train.tasks, train.samples) == ("verl", 225, 64, 1)
    assert (algorithm.algorithm, algorithm.lr, algorithm.critic_lr) == ("ppo", 1e-6, 1e-5)
    assert (algorithm.mini_batch, algorithm.kl_coefficient, algorithm.mask_information) == (32, 0.001, True)
    assert (limits["rounds"], limits["turn_tokens"], limits["information_tokens"]) == (4, 1024, 600)
    assert (made.model.max_context, made.reward.alpha, made.environment.pool) == (4096, 0.0, "paper")
    config = composed(made, tiny_policy)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, actor.ppo_micro_batch_size_per_gpu) == (64, 32, 8)
    assert (rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization) == (1, 0.6)


def test_the_presets_differ_in_their_base_alone() -> None:
    qwen, llama = (load_spec(Path(name)).model_dump() for name in PAPER)
    assert qwen["model"].pop("base") != llama["model"].pop("base")
    assert qwen == llama


def test_a_file_of_a_presets_name_goes_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(presets()) == set(PAPER)
    monkeypatch.chdir(tmp_path)
    Path(PAPER[0]).write_text('[data]\ndataset = "arithmetic"\n[model]\nbase = "mine"\n')
    assert load_spec(Path(PAPER[0])).model.base == "mine"
