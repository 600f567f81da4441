"""The registry loads what holds, names what does not, and lets no plugin take another one down."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import hookspecs
from antiphon._entry_points import EntryPoint, Fault
from antiphon._offers import FACTORY_HOOKS, is_reference, of_descriptors
from antiphon.errors import ConfigError, MissingExtra, PluginError
from antiphon.hookspecs import hookimpl
from antiphon.registry import PluginInfo, Registry, default_registry

Install = Callable[..., Path]

MEMBER = {"name": "Abacus", "description": "Does sums.", "model": "m", "price": {"input": 1, "output": 2}}
METRIC = """
from antiphon.hookspecs import hookimpl

class Metric:
    name = "{name}"
    def __call__(self, prediction, golden):
        return 0.5

@hookimpl
def antiphon_metrics():
    return {{"{name}": Metric}}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Writes a distribution into a folder on `sys.path`, as an installer would leave it."""
    monkeypatch.delenv("ANTIPHON_PLUGINS", raising=False)
    before = set(sys.modules)

    def write(
        distribution: str,
        *,
        version: str = "2.3",
        group: str = "antiphon",
        entry: str | None = None,
        code: str = "",
        module: str | None = None,
        files: dict[str, str] | None = None,
        folder: str = "site",
        info: str = "dist-info",
    ) -> Path:
        site = tmp_path / folder
        module = module or distribution.replace("-", "_")
        entry = entry or f"{module.removeprefix('antiphon_')} = {module}"
        package = site / module
        package.mkdir(parents=True, exist_ok=True)
        for name, text in {"__init__.py": textwrap.dedent(code), **(files or {})}.items():
            (package / name).write_text(text, "utf-8")
        metadata = site / f"{distribution.replace('-', '_')}-{version}.{info}"
        metadata.mkdir()
        about = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (metadata / ("PKG-INFO" if info == "egg-info" else "METADATA")).write_text(about)
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        return package

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):  # its folder goes away
            del sys.modules[name]


def the(registry: Registry, name: str) -> PluginInfo:
    [info] = [info for info in registry.plugins if info.name == name]
    return info


def plugin(**functions: Callable[..., Any]) -> object:
    """An object with these hooks."""
    return SimpleNamespace(**{name: hookimpl(function) for name, function in functions.items()})


# ---- a broken plugin ----------------------------------------------------------------------------------------------

HOOK = "from antiphon.hookspecs import hookimpl\n\n@hookimpl\n"
BROKEN = {
    "ImportError": ("import a_module_nobody_has", "entry point antiphon: bad", "install what provides"),
    "SyntaxError": ("def :", "SyntaxError", "repair or uninstall"),
    "SystemExit": ("import sys; sys.exit(3)", "called sys.exit", "must only define things"),
    "BaseException": ("class Odd(BaseException): ...\nraise Odd('boo')", "Odd: boo", "repair or uninstall"),
    "raises": (f"{HOOK}def antiphon_metrics(): 1 / 0", "hook antiphon_metrics raised ZeroDivisionError", "repair"),
    "exits": (f"{HOOK}def antiphon_metrics(): raise SystemExit", "hook antiphon_metrics raised SystemExit", "repair"),
    "a list": (f"{HOOK}def antiphon_metrics(): return ['em']", "hook antiphon_metrics returned a list", "return {"),
    "None": (f"{HOOK}def antiphon_metrics(): ...", "hook antiphon_metrics returned None", "return {"),
    "async": (f"{HOOK}async def antiphon_metrics(): return {{}}", "hook antiphon_metrics is async", "plain function"),
    "yields": (f"{HOOK}def antiphon_metrics(): yield 'em'", "hook antiphon_metrics returned a generator", "return {"),
    "breaks midway": (
        f"{HOOK}def antiphon_descriptors():\n    yield {MEMBER}\n    raise OSError('disk')",
        "hook antiphon_descriptors raised OSError: disk",
        "repair",
    ),
    "a number": (f"{HOOK}def antiphon_descriptors(): return 7", "hook antiphon_descriptors gives a int", "TOML file"),
    "unknown hook": (f"{HOOK}def antiphon_metric(): return {{}}", "did you mean 'antiphon_metrics'?", "hooks.md"),
    "unknown argument": (
        f"{HOOK}def antiphon_metrics(config): return {{}}",
        "2.3: hook 'antiphon_metrics' hookimpl definition: antiphon_metrics(config)",
        "hooks.md",
    ),
    "wrapper": (
        HOOK.replace("hookimpl\n", "hookimpl(wrapper=True)\n").replace(
            "import hookimpl(wrapper=True)", "import hookimpl"
        )
        + "def antiphon_metrics(): return (yield)",
        "hook antiphon_metrics is a wrapper",
        "plain function",
    ),
    "a generator observer": (f"{HOOK}def antiphon_on_trajectory(trajectory): yield", "would do nothing", "plain"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_named_and_takes_nobody_down(install: Install, fault: str) -> None:
    code, what, remedy = BROKEN[fault]
    install("antiphon-bad", code=code)
    install("antiphon-good", version="1.0", code=METRIC.format(name="half"))
    registry = Registry.load()
    bad = the(registry, "bad")
    assert bad.state == "failed"
    assert bad.reason is not None
    assert bad.reason.startswith("plugin 'bad' of antiphon-bad 2.3: ")
    assert what in bad.reason
    assert remedy in bad.reason
    assert "\n" not in bad.reason
    assert registry.problems == (bad.reason,)
    assert the(registry, "good").state == "loaded"
    assert registry.metric("half")("x", ["y"]) == 0.5
    assert {info.state for info in registry.plugins if info.distribution == "antiphon"} == {"loaded"}


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("bad = antiphon_nowhere.plugin", "there is no module 'antiphon_nowhere'"),
        ("bad = antiphon_bad.plugin", "there is no module 'antiphon_bad.plugin'"),
        ("bad = antiphon_bad:plugin", "module 'antiphon_bad' has no 'plugin'"),
        ("bad = antiphon_bad:Plugin", "is the class 'Plugin'"),
        ("bad = antiphon_bad:NOTHING", "is None"),
        ("bad = :", "importing it raised ValueError"),
    ],
)
def test_an_entry_point_to_nothing_fails(install: Install, entry: str, what: str) -> None:
    install("antiphon-bad", entry=entry, code="class Plugin: ...\nNOTHING = None")
    reason = the(Registry.load(), "bad").reason
    assert reason is not None
    assert "antiphon-bad 2.3" in reason
    assert what in reason


def test_what_a_backport_refuses_to_read_is_named_all_the_same(install: Install) -> None:
    """Many packages import `importlib_metadata`, which takes the place of Python's own finder."""
    if importlib.util.find_spec("importlib_metadata") is None:
        pytest.skip("importlib_metadata is not installed")
    site = str(install("antiphon-bad", entry="bad = :").parent)
    # Pydantic reads every entry point of the environment when its first model is made, and stumbles over this one.
    program = "import antiphon.descriptor, sys; sys.path.insert(0, sys.argv[1]); import importlib_metadata\n"
    program += "from antiphon.registry import Registry; [text] = Registry.load().problems; print(text)"
    done = subprocess.run([sys.executable, "-c", program, site], capture_output=True, text=True, timeout=300)
    assert "plugin 'bad' of antiphon-bad 2.3: " in done.stdout, done.stderr
    assert "importing it raised ValueError" in done.stdout


def test_metadata_that_cannot_be_read_is_reported_and_takes_nobody_down(install: Install) -> None:
    package = install("antiphon-bad", entry="this line is no entry point")
    install("antiphon-good", code=METRIC.format(name="half"))
    registry = Registry.load()
    assert registry.metric("half").name == "half"
    [problem] = registry.problems
    assert str(package.parent) in problem
    assert "reinstall" in problem


def test_a_key_in_an_exception_is_not_repeated(install: Install) -> None:
    install("antiphon-bad", code="raise RuntimeError('no access with sk-abcdefghijklmnopqrstuvwxyz')")
    reason = the(Registry.load(), "bad").reason
    assert reason is not None
    assert "no access" in reason
    assert "abcdefghij" not in reason


def test_a_function_that_is_not_marked_is_pointed_out(install: Install) -> None:
    install("antiphon-bad", code="def antiphon_metrics(): return {}")
    [problem] = the(Registry.load(), "bad").problems
    assert "antiphon_metrics is no function marked @hookimpl" in problem
    assert "@hookimpl" in problem


# ---- names --------------------------------------------------------------------------------------------------------


def test_one_plugin_name_from_two_distributions_loads_neither(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("antiphon-one", entry="same = antiphon_one", code=METRIC.format(name="one"))
    install("antiphon-two", entry="same = antiphon_two", code=METRIC.format(name="two"))
    failed = [info for info in Registry.load().plugins if info.name == "same"]
    assert [info.state for info in failed] == ["failed", "failed"]
    for info in failed:
        assert info.reason is not None
        assert "antiphon-one 2.3" in info.reason
        assert "antiphon-two 2.3" in info.reason
    monkeypatch.setenv("ANTIPHON_PLUGINS", "antiphon-two")
    chosen = Registry.load()
    assert "two" in chosen.names("metric")
    assert "one" not in chosen.names("metric")


def test_a_built_in_plugin_keeps_its_name(install: Install) -> None:
    install("antiphon-rude", entry="antiphon_plugins = antiphon_rude", code=METRIC.format(name="half"))
    states = {info.distribution: info.state for info in Registry.load().plugins if info.name == "antiphon_plugins"}
    assert states == {"antiphon": "loaded", "antiphon-rude": "failed"}


def test_the_same_distribution_found_twice_is_loaded_once(install: Install) -> None:
    install("antiphon-twin", code=METRIC.format(name="half"))
    install("antiphon-twin", code=METRIC.format(name="half"), info="egg-info")
    install("antiphon-twin", code=METRIC.format(name="half"), folder="other")
    registry = Registry.load()
    assert the(registry, "twin").state == "loaded"
    assert registry.metric("half").name == "half"


def test_a_second_version_on_the_path_is_named(install: Install) -> None:
    install("antiphon-twin", version="1.0", code=METRIC.format(name="half"), folder="behind")
    install("antiphon-twin", version="2.0", code=METRIC.format(name="half"), folder="before")
    registry = Registry.load()
    assert {info.version: info.state for info in registry.plugins if info.name == "twin"} == {
        "1.0": "failed",
        "2.0": "loaded",
    }
    [problem] = registry.problems
    assert "version 2.0 of the same distribution comes before it" in problem
    assert "pip uninstall antiphon-twin" in problem


def test_a_factory_name_of_two_plugins_is_nobodys(install: Install) -> None:
    install("antiphon-one", code=METRIC.format(name="same").replace('"same": Metric', '"same": Metric, "mine": Metric'))
    install("antiphon-two", code=METRIC.format(name="same"))
    registry = Registry.load()
    with pytest.raises(ConfigError, match=r"antiphon-one 2\.3.* and .*antiphon-two 2\.3.*neither wins silently"):
        registry.metric("same")
    assert registry.metric("mine").name == "same"
    assert len(registry.problems) == 2  # one for each of the two
    assert {the(registry, name).state for name in ("one", "two")} == {"loaded"}


def test_an_unknown_name_says_what_was_meant_and_which_plugins_failed(install: Install) -> None:
    install("antiphon-bad", code="1 / 0")
    registry = Registry.load(local={"here": plugin(antiphon_metrics=lambda: {"exact": "m:M"})})
    with pytest.raises(ConfigError, match=r"no metric 'exat'; did you mean 'exact'\?.*failed plugins: bad"):
        registry.metric("exat")
    with pytest.raises(ConfigError, match="no kind 'metrics' of plugin; did you mean 'metric'"):
        registry.names("metrics")


# ---- ANTIPHON_PLUGINS ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("only", ["one", "antiphon-one", "Antiphon_One", " one , "])
def test_the_list_limits_what_is_imported(install: Install, monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    install("antiphon-one", code=METRIC.format(name="half"))
    install("antiphon-two", code="raise AssertionError('imported')")
    monkeypatch.setenv("ANTIPHON_PLUGINS", only)
    registry = Registry.load()
    assert the(registry, "one").state == "loaded"
    assert the(registry, "two").state == "disabled"
    assert "antiphon_two" not in sys.modules
    assert registry.problems == ()
    assert "router_r1" in registry.names("policy")  # the built-ins always load


def test_an_empty_list_leaves_the_built_ins(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("antiphon-one", code=METRIC.format(name="half"))
    monkeypatch.setenv("ANTIPHON_PLUGINS", "")
    assert the(Registry.load(), "one").state == "disabled"
    assert the(Registry.load(["one"]), "one").state == "loaded"  # what is passed beats the environment


def test_a_name_in_the_list_that_is_nobodys_is_an_error(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("antiphon-contractor", code=METRIC.format(name="half"))
    monkeypatch.setenv("ANTIPHON_PLUGINS", "contracter")
    with pytest.raises(ConfigError, match=r"ANTIPHON_PLUGINS names 'contracter'.*did you mean 'contractor'\?"):
        Registry.load()


# ---- descriptors --------------------------------------------------------------------------------------------------


def test_the_descriptor_door_takes_every_form(install: Install) -> None:
    code = f"""
        from pathlib import Path
        from antiphon.descriptor import Descriptor
        ONE = {MEMBER}
        MODEL = Descriptor.of({{**ONE, "name": "Model"}})
        SEVERAL = [{{**ONE, "name": "A"}}, Descriptor.of({{**ONE, "name": "B"}}), "more.toml"]
        FILE = Path("members.toml")
        ABSOLUTE = str(Path(__file__).with_name("absolute.toml"))
    """
    toml = '[[members]]\nname = "{}"\ndescription = "d"\nmodel = "m"\nprice = {{ input = 1, output = 2 }}\n'
    forms = ("ONE", "MODEL", "SEVERAL", "FILE", "ABSOLUTE")
    install(
        "antiphon-forms",
        group="antiphon.descriptors",
        entry="\n".join(f"forms_{form} = antiphon_forms:{form}" for form in forms),
        code=code,
        files={name: toml.format(name) for name in ("members.toml", "more.toml", "absolute.toml")},
    )
    registry = Registry.load()
    assert registry.problems == ()
    mine = {c.descriptor.name for c in registry.descriptors if c.source == "antiphon-forms"}
    assert mine == {"Abacus", "Model", "A", "B", "members.toml", "more.toml", "absolute.toml"}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("X = 7", "gives a int"),
        ("X = None", "gives None"),
        ("def X(): return []", "gives a function"),
        ("X = b'members.toml'", "gives a bytes"),
    ],
)
def test_a_descriptor_door_to_something_else_fails(install: Install, code: str, what: str) -> None:
    install("antiphon-bad", group="antiphon.descriptors", entry="bad = antiphon_bad:X", code=code)
    reason = the(Registry.load(), "bad").reason
    assert reason is not None
    assert what in reason
    assert "antiphon.descriptors" in reason


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "cannot be read"),
        ("members = [", "is not TOML"),
        ("\udcff", "is not TOML"),
        ("[[member]]\n", "unknown key 'member'; did you mean 'members'?"),
        ("", "has no [[members]] tables"),
        ("members = 3", "has no [[members]] tables"),
        ("members = [3]", "member 1 is a int"),
    ],
)
def test_a_file_that_does_not_hold_is_named(install: Install, text: str | None, what: str) -> None:
    package = install(
        "antiphon-bad",
        group="antiphon.descriptors",
        entry="bad = antiphon_bad:X",
        code=f"X = ['members.toml', {MEMBER}]",
    )
    if text is not None:
        (package / "members.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    registry = Registry.load()
    [problem] = the(registry, "bad").problems
    assert "antiphon-bad 2.3" in problem
    assert "members.toml" in problem
    assert what in problem
    assert "Abacus" in [c.descriptor.name for c in registry.descriptors]  # the other contribution holds


def test_one_bad_descriptor_of_five_leaves_four() -> None:
    members = [{**MEMBER, "name": name} for name in "abcd"] + [{**MEMBER, "name": "e", "prise": 1}]
    registry = Registry.load([], local={"here": plugin(antiphon_descriptors=lambda: members)})
    info = the(registry, "here")
    assert info.state == "loaded"
    assert info.offers["descriptor"] == ("a", "b", "c", "d")
    [problem] = info.problems
    assert "hook antiphon_descriptors" in problem
    assert "member 'e'" in problem
    assert "did you mean 'price'?" in problem


def test_a_key_where_a_name_belongs_is_not_repeated() -> None:
    members = [{**MEMBER, "api_key_env": "sk-abcdefghijklmnopqrstuvwxyz"}]
    registry = Registry.load([], local={"here": plugin(antiphon_descriptors=lambda: members)})
    [problem] = registry.problems
    assert "api_key_env" in problem
    assert "abcdefghij" not in problem


def test_one_name_from_two_distributions_is_fine_and_twice_from_one_is_not() -> None:
    other = {**MEMBER, "description": "Another."}
    offers = {"a": [MEMBER], "b": [other]}
    registry = Registry.load([], local={name: plugin(antiphon_descriptors=lambda m=m: m) for name, m in offers.items()})
    # Both come from this process: one source, two different members of one name.
    [problem] = registry.problems
    assert "2 different members are called 'Abacus'" in problem
    points = [EntryPoint("a", "antiphon", "a", "antiphon-a", "1"), EntryPoint("b", "antiphon", "b", "antiphon-b", "1")]
    objects = {point: plugin(antiphon_descriptors=lambda m=offers[point.name]: m) for point in points}
    apart = Registry.of(points, objects=objects)
    assert apart.problems == ()
    assert [c.source for c in apart.descriptors] == ["antiphon-a", "antiphon-b"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["name", "price", "model", "endpoints"]), inner),
    max_leaves=12,
)


@given(JSON)
@settings(deadline=None)
def test_no_data_whatever_gets_past_the_descriptor_door_unchecked(value: Any) -> None:
    point = EntryPoint("p", "antiphon.descriptors", "m:X", "antiphon-p", "1")
    try:
        problems = of_descriptors(point, value, Path("/nowhere")).problems
    except Fault as fault:
        problems = [point.says(fault.what, fault.remedy)]
    assert all(text.startswith("plugin 'p' of antiphon-p 1: ") for text in problems)


# ---- what is made -------------------------------------------------------------------------------------------------


class Whole:
    """Everything that any kind asks for."""

    name = version = "whole"
    stops: tuple[str, ...] = ()
    range = (0.0, 1.0)
    continues = capabilities = priority = None

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def anything(self, *args: object, **kwargs: object) -> None: ...

    complete = aclose = open = turn = encode = decode = generate = prompt = parser = information = check = anything
    run = __call__ = quote = cost = upper_bound = anything


EVERY_HOOK: dict[str, Callable[..., Any]] = {
    **{hook: (lambda: {"whole": Whole}) for hook in FACTORY_HOOKS.values()},
    "antiphon_descriptors": lambda: [MEMBER],
    "antiphon_on_trajectory": lambda trajectory: None,
}


def test_every_hook_of_the_specification_is_read() -> None:
    assert set(EVERY_HOOK) == {name for name in vars(hookspecs) if name.startswith("antiphon_")}
    registry = Registry.load([], local={"whole": plugin(**EVERY_HOOK)})
    assert the(registry, "whole").offers == {
        **dict.fromkeys(FACTORY_HOOKS, ("whole",)),
        "descriptor": ("Abacus",),
        "observer": ("on_trajectory",),
    }


@pytest.mark.parametrize("kind", FACTORY_HOOKS)
def test_each_kind_is_made_with_its_options_and_checked(kind: str) -> None:
    hook = FACTORY_HOOKS[kind]
    offered = {"whole": Whole, "poor": lambda **options: object(), "cls": lambda **options: Whole}
    registry = Registry.load([], local={"here": plugin(**{hook: lambda: offered})})
    options = {"endpoint": None, "descriptor": None} if kind == "adapter" else {"size": 3}
    assert getattr(registry, kind)("whole", **options).options == options
    assert registry.factory(kind, "whole") is Whole
    assert set(offered) <= set(registry.names(kind))
    with pytest.raises(PluginError, match=rf"plugin 'here' of .*hook {hook}: {kind} 'poor' gave a object"):
        getattr(registry, kind)("poor", **options)
    with pytest.raises(PluginError, match="gave the class 'Whole'"):
        getattr(registry, kind)("cls", **options)


def test_a_missing_attribute_is_named() -> None:
    made = SimpleNamespace(name="x", priority=1)
    registry = Registry.load([], local={"here": plugin(antiphon_reward_terms=lambda: {"x": lambda: made})})
    with pytest.raises(PluginError, match=r"has no 'range' and no '__call__'; see antiphon\.contracts\.RewardTerm"):
        registry.reward_term("x")


def test_a_factory_that_fails_names_its_plugin(install: Install) -> None:
    code = f"""
        from antiphon.errors import MissingExtra
        {HOOK.splitlines()[0]}

        def raises(): raise OSError("disk")
        def exits(): raise SystemExit
        def lacks(): raise MissingExtra("x", "local")
        async def later(): ...
        number = 7

        @hookimpl
        def antiphon_metrics():
            names = ("raises", "exits", "lacks", "later", "number", "absent")
            return {{name: f"antiphon_bad:{{name}}" for name in names}} | {{"gone": "antiphon_bad.gone:X"}}
    """
    install("antiphon-bad", code=code)
    registry = Registry.load()
    expected = {
        "raises": "raised OSError: disk",
        "exits": "raised SystemExit",
        "later": "gave a coroutine",
        "number": "is a int, not callable",
        "absent": "cannot be imported: AttributeError",
        "gone": "cannot be imported: ModuleNotFoundError",
    }
    for name, what in expected.items():
        with pytest.raises(PluginError) as caught:
            registry.metric(name)
        assert f"plugin 'bad' of antiphon-bad 2.3: hook antiphon_metrics: metric '{name}'" in str(caught.value)
        assert what in str(caught.value)
    with pytest.raises(MissingExtra):
        registry.metric("lacks")
    assert len([text for text in registry.import_problems() if "antiphon-bad" in text]) == 3  # number, absent, gone


def test_options_that_a_factory_does_not_take_are_the_users_error() -> None:
    def factory(*, window: int, seed: int = 0) -> Whole:
        return Whole()

    registry = Registry.load([], local={"here": plugin(antiphon_reward_terms=lambda: {"x": factory})})
    with pytest.raises(ConfigError, match=r"reward_term 'x' of .* takes no option 'windw'; did you mean 'window'\?"):
        registry.reward_term("x", windw=3)
    with pytest.raises(ConfigError, match="needs the option 'window'"):
        registry.reward_term("x")


def test_an_adapter_factory_that_takes_no_endpoint_is_the_plugins_error() -> None:
    registry = Registry.load([], local={"here": plugin(antiphon_adapters=lambda: {"x": lambda url: None})})
    with pytest.raises(PluginError, match=r"adapter 'x' takes no option 'endpoint'.*endpoint and descriptor"):
        registry.adapter("x", endpoint=None, descriptor=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offered", "what"),
    [
        ({"x": "antiphon_x.metric"}, "is 'antiphon_x.metric'"),
        ({"x": "a b:c"}, "is 'a b:c'"),
        ({"x": 7}, "is a int"),
        ({"x": None}, "is None"),
        ({"": "m:X"}, "is no name for a metric"),
        ({7: "m:X"}, "7 is no name"),
        ({" x": "m:X"}, "without spaces"),
    ],
)
def test_a_bad_factory_is_a_problem_and_the_others_stay(offered: dict[Any, Any], what: str) -> None:
    registry = Registry.load([], local={"here": plugin(antiphon_metrics=lambda: {**offered, "good": "m:X"})})
    assert the(registry, "here").state == "loaded"
    assert the(registry, "here").offers["metric"] == ("good",)
    [problem] = registry.problems
    assert what in problem


def test_objects_that_misbehave_when_looked_at_fail_alone() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("mute")

    class Trap(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise Mute

        def __iter__(self) -> Iterator[str]:
            raise SystemExit

        def __len__(self) -> int:
            return 1

    class Nameless:
        def __repr__(self) -> str:
            raise Mute

    def raises() -> None:
        raise Mute

    local = {
        "trap": plugin(antiphon_metrics=lambda: Trap()),
        "nameless": plugin(antiphon_metrics=lambda: {Nameless(): "m:X"}),
        "raises": plugin(antiphon_metrics=raises),
        "members": plugin(antiphon_descriptors=lambda: [Trap(), MEMBER]),
        "good": plugin(antiphon_metrics=lambda: {"good": "m:X"}),
    }
    registry = Registry.load([], local=local)
    states = {name: the(registry, name).state for name in local}
    assert states == {"trap": "failed", "nameless": "failed", "raises": "failed", "members": "loaded", "good": "loaded"}
    assert "Mute" in (the(registry, "raises").reason or "")
    assert the(registry, "members").offers == {"descriptor": ("Abacus",)}


@given(st.text(max_size=12), st.text(max_size=12))
def test_a_reference_is_module_and_attribute(module: str, attr: str) -> None:
    dotted = all(part.isidentifier() for text in (module, attr) for part in text.split("."))
    assert is_reference(f"{module}:{attr}") == dotted


# ---- the process --------------------------------------------------------------------------------------------------


def test_nothing_heavy_is_imported_by_loading_plugins() -> None:
    heavy = ("torch", "transformers", "vllm", "verl", "litellm")
    program = f"""
import json, sys
from antiphon.registry import default_registry
assert default_registry() is default_registry()
print(json.dumps([name for name in {heavy!r} if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=_bare())
    assert json.loads(done.stdout) == [], done.stderr


def _bare() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}


def test_a_plugin_that_asks_for_the_registry_while_it_loads_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "antiphon_eager.py").write_text("from antiphon.registry import default_registry\ndefault_registry()\n")
    info = tmp_path / "antiphon_eager-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: antiphon-eager\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[antiphon]\neager = antiphon_eager\n")
    program = "from antiphon.registry import default_registry as d; [text] = d().problems; print(text)"
    environment = {**_bare(), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment)
    assert "antiphon-eager 1.0" in done.stdout, done.stderr
    assert "while it loads" in done.stdout


def test_the_process_has_one_registry() -> None:
    assert default_registry() is default_registry()


def test_an_option_may_be_called_name() -> None:
    from antiphon.errors import ConfigError

    with pytest.raises(ConfigError, match="name"):  # refused by the factory, not by our own signature
        Registry.load(only=()).pricing("per_token", name="x")
