"""Puts together what a training run needs beside its weights: configuration, questions, pool, policy, reward, card."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon._setup import Chosen, Setup, build, registry_for
from antiphon.config import Config, load_config, merge
from antiphon.reward import compose
from antiphon.train.charged import ChargedPool
from antiphon.train.stepped import SteppedReward
from antiphon.train.tasks import Tasks, read_tasks

if TYPE_CHECKING:
    from antiphon.card import Card
    from antiphon.contracts import Generator
    from antiphon.money import Budget
    from antiphon.registry import Registry
    from antiphon.reward import Composition
    from antiphon.train.demonstrations import Demonstrated
    from antiphon.train.spec import TrainSpec


@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec with what it names, read and checked; nothing heavy is loaded and nobody has been asked.

    Attributes:
        validation: None: the spec has none.
        composition: the reward as data, its alpha filled in.
    """

    spec: TrainSpec
    config: Config
    registry: Registry
    tasks: Tasks
    validation: Tasks | None
    composition: Composition

    def setup(self, generator: Generator, resources: AsyncExitStack) -> Setup:
        """Pool, policy, grammar and limits, as everywhere else; what is made is closed with `resources`."""
        spec = self.spec
        chosen = Chosen(
            model=generator,
            grammar=spec.policy.grammar,
            config=self.config,
            registry=self.registry,
            allow_unpriced=spec.environment.allow_unpriced,
        )
        return build(chosen, resources)

    def card(
        self,
        setup: Setup,
        name: str,
        *,
        steps: int,
        results: Mapping[str, float],
        demonstrated: Demonstrated | None = None,
        before: Card | None = None,
    ) -> Card:
        """The card of weights that were trained so.

        Args:
            demonstrated: what they learnt from; None: they were trained by reinforcement learning.
            before: that of the checkpoint which a run goes on from; it began with the same weights.
        """
        from antiphon.train import card, start

        spec, grammar = self.spec, getattr(setup.policy, "grammar", None)
        how: dict[str, Any]
        if demonstrated is None:
            how = {
                "reward": self.composition,
                "algorithm": spec.algorithm.model_dump(mode="json"),
                "rollouts": spec.train.model_dump(mode="json", include={"tasks", "samples", "temperature"}),
            }
        else:
            how = {"demonstrations": self._told(demonstrated), "fine_tuning": spec.sft.model_dump(mode="json")}
        data = [card.questions(spec.data, self.tasks)]
        if self.validation is not None and spec.validation_data is not None:
            data.append(card.questions(spec.validation_data, self.validation))
        return card.make(
            name=name,
            base=spec.model.base,
            policy=setup.policy,
            members=setup.pool.members,
            start=before.start if before is not None and before.start is not None else start.named(spec.model.start),
            policy_options=self.config.policies.get(setup.policy.name, {}),
            grammar_options=None if grammar is None else self.config.grammar_options(grammar.name),
            data=data,
            lora=spec.lora.model_dump(mode="json") if spec.model.lora else None,
            limits=asdict(setup.limits),
            randomised=spec.environment.randomise.model_dump(mode="json", exclude_defaults=True),
            seeds=(spec.train.seed,),
            steps=steps,
            results=results,
            **how,
        )

    def _told(self, demonstrated: Demonstrated) -> dict[str, Any]:
        """What a card says of demonstrations."""
        wanted = self.spec.demonstrations
        assert wanted is not None  # somebody has demonstrated
        return {
            "teacher": wanted.teacher,
            "asked": min(wanted.tasks, len(self.tasks.tasks)),
            "kept": len(demonstrated.trajectories),
            "correct": wanted.correct,
        }

    def reward(self, setup: Setup, budget: Budget) -> SteppedReward:
        """The reward of one split: each has a window of its own. What it asks is charged to the budget."""
        return SteppedReward(compose(self.composition, self.registry, pool=ChargedPool(setup.pool, budget)))


def prepare(
    spec: TrainSpec, *, config_file: Path | None = None, data: Path | None = None, registry: Registry | None = None
) -> Prepared:
    """Find what a spec names.

    Raises:
        ConfigError, PluginError, MissingExtra: a name, file, option or question does not hold.
    """
    flags = {
        "defaults": {"pool": spec.environment.pool, "policy": spec.policy.name, "data": data and str(data)},
        "limits": spec.limits,
    }
    config = load_config(config_file, overrides=flags)
    config = _with_options(config, spec)
    registry = registry or registry_for(config)
    validation = spec.validation_data
    return Prepared(
        spec,
        config,
        registry,
        read_tasks(spec.data, config, registry),
        None if validation is None else read_tasks(validation, config, registry),
        spec.reward.composition(config.reward),
    )


def _with_options(config: Config, spec: TrainSpec) -> Config:
    """The configuration with the spec's options of policy and grammar over its own."""
    policy = spec.policy.name or config.defaults.policy
    options = merge(config.policies.get(policy, {}), spec.policy.options)
    config = config.model_copy(update={"policies": {**config.policies, policy: options}})
    grammar = spec.policy.grammar or options.get("grammar") or config.defaults.grammar
    if spec.policy.grammar_options and grammar is not None:
        own = merge(config.grammars.get(grammar, {}), spec.policy.grammar_options)
        config = config.model_copy(update={"grammars": {**config.grammars, grammar: own}})
    return config
