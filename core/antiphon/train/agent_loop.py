"""verl's AgentLoop over our rollout: the policy, pool and grammar that answer questions, being trained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from antiphon._setup import Chosen, Setup, build
from antiphon.errors import MissingExtra
from antiphon.generators._chat import Chat
from antiphon.reward import Composition, compose
from antiphon.rollout import Rollout
from antiphon.train.samples import Sample, sample_of
from antiphon.train.stepped import SteppedReward
from antiphon.train.verl_fields import number, task_of
from antiphon.train.verl_generator import VerlGenerator

try:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
except ImportError as error:
    raise MissingExtra(f"antiphon.train.agent_loop ({error})", "train") from error

if TYPE_CHECKING:
    from antiphon.reward import RewardResult
    from antiphon.types import Trajectory


@dataclass(frozen=True, slots=True)
class _Options:
    config_path: str | None
    policy: str | None
    pool: str | None
    grammar: str | None
    reward: str | Mapping[str, Any]
    alpha: float | None


class _Worker:
    """What the agent loops of one worker process share; verl makes a new loop object for every sample."""

    def __init__(self, loop: AntiphonAgentLoop, options: _Options) -> None:
        tokenizer: Any = loop.tokenizer
        self.chat = Chat(tokenizer, source=f"the tokeniser {tokenizer.name_or_path!r}")
        self.resources = AsyncExitStack()  # lives as long as the process, as verl's workers do
        model = loop.generator(self.chat, {})
        chosen = Chosen(options.pool, options.policy, model, options.grammar, options.config_path)
        self.setup: Setup = build(chosen, self.resources)
        reward = options.reward
        self._composition = self.setup.config.reward(reward) if isinstance(reward, str) else Composition.of(reward)
        self._alpha = options.alpha
        self._rewards: dict[str, SteppedReward] = {}

    def reward(self, split: str) -> SteppedReward:
        """Each split has its own window."""
        if split not in self._rewards:
            setup = self.setup
            reward = compose(self._composition, setup.registry, pool=setup.pool, alpha=self._alpha)
            self._rewards[split] = SteppedReward(reward)
        return self._rewards[split]


_workers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Worker]] = WeakKeyDictionary()


class AntiphonAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs Antiphon's rollout for a row of verl's dataset (see `antiphon.train.verl_fields.task_of` for its fields).

    Args (beside verl's own), from the entry of `rollout.agent.agent_loop_config_path`:
        config_path: an antiphon.toml; default: as everywhere ($ANTIPHON_CONFIG, ./antiphon.toml, the defaults).
        policy, pool, grammar: names; default: as the configuration says.
        reward: name of a composition, or one as data.
        alpha: instead of the composition's own.
        keep_trajectory: put the trajectory's JSON into the output's extra fields.
    """

    def __init__(
        self,
        *args: Any,
        config_path: str | None = None,
        policy: str | None = None,
        pool: str | None = None,
        grammar: str | None = None,
        reward: str | Mapping[str, Any] = "paper",
        alpha: float | None = None,
        keep_trajectory: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        plain: Any = OmegaConf.to_container(reward, resolve=True) if OmegaConf.is_config(reward) else reward
        self._options = _Options(config_path, policy, pool, grammar, plain, alpha)
        self._keep_trajectory = keep_trajectory

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """One rollout as verl takes it, with its reward.

        A rollout that ran out of tokens, money, time or rounds, or gave no answer, is a sample like any other. In one
        that failed by an error of ours or a plugin's, no token is trained on.

        Raises:
            ConfigError: the row or the configuration does not hold, or the prompt is longer than verl trains on.
            GeneratorError, or what verl's server raised: the policy's model failed.
        """
        task = task_of(kwargs)
        worker = self._worker()
        reward = worker.reward(_split(kwargs))  # before anything is generated: it may not hold
        generator = self.generator(worker.chat, kwargs)
        setup, sample_number = worker.setup, number(kwargs.get("session_id"))
        rollout = Rollout(
            task,
            setup.pool,
            generator,
            limits=setup.limits,
            policy_price=setup.policy_price,
            sampling={**setup.sampling, **sampling_params},
            sample=sample_number,
            versions={**setup.versions, "generator": generator.name},
            id=self._rollout_id(kwargs),
        )
        trajectory = await rollout.run(setup.policy)
        if generator.error is not None:
            raise generator.error
        setup.registry.on_trajectory(trajectory)
        length = int(self.rollout_config.response_length)
        sample = sample_of(trajectory, response_length=length, logprobs=bool(sampling_params.get("logprobs")))
        step = kwargs.get("global_steps", generator.min_global_steps)
        result = await reward.score(
            trajectory,
            step=None if step is None else number(step),
            order=(number(kwargs.get("index")), sample_number),
        )
        return self._output(trajectory, sample, result, generator, step)

    def _output(
        self, trajectory: Trajectory, sample: Sample, result: RewardResult, generator: VerlGenerator, step: Any
    ) -> AgentLoopOutput:
        failed = trajectory.stop == "error"
        ids, mask, logprobs = sample.response_ids, sample.mask, sample.logprobs
        if not ids:  # verl cannot hold an empty response: one token that is not trained on
            ids, mask, logprobs = [self._filler], [0], None if logprobs is None else [0.0]
        # Weights that never spoke: verl still wants whole numbers; step g runs on the weights of step g - 1.
        version = max(0, number(step, 1) - 1)
        timings, observed = trajectory.timings, sum(s.kind == "information" for s in trajectory.segments)
        extra: dict[str, Any] = {
            "min_global_steps": version if generator.min_global_steps is None else generator.min_global_steps,
            "max_global_steps": version if generator.max_global_steps is None else generator.max_global_steps,
            "turn_scores": [],
            "tool_rewards": [],
            "reward_extra_info": {
                **{f"reward_{term}": value for term, value in result.parts.items()},
                "calls": len(trajectory.calls),
                "cost_usd": trajectory.cost_usd,
                "answered": float(trajectory.answer is not None),
                "failed": float(failed),
                "cut_tokens": sample.cut,
            },
            "antiphon_trajectory_id": trajectory.id,
            "antiphon_stop": trajectory.stop,
            "antiphon_error": trajectory.error,
        }
        if self._keep_trajectory:
            extra["antiphon_trajectory"] = trajectory.to_json()
        return AgentLoopOutput(
            prompt_ids=sample.prompt_ids,
            response_ids=ids,
            response_mask=[0] * len(mask) if failed else mask,
            response_logprobs=logprobs,
            reward_score=result.total,
            num_turns=1 + len(trajectory.turns) + observed,
            metrics=AgentLoopMetrics(
                generate_sequences=timings.policy_s,
                tool_calls=timings.members_s,
                num_preempted=-1 if generator.preempted is None else generator.preempted,
            ),
            extra_fields=extra,
        )

    def generator(self, chat: Chat, fields: Mapping[str, Any]) -> VerlGenerator:
        """The policy's model for one rollout."""
        rollout = self.rollout_config
        return VerlGenerator(
            self.server_manager,
            chat,
            prompt_length=int(rollout.prompt_length),
            response_length=int(rollout.response_length),
            engine=str(rollout.get("name", "vllm")),
            priority=number(fields["priority"]) if fields.get("priority") is not None else None,
        )

    def _rollout_id(self, fields: Mapping[str, Any]) -> str | None:
        """None: a random one. verl's full determinism wants request ids that are the same in every run."""
        if not self.rollout_config.get("full_determinism", False):
            return None
        return f"det-{number(fields.get('priority'))}-{number(fields.get('session_id'))}"

    @property
    def _filler(self) -> int:
        tokenizer: Any = self.tokenizer
        ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        return next((int(token) for token in ids if token is not None), 0)

    def _worker(self) -> _Worker:
        """Made once for each event loop and entry of the agent-loop file: clients live on the loop that made them."""
        workers = _workers.setdefault(asyncio.get_running_loop(), {})
        key = f"{id(self.tokenizer)} {self._options!r}"  # the worker holds the tokeniser, so its id stays its own
        if key not in workers:
            workers[key] = _Worker(self, self._options)
        return workers[key]


register("antiphon")(AntiphonAgentLoop)  # a call and no decorator: verl's loses the class's own type


def _split(fields: Mapping[str, Any]) -> str:
    extra = fields.get("extra_info")
    return str(extra.get("split", "train")) if isinstance(extra, Mapping) else "train"
