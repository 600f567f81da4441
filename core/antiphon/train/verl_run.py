"""The training engine `verl`: verl's trainer on Ray, our rollouts in its agent loop, one hub for what they share."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon import models
from antiphon.errors import AntiphonError, ConfigError, GeneratorError, first_line
from antiphon.generators._chat import load_chat
from antiphon.train.checkpoint import CHECKPOINTS, SHARDS, Checkpoints, load_state, step_of
from antiphon.train.collapse import warn_of_inert
from antiphon.train.folder import compare_cards, open_folder
from antiphon.train.run import Ended, Stopping
from antiphon.train.signals import run_cancellable
from antiphon.train.spending import Spending
from antiphon.train.start import check_start, start_of
from antiphon.train.verl_config import Files, check_installed, compose
from antiphon.train.verl_data import write_train, write_validation
from antiphon.train.verl_hub import Elsewhere, Options, Remote, actor
from antiphon.train.verl_lengths import Lengths, lengths
from antiphon.train.writers import METRICS, Writers, open_writers, read_rows

if TYPE_CHECKING:
    from antiphon._setup import Setup
    from antiphon.card import Card
    from antiphon.train.prepare import Prepared
    from antiphon.train.run import Listener
    from antiphon.train.verl_ledger import News

FOLDER = "verl"
"""Where, in a run's folder, is what verl reads: questions, configurations, the agent loop's file."""

CLOSING_S = 10.0
"""Seconds that the pool has to close when a run is over."""

LOOK_S = 0.5
"""Seconds after which a run that has no news is looked at again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run, put together and checked; nothing has been started.

    Attributes:
        config: verl's.
        latest: the checkpoint that it goes on from; None: there is none.
        options: what the loop workers and the hub are made of.
        hub: the hub's name.
    """

    config: Any
    lengths: Lengths
    latest: Path | None
    options: Options
    hub: str
    card: Card

    @property
    def done(self) -> int | None:
        """The step after which that checkpoint was made."""
        return None if self.latest is None else step_of(self.latest)


def train(prepared: Prepared, folder: Path, *, resume: bool, listener: Listener) -> Ended:
    """Train in a folder until the run ends; what it did is in the folder, whatever happens.

    Raises:
        ConfigError, PluginError, MissingExtra: the set-up does not hold, or the folder belongs to another run.
        GeneratorError: too many rollouts of a step failed, or verl did; says why.
        KeyboardInterrupt: by a second signal; the first lets the step under way end.
    """
    check_installed()
    folder = folder.resolve()  # verl's processes have working directories of their own
    stopping = Stopping()

    def gently() -> None:
        stopping.asked = True
        listener.stopping()

    with open_folder(folder, prepared, resume=resume) as was_cut_off:
        return run_cancellable(_train(prepared, folder, listener, stopping, was_cut_off), gently=gently)


async def _train(prepared: Prepared, folder: Path, listener: Listener, stopping: Stopping, was_cut_off: bool) -> Ended:
    async with AsyncExitStack() as resources:
        setup, spending = prepared.setup(Elsewhere(), resources), Spending(folder, was_cut_off=was_cut_off)
        warn_of_inert(prepared.spec.collapse, prepared.spec.algorithm)
        plan = await make_plan(prepared, setup, folder)
        if plan.done is not None and plan.done >= prepared.spec.train.steps:
            return Ended("done", plan.done, spent_usd=spending.usd)
        writers = _writers(prepared, folder, plan)
        resources.callback(writers.close)
        listener.note(str(plan.lengths))
        await listener.ready(setup, plan.done)
        with _Ray(plan.config) as ray:
            hub = _hub(ray, prepared, folder, plan, spending.usd)
            remote = Remote(hub)
            spending.keep(spending.usd)
            try:
                done = _start(ray, prepared, folder, plan, hub)
                ended = await _follow(done, remote, writers, listener, stopping, spending)
            finally:
                with suppress(Exception):  # it may be what failed
                    spending.keep(await asyncio.wait_for(remote.spent_usd(), CLOSING_S))
                with suppress(Exception):
                    await asyncio.wait_for(remote.aclose(), CLOSING_S)
        return replace(ended, spent_usd=spending.usd)


async def make_plan(prepared: Prepared, setup: Setup, folder: Path) -> Plan:
    """Put a run together, and write what verl reads.

    Raises:
        ConfigError, MissingExtra: something does not hold.
    """
    spec, here = prepared.spec, folder / FOLDER
    here.mkdir(exist_ok=True)
    latest = Checkpoints(folder / CHECKPOINTS).latest
    done = 0 if latest is None else step_of(latest)
    model, name = _model(prepared), f"antiphon-{uuid.uuid4().hex[:12]}"
    check_start(spec.model, setup)
    made = prepared.card(setup, folder.name, steps=0, results={})
    if latest is not None and (before := compare_cards(latest, made, setup.pool.members)) is not None:
        made = made.model_copy(update={"start": before.start or made.start})
    options = _options(prepared, here)
    files = Files(
        here / "train.parquet",
        here / "validation.parquet",
        here / "agent.yaml",
        model,
        None if latest is None else latest / f"{SHARDS}{done}",
    )
    found = await lengths(prepared, setup, load_chat(models.find(spec.model.base), None), model)
    config = compose(spec, found, files)
    train = spec.train
    if done < train.steps:
        write_train(prepared.tasks, files.train, first=done + 1, last=train.steps, count=train.tasks, seed=train.seed)
    validation = prepared.tasks.tasks[:1] if prepared.validation is None else prepared.validation.tasks
    write_validation(validation, files.validation)
    _write_agent(files.agent, options, name)
    (here / "config.yaml").write_text(_yaml(config), "utf-8")
    return Plan(config, found, latest, options, name, made)


def _model(prepared: Prepared) -> Path:
    """The Hugging Face folder that verl loads: the base, or the whole model that the run starts from.

    Raises:
        ConfigError: the run starts from an adapter.
    """
    model = prepared.spec.model
    start = start_of(model.start)
    if start is None:
        return models.find(model.base)
    if (start / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.start = {model.start!r} is a LoRA adapter, and verl starts from whole models (its reference would "
            f"be the base without it): antiphon train export {model.start} --merge --out FOLDER, and start from FOLDER"
        )
    if model.lora:
        raise ConfigError(
            f"model.start = {model.start!r} is a whole model: to train LoRA on it, set model.base to it and leave "
            "model.start out; to train all of it, set model.lora = false"
        )
    return start


def _options(prepared: Prepared, here: Path) -> Options:
    """What loop workers and hub are made of; the configuration goes to a file, whole."""
    path, spec = here / "antiphon.json", prepared.spec
    path.write_text(prepared.config.model_dump_json(indent=1), "utf-8")
    environment = spec.environment.model_dump(mode="json", exclude={"pool"})
    return Options(
        config_path=str(path),
        grammar=spec.policy.grammar,
        reward=prepared.composition.model_dump(mode="json"),
        environment=environment,
        seed=spec.train.seed,
        max_cost_usd=spec.train.max_cost_usd,
    )


def _write_agent(path: Path, options: Options, hub: str) -> None:
    """The agent loop's file. The options lie beside it: OmegaConf would take a dollar sign for a reference."""
    beside = path.with_name("options.json")
    beside.write_text(json.dumps(asdict(options), indent=1), "utf-8")
    target = "antiphon.train.agent_loop.AntiphonAgentLoop"
    entry = {"name": "antiphon", "_target_": target, "run": str(beside), "hub": hub}
    path.write_text(json.dumps([entry], indent=1), "utf-8")  # JSON is YAML


def _yaml(config: Any) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(config)


def _writers(prepared: Prepared, folder: Path, plan: Plan) -> Writers:
    resumed = (folder / METRICS).exists()
    last = plan.done if plan.done is not None else -1 if resumed else None
    return open_writers(folder, prepared.spec.train.writers, last=last, config=prepared.spec.model_dump(mode="json"))


# ---- on Ray ---------------------------------------------------------------------------------------------------------


class _Ray:
    """Ray, started or joined as verl's configuration says, and left when the run is over; one that this process had
    started already is used and left alone."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._ours = False

    def __enter__(self) -> Any:
        import ray
        from omegaconf import OmegaConf
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

        if not ray.is_initialized():
            handler = signal.getsignal(signal.SIGTERM)
            environment = get_ppo_ray_runtime_env(self._config)
            environment.setdefault("env_vars", {})["TRANSFER_QUEUE_ENABLE"] = "1"
            given: Any = OmegaConf.to_container(self._config.ray_kwargs.ray_init, resolve=True)
            environment = OmegaConf.merge(environment, given.pop("runtime_env", None) or {})
            given = {key: value for key, value in given.items() if value is not None}
            try:
                ray.init(**given, runtime_env=OmegaConf.to_container(environment))
            except Exception as error:
                raise ConfigError(
                    f"Ray does not start with verl.ray_kwargs.ray_init = {given}: {first_line(error)}"
                ) from error
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own in the place of ours
            self._ours = True
        return ray

    def __exit__(self, *_: object) -> None:
        import ray

        if self._ours:
            ray.shutdown()


def _hub(ray: Any, prepared: Prepared, folder: Path, plan: Plan, spent_usd: float) -> Any:
    """The hub of the run, as the checkpoint left it. It stays on this machine: here are the keys of its members."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from antiphon.train.verl_ledger import RunHub

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    rows: list[dict[str, Any]] = []
    state: Mapping[str, Any] = {}
    if plan.latest is not None:
        rows = [row for row in read_rows(folder) if row["step"] <= step_of(plan.latest)]
        state = load_state(plan.latest)
    known = {"best": state["best"]} if state else {}
    made = actor(RunHub, plan.hub, scheduling_strategy=here).remote(
        plan.options, prepared.spec, rows=rows, spent_usd=spent_usd, **known
    )
    if state:
        ray.get(made.load_state_dict.remote(state["rewards"]))
    return made


def _start(ray: Any, prepared: Prepared, folder: Path, plan: Plan, hub: Any) -> asyncio.Future[Ended]:
    """Start verl; the future is how the run ends."""
    from antiphon.train.verl_trainer import Job, TaskRunner

    validation = 0 if prepared.validation is None else len(prepared.validation.tasks)
    job = Job(prepared.spec, folder, plan.card, validation, plan.done)
    runner = ray.remote(TaskRunner).options(num_cpus=1).remote()
    reference = runner.run.remote(plan.config, job, hub)
    return asyncio.wrap_future(reference.future())


async def _follow(
    done: asyncio.Future[Ended],
    hub: Any,
    writers: Writers,
    listener: Listener,
    stopping: Stopping,
    spending: Spending,
) -> Ended:
    """Write and tell what happens, until the run has ended.

    Raises:
        GeneratorError: it failed; says why.
    """
    told = False
    news: asyncio.Future[News] = asyncio.ensure_future(hub.news())
    try:
        while not done.done():
            either: set[asyncio.Future[Any]] = {done, news}
            await asyncio.wait(either, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if stopping.asked and not told:
                told = True
                await hub.stop()
            if news.done():
                _tell(news.result(), writers, listener, spending)
                news = asyncio.ensure_future(hub.news())
        return await done
    except Exception as error:
        raise _failure(error) from error
    finally:
        news.cancel()


def _tell(news: News, writers: Writers, listener: Listener, spending: Spending) -> None:
    listener.rolled(*news.rolled)
    for row, trajectories in news.rows:
        spending.keep(row["spent_usd"])
        writers.step(row)
        if trajectories:
            writers.rollouts(row["step"], trajectories)
        listener.step(row)


def _failure(error: Exception) -> AntiphonError:
    """What went wrong in verl's processes, as one of ours."""
    cause: BaseException = error
    while (inner := getattr(cause, "cause", None)) is not None:
        cause = inner
    if isinstance(cause, AntiphonError):
        return cause
    logs = "what its processes said is in the logs of the Ray session (by default /tmp/ray/session_latest/logs)"
    return GeneratorError(f"verl failed: {type(cause).__name__}: {first_line(cause)}; {logs}")
