"""A run of the engine `verl`, put together without Ray: the files that verl reads, and what stops it before."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

from antiphon.errors import ConfigError, GeneratorError
from antiphon.train import card, verl_hub
from antiphon.train.prepare import Prepared, prepare
from antiphon.train.spec import load_spec
from antiphon.train.verl_ledger import RunHub
from antiphon.train.verl_lengths import AROUND

CONFIG = """
[pools.sums]
members = ["Calculator"]

[limits]
turn_tokens = 40
information_tokens = 20
rounds = 2
"""

SPEC = """
[train]
engine = "verl"
steps = 3
tasks = 2
samples = 2
seed = 5

[data]
dataset = "arithmetic"
options = {{ n = 6 }}

[environment]
pool = "sums"
memo = true

[environment.randomise]
names = ["Abacus", "Sums ${{HOME}}"]
descriptions = {{ Calculator = ["Works out {{sums}}."] }}

[policy]
grammar_options = {{ prompt = "{{{{members}}}} Question: {{{{question}}}}" }}

[model]
base = "{base}"
lora = false

[reward]
alpha = 0.25

[validation]
tasks = 2
"""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


@pytest.fixture
def spec(tiny_policy: Path, tmp_path: Path) -> Path:
    (tmp_path / "antiphon.toml").write_text(CONFIG)
    (tmp_path / "run.toml").write_text(SPEC.format(base=tiny_policy))
    return tmp_path / "run.toml"


def prepared(spec: Path, *settings: str) -> Prepared:
    return prepare(load_spec(spec, settings), config_file=spec.parent / "antiphon.toml")


def planned(spec: Path, folder: Path, *settings: str) -> Any:
    from antiphon.train.verl_run import make_plan

    async def plan() -> Any:
        made = prepared(spec, *settings)
        async with AsyncExitStack() as resources:
            return await make_plan(made, made.setup(verl_hub.Elsewhere(), resources), folder)

    folder.mkdir(exist_ok=True)
    return asyncio.run(plan())


def test_a_plan_writes_what_verl_reads(spec: Path, tmp_path: Path) -> None:
    plan = planned(spec, tmp_path / "out")
    config, here = plan.config, tmp_path / "out" / "verl"
    assert (config.data.train_files, config.data.val_files) == (
        str(here / "train.parquet"),
        str(here / "validation.parquet"),
    )
    assert all((here / name).is_file() for name in ("train.parquet", "validation.parquet", "agent.yaml", "config.yaml"))
    [entry] = json.loads((here / "agent.yaml").read_text())
    assert entry["_target_"] == "antiphon.train.agent_loop.AntiphonAgentLoop"
    assert entry["hub"] == plan.hub
    options = verl_hub.Options.read(entry["run"])
    assert options == plan.options
    assert (options.reward["alpha"], options.environment["memo"]) == (0.25, True)  # type: ignore[call-overload,index]
    assert plan.done is None
    assert plan.card.algorithm["algorithm"] == "grpo"
    assert plan.card.lora is None


def test_lengths_are_what_rollouts_need_where_nothing_is_said(spec: Path, tmp_path: Path) -> None:
    lengths = planned(spec, tmp_path / "out").lengths
    assert (lengths.turns, lengths.information) == (3 * 40, 2 * (20 + AROUND))
    assert lengths.response == lengths.turns + lengths.information
    assert lengths.prompt % 64 == 0
    assert "as the limits of a rollout allow" in str(lengths)


def test_a_context_that_is_too_short_for_all_turns_is_said(spec: Path, tmp_path: Path) -> None:
    whole = planned(spec, tmp_path / "whole").lengths
    cut = planned(spec, tmp_path / "cut", f"model.max_context={whole.prompt + 100}").lengths
    assert (cut.prompt, cut.response) == (whole.prompt, 100)
    assert f"responses of up to 100, all turns and information together, less than the {whole.response}" in str(cut)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("verl.data.max_prompt_length=8", r"the longest prompt has \d+ tokens and verl.data.max_prompt_length is 8"),
        ("verl.data.max_response_length=30", "has no room for prompts"),
        ("model.max_context=64", "has no room for prompts"),
        ("verl.data.max_response_length=4000", "a context of 2048 tokens has no room"),
        ("policy.name=largest", r"no trainable context.*or give verl.data.max_prompt_length"),
    ],
)
def test_lengths_that_do_not_hold_are_refused_before_anything_starts(
    spec: Path, tmp_path: Path, setting: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(spec, tmp_path / "out", setting)


def test_verl_starts_from_whole_models_alone(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"antiphon train export .*adapter --merge --out FOLDER"):
        planned(spec, tmp_path / "out", f"model.start={tmp_path / 'adapter'}")
    (tmp_path / "whole").mkdir()
    with pytest.raises(ConfigError, match=r"set model\.base to it"):
        planned(spec, tmp_path / "out", f"model.start={tmp_path / 'whole'}", "model.lora=true")


def test_the_start_and_the_checkpoint_gone_on_from_are_checked(
    spec: Path, tmp_path: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, start, config = planned(spec, tmp_path / "out"), tmp_path / "start", spec.parent / "antiphon.toml"
    shutil.copytree(tiny_policy, start)
    card.write(start, plan.card)
    begun = planned(spec, tmp_path / "second", f"model.start={start}")
    assert (begun.card.start.name, begun.card.rollouts["samples"]) == ("out", 2)
    checkpoint = tmp_path / "out" / "checkpoints" / "step-000001"
    checkpoint.mkdir(parents=True)
    (checkpoint.parent / "latest").write_text("step-000001\n")
    card.write(checkpoint, plan.card)
    assert planned(spec, tmp_path / "out").done == 1
    config.write_text(f'{CONFIG}\n[grammars.router_r1]\nmember = "{{{{name}}}}!"\n')
    with pytest.raises(ConfigError, match=r"start was trained with grammar .*policy\.grammar"):
        planned(spec, tmp_path / "second", f"model.start={start}")
    with pytest.raises(ConfigError, match=r"out was made of something else: grammar\.template"):
        planned(spec, tmp_path / "out")
    config.write_text(f"{CONFIG}\n[members.Calculator]\nprice = {{ input = 0, output = 3 }}\n")
    capsys.readouterr()
    planned(spec, tmp_path / "out")
    assert "Calculator has another price" in capsys.readouterr().err


class Server:
    """In the place of verl's server client: asks the first member, then answers 1; or fails."""

    def __init__(self, tokenizer: Any, fails: bool = False) -> None:
        self.tokenizer, self.fails = tokenizer, fails
        self.prompts: list[str] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any, **rest: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        if self.fails:
            raise RuntimeError("the engine is gone")
        context = self.tokenizer.decode(prompt_ids)
        self.prompts.append(context)
        name = "Abacus" if "Abacus" in context else "Sums ${HOME}"
        ask, tell = f"<think>I ask.</think><search>{name}: 12 + 30</search>", "<think>So.</think><answer>1</answer>"
        ids = self.tokenizer.encode(tell if "<information>" in context else ask, add_special_tokens=False)
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed", extra_fields={})


def played(config: Any, tokenizer: Any, server: Server) -> Any:
    """The rollouts of the first step, by the loop and the rows that verl makes of a plan's files."""
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    [entry] = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    loop: Any = hydra.utils.instantiate(
        config=entry,
        trainer_config=DictConfigWrap(config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        hf_model_type="llama",
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        tools=None,
    )
    dataset = RLHFDataset(config.data.train_files, tokenizer, config.data, None)
    return asyncio.gather(
        *(
            loop.run(dict(SAMPLING), **dict(dataset[index]), global_steps=1, session_id=sample, agent_name="antiphon")
            for index in range(config.data.train_batch_size)
            for sample in range(config.actor_rollout_ref.rollout.n)
        ),
        return_exceptions=True,
    )


async def test_the_loop_that_verl_makes_of_the_file_plays_in_the_runs_environment(
    tokenizer: Any, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's real data set and AgentLoopBase, made by hydra; the server is scripted, the hub in this process."""
    plan = await asyncio.to_thread(planned, spec, tmp_path / "out")
    hub, server = RunHub(plan.options, prepared(spec).spec), Server(tokenizer)
    monkeypatch.setattr("antiphon.train.agent_loop.hub_of", lambda options, name: hub)
    outputs = await played(plan.config, tokenizer, server)
    assert await hub.sampled(1) is None
    trajectories = [each.trajectory for each in hub._take("train")]
    assert [(each.task.id, each.sample) for each in trajectories] == [
        (task.id, sample) for task in prepared(spec).tasks.step(1, 2, 5) for sample in range(2)
    ]
    assert all(each.calls[0].reply == "42" for each in trajectories)
    shown = [each.shown.members for each in trajectories if each.shown is not None]
    assert {name for members in shown for name in members} <= {"Abacus", "Sums ${HOME}"}
    assert shown[0] == shown[1], "all samples of a question see the same pool"
    assert not any("Calculator" in prompt for prompt in server.prompts)
    # 0.75 for a right answer, 0.25 for the cost, which is neutral at first
    assert {output.reward_score for output in outputs} == {0.25 * 0.5}
    assert all(output.response_mask[-1] == 1 for output in outputs)


async def test_what_fails_in_verls_server_is_known_to_the_hub(
    tokenizer: Any, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await asyncio.to_thread(planned, spec, tmp_path / "out")
    hub = RunHub(plan.options, prepared(spec).spec)
    monkeypatch.setattr("antiphon.train.agent_loop.hub_of", lambda options, name: hub)
    outputs = await played(plan.config, tokenizer, Server(tokenizer, fails=True))
    assert {type(output) for output in outputs} == {RuntimeError}
    with pytest.raises(GeneratorError, match=r"step 1: 4 of 4 rollouts failed.*RuntimeError: the engine is gone"):
        await hub.sampled(1)
