"""verl's AgentLoop over our rollout: the policy, pool and grammar that answer questions, being trained."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4
from weakref import WeakKeyDictionary

from antiphon._setup import Setup
from antiphon.errors import AntiphonError, MissingExtra
from antiphon.generators._chat import Chat
from antiphon.rollout import Rollout
from antiphon.train.environment import Environment
from antiphon.train.samples import Sample, sample_of
from antiphon.train.verl_fields import number, task_of
from antiphon.train.verl_generator import VerlGenerator
from antiphon.train.verl_hub import HubPool, Options, Shares, hub_of

try:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop import agent_loop
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
except ImportError as error:
    raise MissingExtra(f"antiphon.train.agent_loop ({error})", "train") from error

if TYPE_CHECKING:
    from antiphon.reward import RewardResult
    from antiphon.types import Trajectory


@dataclass(frozen=True, slots=True)
class _Worker:
    """What the agent loops of one worker process share; verl makes a new loop object for every sample."""

    chat: Chat
    hub: Shares
    setup: Setup
    environment: Environment
    resources: AsyncExitStack  # lives as long as the process, as verl's workers do

    @classmethod
    async def make(cls, loop: AntiphonAgentLoop, options: Options, hub_name: str | None) -> Self:
        tokenizer: Any = loop.tokenizer
        chat = Chat(tokenizer, source=f"the tokeniser {tokenizer.name_or_path!r}")
        hub, resources = hub_of(options, hub_name), AsyncExitStack()
        pool = HubPool(hub, *await hub.members())
        setup = options.setup(resources, loop.generator(chat, {}), pool)
        return cls(chat, hub, setup, options.drawn(pool), resources)


_workers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[_Worker]]] = WeakKeyDictionary()


class AntiphonAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs Antiphon's rollout for a row of verl's dataset (see `antiphon.train.verl_fields.task_of` for its fields).

    Args (beside verl's own), from the entry of `rollout.agent.agent_loop_config_path`:
        config_path: an antiphon.toml; default: as everywhere ($ANTIPHON_CONFIG, ./antiphon.toml, the defaults).
        policy, pool, grammar: names; default: as the configuration says.
        reward: name of a composition, or one as data.
        alpha: instead of the composition's own.
        environment: as the table `[environment]` of a training file: memo, allow_unpriced, randomise.
        seed: of what the environment draws.
        max_cost_usd: for all that the run asks of members.
        run: the file in which `antiphon train` has written all of these.
        hub: the name of the Ray actor that all workers share (`antiphon.train.verl_hub`); default: one of their own.
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
        environment: Mapping[str, Any] | None = None,
        seed: int = 0,
        max_cost_usd: float | None = None,
        run: str | None = None,
        hub: str | None = None,
        keep_trajectory: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        given = (config_path, policy, pool, grammar, _plain(reward), alpha, _plain(environment), seed, max_cost_usd)
        self._options = Options(*given) if run is None else Options.read(run)
        self._hub, self._keep_trajectory = hub, keep_trajectory

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """One rollout as verl takes it, with its reward.

        A rollout that ran out of tokens, money, time or rounds, or gave no answer, is a sample like any other. In one
        that failed by an error of ours or a plugin's, no token is trained on.

        Raises:
            ConfigError: the row or the configuration does not hold, or the prompt is longer than verl trains on.
            GeneratorError, or what verl's server raised: the policy's model failed.
        """
        worker = await self._worker()
        rollout_id, split = self._rollout_id(kwargs), _split(kwargs)
        step = kwargs.get("global_steps")
        try:
            return await self._run(worker, rollout_id, split, sampling_params, kwargs)
        except Exception as error:
            await worker.hub.failed(rollout_id, split, None if step is None else number(step), _said(error))
            raise

    async def _run(
        self, worker: _Worker, rollout_id: str, split: str, sampling_params: dict[str, Any], fields: dict[str, Any]
    ) -> AgentLoopOutput:
        task = task_of(fields)
        generator = self.generator(worker.chat, fields)
        setup, sample_number = worker.setup, number(fields.get("session_id"))
        step = fields.get("global_steps")
        pool = worker.environment.pool(task, number(step), sample_number) if split == "train" else setup.pool
        rollout = Rollout(
            task,
            pool,
            generator,
            limits=setup.limits,
            policy_price=setup.policy_price,
            sampling={**setup.sampling, **sampling_params},
            sample=sample_number,
            seed=self._options.seed,
            versions={**setup.versions, "generator": generator.name},
            id=rollout_id,
        )
        trajectory = await rollout.run(setup.policy)
        if generator.error is not None:
            raise generator.error
        setup.registry.on_trajectory(trajectory)
        length = int(self.rollout_config.response_length)
        sample = sample_of(trajectory, response_length=length, logprobs=bool(sampling_params.get("logprobs")))
        step = generator.min_global_steps if step is None else number(step)
        result = await worker.hub.score(trajectory, split, step, (number(fields.get("index")), sample_number))
        return self._output(trajectory, sample, result, generator, step)

    def _output(
        self, trajectory: Trajectory, sample: Sample, result: RewardResult, generator: VerlGenerator, step: Any
    ) -> AgentLoopOutput:
        failed = trajectory.stop == "error"
        ids, mask, logprobs = _to_the_last_word(sample)
        mask = [0] * len(mask) if failed else mask
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
            "antiphon_digest": digest(ids, mask),
        }
        if self._keep_trajectory:
            extra["antiphon_trajectory"] = trajectory.to_json()
        return AgentLoopOutput(
            prompt_ids=sample.prompt_ids,
            response_ids=ids,
            response_mask=mask,
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

    def _rollout_id(self, fields: Mapping[str, Any]) -> str:
        """A random one; verl's full determinism wants request ids that are the same in every run."""
        if not self.rollout_config.get("full_determinism", False):
            return uuid4().hex
        return f"det-{number(fields.get('priority'))}-{number(fields.get('session_id'))}"

    @property
    def _filler(self) -> int:
        tokenizer: Any = self.tokenizer
        ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        return next((int(token) for token in ids if token is not None), 0)

    async def _worker(self) -> _Worker:
        """Made once for each event loop and entry of the agent-loop file: clients live on the loop that made them."""
        workers = _workers.setdefault(asyncio.get_running_loop(), {})
        key = f"{id(self.tokenizer)} {self._hub} {self._options!r}"  # a worker holds its tokeniser, so the id stays
        if key not in workers:
            workers[key] = asyncio.create_task(_Worker.make(self, self._options, self._hub))
        return await asyncio.shield(workers[key])


# verl imports this module when it makes its first loop, and has read the agent-loop file by then: what that says of a
# loop called antiphon must stay. A call and no decorator, which would lose the class's own type.
if "antiphon" not in agent_loop._agent_loop_registry:
    register("antiphon")(AntiphonAgentLoop)


def _split(fields: Mapping[str, Any]) -> str:
    extra = fields.get("extra_info")
    return str(extra.get("split", "train")) if isinstance(extra, Mapping) else "train"


def digest(ids: Sequence[int], mask: Sequence[int]) -> str:
    """What is to be trained on, in short: the trainer compares it with what verl has made of it."""
    return hashlib.sha256(repr((list(map(int, ids)), list(map(int, mask)))).encode()).hexdigest()


def _to_the_last_word(sample: Sample) -> tuple[list[int], list[int], list[float] | None]:
    """A response up to the policy's last token: verl pays the reward at the last token of a response, and GAE does not
    see it where that is information. What follows has no part in any loss."""
    end = max((place + 1 for place, ours in enumerate(sample.mask) if ours), default=0)
    logprobs = None if sample.logprobs is None else sample.logprobs[:end]
    return sample.response_ids[:end], sample.mask[:end], logprobs


def _plain(value: Any) -> Any:
    """A table of the agent-loop file as plain Python."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, AntiphonError) else f"{type(error).__name__}: {error}"
