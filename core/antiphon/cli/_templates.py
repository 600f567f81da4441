"""The texts of a new plugin package; `<<word>>` stands for what `_scaffold` fills in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """What differs by kind. `hook` is empty for descriptors, which need none; `code` and `test` too."""

    summary: str
    hook: str
    code: str
    test: str


PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "<<distribution>>"
version = "0.1.0"
description = "<<summary>>, for Antiphon."
readme = "README.md"
requires-python = ">=3.11"
<<dependencies>>
[project.entry-points.<<group>>]
<<name>> = "<<target>>"

[tool.hatch.build.targets.wheel]
packages = ["<<module>>"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

README = """\
# <<distribution>>

<<summary>>, for Antiphon.

    antiphon plugins check .    # judge it; nothing is installed
    pytest                      # its own test
    pip install .               # use it
    antiphon plugins            # see what it offers
"""

INIT = '''\
"""<<summary>>, for Antiphon."""
'''

PLUGIN = '''\
"""What this package offers; a factory is imported when somebody uses it."""

from collections.abc import Mapping

from antiphon import hookimpl


@hookimpl
def <<hook>>() -> Mapping[str, str]:
    return {
        "<<name>>": "<<module>>.<<kind>>:<<class>>",
    }
'''

DESCRIPTORS = '''\
"""<<summary>>, for Antiphon: the file that describes them."""

MEMBERS = "members.toml"  # relative to this package
'''

MEMBERS = """\
# Prices are USD per million tokens. A key stays in the environment: api_key_env is the
# name of a variable. More fields: docs/reference/descriptor.md of Antiphon.

[[members]]
name = "<<class>>-7B"
description = "Say in a sentence what it is good at: the policy chooses by it."
parameters_b = 7
adapter = "openai"
model = "<<name>>-7b"
api_base = "https://llm.example/v1"
api_key_env = "<<upper>>_API_KEY"
price = { input = 0.1, output = 0.2 }
"""

TEST = '''\
"""The plugin holds, by Antiphon's own judgement, and does what it says."""

from pathlib import Path

from antiphon.testing import check_plugin


def test_the_plugin_has_no_faults() -> None:
    assert check_plugin(Path(__file__).parents[1]) == []
'''

KINDS = {
    "descriptor": Template("Pool members", "", "", ""),
    "adapter": Template(
        "An adapter: how pool members of a kind are reached",
        "antiphon_adapters",
        '''\
"""An adapter: makes one attempt at one member."""

from antiphon import Descriptor, Endpoint, Reply, Request
from antiphon.contracts import CallContext


class <<class>>:
    """Repeats the last message: put your client's call here.

    No retries and no failover: those are the pool's. Where the attempt fails, raise
    `antiphon.MemberError(kind, message)`, and the pool decides by its kind.
    """

    def __init__(self, *, endpoint: Endpoint, descriptor: Descriptor) -> None:
        self.endpoint = endpoint
        self.descriptor = descriptor

    async def complete(self, request: Request, context: CallContext) -> Reply:
        return Reply(request.messages[-1].content, model=request.model)

    async def aclose(self) -> None:
        """Close what was opened."""
''',
        """\


def test_it_answers() -> None:
    descriptor = Descriptor.of(
        {
            "name": "M",
            "description": "A member.",
            "adapter": "<<name>>",
            "model": "m",
        }
    )
    endpoint = descriptor.endpoints[0]
    adapter = <<class>>(endpoint=endpoint, descriptor=descriptor)
    question = (Message("user", "2 + 2?"),)
    request = Request("m", question, max_tokens=9, timeout_s=1.0)
    reply = asyncio.run(adapter.complete(request, CallContext()))
    assert reply.text == "2 + 2?"
""",
    ),
    "policy": Template(
        "A policy: who decides whom to ask",
        "antiphon_policies",
        '''\
"""A policy: decides whom to ask, and when to answer."""

from antiphon import Rollout, Task


class <<class>>:
    """Asks the member with the longest description: put your own choice here."""

    name = "<<name>>"

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        chosen = max(rollout.pool, key=lambda view: len(view.descriptor.description))
        call = await rollout.ask(chosen.name, task.question)
        return call.reply
''',
        '''\


MEMBER = Descriptor.of({"name": "M", "description": "A member.", "model": "m"})


class Pool:
    """One member, which always says "four"."""

    members = (MemberView(MEMBER, None),)

    def resolve(self, asked: str) -> str | None:
        return asked

    async def ask(self, member: str, messages: Any, **options: Any) -> Call:
        return Call(member, messages[-1].content, "ok", reply="four")


def test_it_answers() -> None:
    rollout = Rollout(Task("2 + 2?"), Pool())
    trajectory = asyncio.run(rollout.run(<<class>>()))
    assert trajectory.answer == "four"
    assert [call.member for call in trajectory.calls] == ["M"]
''',
    ),
    "pricing": Template(
        "A pricing function: what a member's tokens cost",
        "antiphon_pricing",
        '''\
"""A pricing function: pure, in USD per million tokens."""

from antiphon import Descriptor, Price, Request, Usage
from antiphon.errors import DescriptorError
from antiphon.money import most_usage, per_token


class <<class>>:
    """The member's price times a factor: `pricing_args = { factor = 0.8 }`."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def quote(self, descriptor: Descriptor) -> Price:
        """USD per million tokens: what the prompt, the reward and the bill go by."""
        price = descriptor.price
        if price is None or price.input is None:
            raise DescriptorError(f"member {descriptor.name!r} needs both its prices")
        changed = {
            "input": price.input * self.factor,
            "output": price.output * self.factor,
            "cached_input": None,
        }
        return price.model_copy(update=changed)

    def cost(self, usage: Usage, descriptor: Descriptor) -> float:
        """USD for this usage."""
        return per_token(usage, self.quote(descriptor))

    def upper_bound(self, request: Request, descriptor: Descriptor) -> float:
        """The most USD the request can cost: what a budget reserves."""
        return per_token(most_usage(request), self.quote(descriptor))
''',
        """\


def test_a_million_tokens_cost_the_quote() -> None:
    member = Descriptor.of(
        {
            "name": "M",
            "description": "A member.",
            "model": "m",
            "price": {"input": 1, "output": 2},
        }
    )
    pricing = <<class>>(factor=0.5)
    assert pricing.quote(member).output == 1.0
    assert pricing.cost(Usage(1_000_000, 1_000_000), member) == 1.5
""",
    ),
    "reward_term": Template(
        "A reward term",
        "antiphon_reward_terms",
        '''\
"""A reward term: a pure function of the trajectory."""

from antiphon import Trajectory


class <<class>>:
    """1 for a rollout that asked at most `calls` times, else 0: put your own here."""

    name = "<<name>>"
    range = (0.0, 1.0)  # the lowest and the highest value
    priority = 50  # terms of lower numbers come first

    def __init__(self, calls: int = 1) -> None:
        self.calls = calls

    def __call__(self, trajectory: Trajectory) -> float:
        return 1.0 if len(trajectory.calls) <= self.calls else 0.0
''',
        """\


def test_it_pays_for_few_calls() -> None:
    calls = tuple(Call("M", "?", "ok", reply="!") for _ in range(2))
    trajectory = Trajectory("t", Task("?"), "p", "a", "answer", calls=calls)
    assert <<class>>(calls=1)(trajectory) == 0.0
    assert <<class>>(calls=2)(trajectory) == 1.0
""",
    ),
    "metric": Template(
        "A metric: judges an answer against golden answers",
        "antiphon_metrics",
        '''\
"""A metric: judges an answer against golden answers, 0 to 1."""

from collections.abc import Sequence


class <<class>>:
    """1 where the answer begins like a golden one: put your own here."""

    name = "<<name>>"

    def __call__(self, prediction: str, golden: Sequence[str]) -> float:
        said = prediction.strip().casefold()
        return float(any(said.startswith(g.strip().casefold()) for g in golden))
''',
        """\


def test_it_judges() -> None:
    metric = <<class>>()
    assert metric("Paris, of course", ["paris"]) == 1.0
    assert metric("Lyon", ["Paris"]) == 0.0
""",
    ),
    "dataset": Template(
        "A dataset: questions with golden answers",
        "antiphon_datasets",
        '''\
"""A dataset: tasks, in a fixed order."""

from collections.abc import Iterator

from antiphon import Task

NAME = "<<name>>"
ROWS = (("What is 2 + 2?", ("4", "four")), ("What is 3 + 3?", ("6", "six")))


class <<class>>:
    """Its tasks, each with an id of its own: read your file here."""

    def __iter__(self) -> Iterator[Task]:
        for number, (question, golden) in enumerate(ROWS):
            task_id = f"{NAME}-{number}"
            yield Task(question, task_id, golden_answers=golden, dataset=NAME)
''',
        """\


def test_its_ids_are_unique() -> None:
    tasks = list(<<class>>())
    assert len({task.id for task in tasks}) == len(tasks) == 2
""",
    ),
}

TEST_IMPORTS: dict[str, tuple[str, str, str]] = {  # standard library, antiphon, antiphon.contracts
    "adapter": (
        "asyncio",
        "from antiphon import Descriptor, Message, Request",
        "from antiphon.contracts import CallContext",
    ),
    "policy": ("asyncio", "from antiphon import Call, Descriptor, MemberView, Rollout, Task", ""),
    "pricing": ("", "from antiphon import Descriptor, Usage", ""),
    "reward_term": ("", "from antiphon import Call, Task, Trajectory", ""),
    "metric": ("", "", ""),
    "dataset": ("", "", ""),
}
