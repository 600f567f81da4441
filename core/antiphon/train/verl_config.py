"""From a training file to verl's configuration: what each key of ours decides there, and what `[verl]` may say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module, resources
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from antiphon.errors import ConfigError, MissingExtra, did_you_mean, first_line

if TYPE_CHECKING:
    from antiphon.train.spec import TrainSpec
    from antiphon.train.verl_lengths import Lengths

VERL = "0.9.1"
"""The version of verl whose configuration, trainer and agent loop these modules are written for."""

_KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}
_ADVANTAGES = {"ppo": "gae", "grpo": "grpo", "rloo": "rloo"}
_STRATEGIES = ("fsdp", "fsdp2")
_OPEN = ("ray_kwargs.ray_init", "actor_rollout_ref.model.override_config", "critic.model.override_config")
"""Tables of verl that take any key: they are handed on to Ray, or to transformers."""

Because = tuple[Any, str]
"""A value, and the key of ours that it comes from."""


@dataclass(frozen=True, slots=True)
class Files:
    """What verl reads: questions, the agent loop's file, the model; and where it goes on from."""

    train: Path
    validation: Path
    agent: Path
    model: Path
    resume: Path | None = None


def check_installed() -> None:
    """verl, Ray and vLLM are there, and verl in the version that is written for.

    Raises:
        MissingExtra, ConfigError: what is not, and how to get it.
    """
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise MissingExtra("engine = 'verl'", "train") from None
    if found != VERL:
        raise ConfigError(f"engine = 'verl' is written for verl {VERL}, and {found} is installed; install verl=={VERL}")
    try:
        version("vllm")
        there = find_spec("vllm") is not None
    except PackageNotFoundError:
        there = False
    if not there:
        raise ConfigError(
            f"engine = 'verl' generates with vLLM, which is not installed; install a version that goes with verl "
            f"{VERL} (docs/how-to/verl.md)"
        )


def decided(spec: TrainSpec, files: Files) -> dict[str, Because]:
    """verl's key -> what a training file makes of it. `[verl]` may not say otherwise.

    Raises:
        ConfigError: the file asks for what verl cannot do.
    """
    train, algorithm, model = spec.train, spec.algorithm, spec.model
    _check(spec)
    mini = train.tasks if algorithm.mini_batch is None else algorithm.mini_batch // train.samples
    in_loss = algorithm.kl_coefficient > 0 and algorithm.kl_in == "loss"
    in_reward = algorithm.kl_coefficient > 0 and algorithm.kl_in == "reward"
    actor, rollout, weights = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
    keys: dict[str, Because] = {
        "trainer.total_training_steps": (train.steps, "train.steps"),
        "trainer.total_epochs": (train.steps + 1, "train.steps"),
        "trainer.resume_mode": ("disable" if files.resume is None else "resume_path", "--resume"),
        "trainer.resume_from_path": (None if files.resume is None else str(files.resume), "--resume"),
        "trainer.val_before_train": (spec.validation is not None and files.resume is None, "validation"),
        "trainer.test_freq": (-1, "validation.every"),
        "trainer.save_freq": (-1, "checkpoints.every"),
        "trainer.default_local_dir": (str(files.train.parent), "train.out"),
        "trainer.use_v1": (True, "train.engine"),
        "trainer.v1.trainer_mode": ("sync", "train.engine"),
        "data.train_files": (str(files.train), "data"),
        "data.val_files": (str(files.validation), "validation"),
        "data.train_batch_size": (train.tasks, "train.tasks"),
        "data.shuffle": (False, "train.seed"),
        "data.seed": (train.seed, "train.seed"),
        f"{weights}.path": (str(files.model), "model.base"),
        f"{weights}.lora_rank": (spec.lora.rank if model.lora else 0, "lora.rank"),
        f"{weights}.lora_alpha": (spec.lora.alpha, "lora.alpha"),
        f"{weights}.target_modules": (
            "all-linear" if spec.lora.targets is None else list(spec.lora.targets),
            "lora.targets",
        ),
        f"{weights}.lora.merge": (model.lora, "model.lora"),  # vLLM decodes merged weights fastest
        f"{rollout}.name": ("vllm", "train.engine"),
        f"{rollout}.n": (train.samples, "train.samples"),
        f"{rollout}.seed": (train.seed, "train.seed"),
        f"{rollout}.dtype": (_dtype(spec), "model.dtype"),
        f"{rollout}.temperature": (train.temperature, "train.temperature"),
        f"{rollout}.top_p": (1.0, "train.engine"),
        f"{rollout}.top_k": (-1, "train.engine"),
        f"{rollout}.calculate_log_probs": (True, "train.engine"),
        f"{rollout}.val_kwargs.temperature": (0, "validation"),
        f"{rollout}.val_kwargs.do_sample": (False, "validation"),
        f"{rollout}.val_kwargs.n": (1, "validation"),
        f"{rollout}.agent.agent_loop_config_path": (str(files.agent), "train.engine"),
        f"{rollout}.agent.default_agent_loop": ("antiphon", "train.engine"),
        f"{actor}.optim.lr": (algorithm.lr, "algorithm.lr"),
        f"{actor}.optim.weight_decay": (algorithm.weight_decay, "algorithm.weight_decay"),
        f"{actor}.optim.clip_grad": (algorithm.max_grad_norm, "algorithm.max_grad_norm"),
        f"{actor}.ppo_epochs": (algorithm.epochs, "algorithm.epochs"),
        f"{actor}.ppo_mini_batch_size": (mini, "algorithm.mini_batch"),
        f"{actor}.data_loader_seed": (train.seed, "train.seed"),
        f"{actor}.clip_ratio": (algorithm.clip, "algorithm.clip"),
        f"{actor}.clip_ratio_low": (algorithm.clip, "algorithm.clip"),
        f"{actor}.clip_ratio_high": (algorithm.clip_high or algorithm.clip, "algorithm.clip_high"),
        f"{actor}.clip_ratio_c": (algorithm.dual_clip, "algorithm.dual_clip"),
        f"{actor}.loss_agg_mode": (algorithm.aggregation, "algorithm.aggregation"),
        f"{actor}.entropy_coeff": (algorithm.entropy_coefficient, "algorithm.entropy_coefficient"),
        f"{actor}.use_kl_loss": (in_loss, "algorithm.kl_in"),
        f"{actor}.kl_loss_coef": (algorithm.kl_coefficient, "algorithm.kl_coefficient"),
        f"{actor}.kl_loss_type": (_KL[algorithm.estimator], "algorithm.kl_estimator"),
        "algorithm.adv_estimator": (_ADVANTAGES[algorithm.algorithm], "algorithm.algorithm"),
        "algorithm.gamma": (algorithm.gamma, "algorithm.gamma"),
        "algorithm.lam": (algorithm.lam, "algorithm.lam"),
        "algorithm.norm_adv_by_std_in_grpo": (algorithm.divide_by_std, "algorithm.divide_by_std"),
        "algorithm.use_kl_in_reward": (in_reward, "algorithm.kl_in"),
        "algorithm.kl_penalty": (_KL[algorithm.estimator], "algorithm.kl_estimator"),
        "algorithm.kl_ctrl.type": ("fixed", "algorithm.kl_coefficient"),
        "algorithm.kl_ctrl.kl_coef": (algorithm.kl_coefficient, "algorithm.kl_coefficient"),
        "critic.model.path": (str(files.model), "model.base"),
        "critic.optim.lr": (algorithm.critic_lr, "algorithm.critic_lr"),
        "critic.optim.weight_decay": (0.0, "algorithm.critic_lr"),
        "critic.optim.clip_grad": (algorithm.max_grad_norm, "algorithm.max_grad_norm"),
        "critic.cliprange_value": (algorithm.value_clip, "algorithm.value_clip"),
        "critic.data_loader_seed": (train.seed, "train.seed"),
    }
    return keys


def usual(spec: TrainSpec, lengths: Lengths) -> dict[str, Any]:
    """verl's key -> what holds where `[verl]` says nothing, in place of verl's own default."""
    tokens = max(spec.algorithm.micro_tokens, lengths.prompt + lengths.response)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    keys: dict[str, Any] = {
        "trainer.project_name": "antiphon",
        "trainer.logger": ["console"],  # the run's own files and writers show the figures
        "trainer.n_gpus_per_node": 1,
        "data.dataloader_num_workers": 0,
        "data.max_prompt_length": lengths.prompt,
        "data.max_response_length": lengths.response,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.max_model_len": lengths.prompt + lengths.response,
        f"{rollout}.agent.num_workers": 1,
        "reward.num_workers": 1,  # nothing to do: rewards come from the agent loop
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": tokens,
        "critic.ppo_max_token_len_per_gpu": tokens,
        "ray_kwargs.ray_init.log_to_driver": False,
    }
    if _dtype(spec) != "bfloat16":
        precision = {"param_dtype": _dtype(spec), "reduce_dtype": "float32", "buffer_dtype": "float32"}
        for part in (f"{actor}.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp"):
            keys[f"{part}.mixed_precision"] = precision
    return keys


def _dtype(spec: TrainSpec) -> str:
    """Of the rollouts and of what FSDP computes in; "auto" is what verl takes by itself."""
    return "bfloat16" if spec.model.dtype == "auto" else spec.model.dtype


def compose(spec: TrainSpec, lengths: Lengths, files: Files) -> Any:
    """verl's whole configuration, checked by verl itself; nothing has been started.

    Raises:
        ConfigError: `[verl]` names a key that verl has not, or that another table decides; or verl refuses the whole.
        MissingExtra: verl is not installed.
    """
    try:
        from hydra import compose as composed
        from hydra import initialize_config_dir
        from omegaconf import OmegaConf, open_dict
    except ImportError:
        raise MissingExtra("engine = 'verl'", "train") from None
    with initialize_config_dir(str(resources.files("verl") / "trainer" / "config"), version_base=None):
        config = composed("ppo_trainer")
    given = dict(_leaves(spec.verl))
    keys = {**usual(spec, lengths), **given}
    for key, (value, because) in decided(spec, files).items():
        if key in given:
            raise ConfigError(f"verl.{key} is decided by {because}; set that, and leave verl.{key} out")
        keys[key] = value
    for key, value in keys.items():
        _check_key(config, key, value)
        with open_dict(config):
            OmegaConf.update(config, key, value, merge=True, force_add=True)
    _checked(config)
    return config


def _check(spec: TrainSpec) -> None:
    train, algorithm, model = spec.train, spec.algorithm, spec.model
    if (size := algorithm.mini_batch) is not None and (size % train.samples or train.tasks % (size // train.samples)):
        raise ConfigError(
            f"algorithm.mini_batch = {size}: verl takes whole questions, and as many in each mini-batch: give a "
            f"multiple of train.samples = {train.samples} whose questions divide train.tasks = {train.tasks}"
        )
    if not algorithm.mask_information:
        raise ConfigError("algorithm.mask_information = false is not to be had with verl; use engine = 'local'")
    if algorithm.value_coefficient != type(algorithm)().value_coefficient:
        raise ConfigError("algorithm.value_coefficient has no effect with verl, whose critic is a model of its own")
    if model.lora and spec.lora.layers is not None:
        raise ConfigError("lora.layers is not to be had with verl, which trains all layers; leave it out")


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """`{"a": {"b": 1}}` as `a.b`, 1; an open table of verl stays whole."""
    for name, value in table.items():
        key = f"{above}.{name}" if above else name
        if isinstance(value, Mapping) and value and key not in _OPEN:
            yield from _leaves(value, key)
        else:
            yield key, value


def _check_key(config: Any, key: str, value: Any) -> None:
    """verl has this key: in its configuration, as a field of what a part of it is made into, or in a table of any keys.

    Raises:
        ConfigError: it has not (says what comes near), or the value is of another kind than verl's own.
    """
    from omegaconf import DictConfig, OmegaConf

    here, path = config, ""
    for part in key.split("."):
        path = f"{path}.{part}" if path else part
        if path.rpartition(".")[0] in _OPEN:
            return
        if not isinstance(here, DictConfig):
            raise ConfigError(f"verl.{key}: verl {VERL} has no table there; {path.rpartition('.')[0]} is a value")
        known = {*map(str, here), *_fields(here)}
        if not known:
            return  # an empty table: any key
        if part not in known:
            raise ConfigError(f"unknown key 'verl.{path}'{did_you_mean(part, known)}")
        if part not in here or OmegaConf.is_missing(here, part) or here[part] is None:
            return
        here = here[part]
    kind = next((kind for kind in (bool, (int, float), str, DictConfig) if isinstance(here, kind)), None)
    if kind is None or value is None or isinstance(value, list):
        return
    if not isinstance(value, Mapping if kind is DictConfig else kind) or isinstance(value, bool) != (kind is bool):
        raise ConfigError(f"verl.{key} = {value!r}: verl has {here!r} there, a value of another kind")


def _fields(table: Any) -> set[str]:
    """What the dataclass that verl makes of a table takes."""
    target = table.get("_target_")
    if not isinstance(target, str):
        return set()
    module, _, name = target.rpartition(".")
    made = getattr(import_module(module), name)
    return {each.name for each in fields(made) if each.init} if is_dataclass(made) else set()


def _checked(config: Any) -> None:
    """What verl checks before it starts, and what it would find out later.

    Raises:
        ConfigError: what verl says.
    """
    for part in ("actor_rollout_ref.actor", "critic"):
        strategy = _at(config, f"{part}.strategy")
        if strategy not in _STRATEGIES:
            raise ConfigError(f"verl.{part}.strategy = {strategy!r}: give one of {', '.join(_STRATEGIES)}")
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.utils.device import auto_set_device

    try:
        with redirect_stdout(StringIO()), catch_warnings():
            simplefilter("ignore")
            auto_set_device(config)
            validate_config(config, need_reference_policy(config), need_critic(config))
            for part in ("actor_rollout_ref.rollout", "algorithm"):
                omega_conf_to_dataclass(_at(config, part))
    except Exception as error:  # verl asserts, and hydra wraps what it instantiates
        cause = error.__cause__ or error
        raise ConfigError(f"verl refuses its configuration: {first_line(cause)}") from error


def _at(config: Any, key: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.select(config, key)
