"""The command line: answers on standard output, the rest on standard error, exit codes, one-line errors, precedence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from antiphon import ConfigError, Trajectory, __version__
from antiphon.cli import COMMANDS, cli, run

ROUTED = ["<think>who knows?</think><search>Echo: what?</search>", "<think>ah</think><answer>Paris</answer>"]


Cli = Callable[..., Any]


@pytest.fixture
def project(directory: Path) -> Path:
    """A directory with an antiphon.toml: a pool of two functions, and a model that says what it is told to."""
    sys.modules.pop("members_of_test_cli", None)
    (directory / "members_of_test_cli.py").write_text(
        textwrap.dedent("""
        import asyncio, pathlib
        from antiphon import Reply, Usage
        def echo(text):
            with open("asked.txt", "a", encoding="utf-8") as file:
                file.write(text + "\\n")
            print("a member that prints")
            return Reply("re: " + text, Usage(10, 20))
        def rude(text):
            return "\\x1b[31mred\\x07"
        async def late(text):
            pathlib.Path("started").touch()
            await asyncio.sleep(600)
    """)
    )
    replies = json.dumps(ROUTED)
    (directory / "antiphon.toml").write_text(
        textwrap.dedent(f"""
        [defaults]
        pool = "mine"
        policy = "largest"
        model = "says"

        [pools.mine]
        description = "Ours."
        members = ["Echo", "Small"]

        [pools.late]
        members = ["Late"]

        [pools.rude]
        members = ["Rude"]

        [members.Echo]
        description = "Says it again."
        parameters_b = 7
        adapter = "function"
        model = "members_of_test_cli:echo"
        price = {{ input = 1, output = 2 }}

        [members.Small]
        description = "Smaller."
        parameters_b = 1
        adapter = "function"
        model = "members_of_test_cli:echo"
        price = {{ input = 0, output = 0 }}

        [members.Rude]
        description = "Steers terminals."
        parameters_b = 1
        adapter = "function"
        model = "members_of_test_cli:rude"
        price = {{ input = 0, output = 0 }}

        [members.Late]
        description = "Never there."
        parameters_b = 1
        adapter = "function"
        model = "members_of_test_cli:late"
        price = {{ input = 0, output = 0 }}

        [models.says]
        generator = "scripted"
        options = {{ replies = {replies} }}
        price = {{ input = 1, output = 1 }}

        [models.mute]
        generator = "scripted"
        options = {{ replies = ["I do not know the rules"] }}
        note = "This model was never taught."
    """)
    )
    return directory


def in_python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.getcwd(), **options.pop("env", {})}
    command = [sys.executable, "-m", "antiphon.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env, **options)


# ---- ask ----------------------------------------------------------------------------------------------------------


def test_the_answer_alone_is_on_standard_output(antiphon: Cli) -> None:
    ran = antiphon("ask", "What?")
    assert (ran.status, ran.out) == (0, "re: What?\n")
    assert "up to about $" in ran.err
    assert "1 round; asked Echo ($0.000050)" in ran.err
    assert "cost $0.000050 (members $0.000050, policy $0)" in ran.err


def test_a_routed_question_shows_rounds_and_the_policys_own_cost(antiphon: Cli) -> None:
    ran = antiphon("ask", "What?", "--policy", "router_r1")
    assert (ran.status, ran.out) == (0, "Paris\n")
    assert "asked Echo" in ran.err
    assert "policy $0.0" in ran.err


def test_json_is_one_object_that_reads_back_as_the_trajectory(antiphon: Cli) -> None:
    ran = antiphon("ask", "What?", "--json")
    assert ran.out.count("\n") == 1
    assert ran.json["cost_usd"] == pytest.approx(50e-6)
    assert Trajectory.from_json(ran.out).answer == "re: What?"


def test_no_answer_says_why_shows_the_last_words_and_what_the_model_is(antiphon: Cli) -> None:
    ran = antiphon("ask", "What?", "--policy", "router_r1", "--model", "mute")
    assert (ran.status, ran.out) == (1, "")
    assert "no answer: the policy's model ended its turn with neither an answer nor somebody to ask" in ran.err
    assert "its last words: I do not know the rules" in ran.err
    assert "This model was never taught." in ran.err


def test_no_answer_where_members_failed_says_who_and_why(antiphon: Cli, project: Path) -> None:
    (project / "members_of_test_cli.py").write_text("def echo(text): raise OSError('the line is dead')")
    ran = antiphon("ask", "What?")
    assert (ran.status, ran.out) == (1, "")
    assert "no answer: nobody who was asked replied" in ran.err
    assert "Echo failed: error: " in ran.err
    assert "the line is dead" in ran.err


def test_no_answer_in_json_is_a_trajectory_and_status_1(antiphon: Cli) -> None:
    ran = antiphon("ask", "What?", "--policy", "router_r1", "--model", "mute", "--json")
    assert ran.status == 1
    assert (ran.json["answer"], ran.json["stop"]) == (None, "no_action")


def test_stream_shows_thinking_routes_and_prices_live_and_the_answer_once(antiphon: Cli) -> None:
    ran = antiphon("ask", "What?", "--policy", "router_r1", "--stream")
    assert ran.out == "Paris\n"
    assert "who knows?" in ran.err
    assert "-> Echo ($2 per million output tokens): what?" in ran.err
    assert "<- Echo ($0.000050, " in ran.err
    assert ran.err.index("who knows?") < ran.err.index("-> Echo") < ran.err.index("<- Echo") < ran.err.index("ah")


def test_the_question_may_come_from_standard_input(project: Path) -> None:
    done = in_python("ask", "-", input="What is\nthis?\n")
    assert done.stdout == "re: What is\nthis?\n", done.stderr


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_an_error(antiphon: Cli, question: str) -> None:
    ran = antiphon("ask", question)
    assert ran.status == 2
    assert ran.err.startswith("antiphon: there is no question")


def test_saving_appends_a_line_and_leaves_a_torn_one_alone(antiphon: Cli, project: Path) -> None:
    (project / "t.jsonl").write_text('{"torn')
    assert antiphon("ask", "one", "--save", "t.jsonl").status == 0
    assert antiphon("ask", "two", "--save", "t.jsonl").status == 0
    lines = (project / "t.jsonl").read_text().splitlines()
    assert lines[0] == '{"torn'
    assert [Trajectory.from_json(line).task.question for line in lines[1:]] == ["one", "two"]


def test_where_it_cannot_be_saved_nothing_is_asked(antiphon: Cli, project: Path) -> None:
    ran = antiphon("ask", "q", "--save", "no/such/folder.jsonl")
    assert ran.status == 2
    assert "nothing has been asked" in ran.err
    assert not (project / "asked.txt").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_the_file_and_not_the_answer(antiphon: Cli) -> None:
    ran = antiphon("ask", "What?", "--save", "/dev/full")
    assert (ran.status, ran.out) == (2, "re: What?\n")
    assert ran.err.splitlines()[-1].startswith("antiphon: --save /dev/full: No space left")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "antiphon.cli", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=300,
            text=True,
        )
    assert (done.returncode, done.stderr) == (2, "antiphon: the output: No space left on device\n")


def test_a_cost_limit_holds_and_is_said(antiphon: Cli, project: Path) -> None:
    ran = antiphon("ask", "q", "--max-cost", "0.0000001")
    assert (ran.status, ran.out) == (1, "")
    assert "at most $1.0e-07 is spent" in ran.err
    assert "no answer: " in ran.err
    assert not (project / "asked.txt").exists()


def test_a_free_pool_is_said_to_be_free(antiphon: Cli) -> None:
    assert "asking pool 'rude' is free" in antiphon("ask", "q", "--pool", "rude").err


def test_rounds_seed_and_temperature_reach_the_rollout(antiphon: Cli) -> None:
    ran = antiphon("ask", "q", "--policy", "router_r1", "--rounds", "0", "--seed", "3", "--temperature", "0", "--json")
    assert ran.json["calls"] == []
    picks = {
        antiphon("ask", "q", "--policy", "random", "--seed", "5", "--json").json["calls"][0]["member"] for _ in "abc"
    }
    assert len(picks) == 1


def test_flags_beat_the_environment_which_beats_the_file_which_beats_defaults(
    antiphon: Cli, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    def policy(*flags: str) -> str:
        return str(antiphon("ask", "q", "--json", *flags).json["policy"])

    assert policy() == "largest"
    monkeypatch.setenv("ANTIPHON_POLICY", "cheapest")
    assert policy() == "cheapest"
    assert policy("--policy", "random") == "random"
    monkeypatch.delenv("ANTIPHON_POLICY")
    toml = project / "antiphon.toml"
    toml.write_text(toml.read_text().replace('policy = "largest"\n', ""))
    assert policy() == "router_r1"


def test_a_member_that_prints_does_not_spoil_the_results(antiphon: Cli) -> None:
    ran = antiphon("ask", "q", "--json")
    assert ran.json["answer"] == "re: q"
    assert "a member that prints" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ask", "q", "--policy", "larges"), "did you mean 'largest'"),
        (("ask", "q", "--pool", "min"), "did you mean 'mine'"),
        (("ask", "q", "--model", "say"), "did you mean 'says'"),
        (("ask", "q", "--config", "nowhere.toml"), "nowhere.toml"),
        (("ask", "q", "--rounds", "-1"), "--rounds"),
        (("ask", "q", "--data", "nowhere"), "nowhere"),
        (("ask",), "QUESTION"),
        (("aks", "q"), "did you mean 'ask'"),
        (("pool", "show", "min"), "did you mean 'mine'"),
        (("show", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_status_2(antiphon: Cli, arguments: tuple[str, ...], message: str) -> None:
    ran = antiphon(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("antiphon: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_an_unknown_key_of_the_file_is_an_error_with_a_hint(antiphon: Cli, project: Path) -> None:
    toml = project / "antiphon.toml"
    toml.write_text(toml.read_text() + "\n[limits]\nround = 3\n")
    ran = antiphon("ask", "q")
    assert ran.status == 2
    assert "antiphon.toml" in ran.err
    assert "did you mean 'rounds'" in ran.err


def test_a_model_that_is_not_fetched_says_how_to_fetch_it(antiphon: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", "empty")
    ran = antiphon("ask", "q", "--model", "smollm2-135m-instruct", "--policy", "direct")
    assert ran.status == 2
    assert "antiphon models fetch smollm2-135m-instruct" in ran.err
    assert ran.err.splitlines()[-1].startswith("antiphon: ")


# ---- ends and outputs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("flags", [[], ["--stream"]])
def test_ctrl_c_ends_with_130_and_saves_how_far_it_came(project: Path, flags: list[str], sent: signal.Signals) -> None:
    command = [sys.executable, "-m", "antiphon.cli", "ask", "q", "--pool", "late", "--save", "t.jsonl", *flags]
    env = {**os.environ, "PYTHONPATH": str(project)}
    asking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        for _ in range(12_000):  # two minutes at most
            if (project / "started").exists() or asking.poll() is not None:
                break
            signal.sigtimedwait([], 0.01)
        asking.send_signal(sent)
        out, err = asking.communicate(timeout=300)
    finally:
        asking.kill()
    assert asking.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == "antiphon: interrupted"
    saved = Trajectory.from_json((project / "t.jsonl").read_text())
    assert (saved.stop, saved.calls[0].outcome) == ("cancelled", "cancelled")


def test_a_terminal_that_is_not_utf8_gets_question_marks_and_json_loses_nothing(project: Path) -> None:
    old = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "LC_ALL": "C"}
    plain = in_python("ask", "東京 or not", env=old)
    assert (plain.returncode, plain.stdout) == (0, "re: ?? or not\n"), plain.stderr
    as_json = in_python("ask", "東京", "--json", env=old)
    assert json.loads(as_json.stdout)["answer"] == "re: 東京"


def test_a_closed_pipe_is_quiet(project: Path) -> None:
    script = f"{sys.executable} -m antiphon.cli pool list --json | true; exit ${{PIPESTATUS[0]}}"
    for _ in range(2):
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300, check=False)
        assert done.stderr == ""
        assert done.returncode in (0, 141)  # 0: all was written before the reader went


def test_a_fault_of_our_own_is_one_line_and_debug_shows_where(antiphon: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def breaks() -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr("antiphon.cli.pool.pool", breaks)
    ran = antiphon("pool")
    assert ran.status == 70
    assert ran.err == "antiphon: a fault of Antiphon's own: RuntimeError: odd (antiphon --debug … shows where)\n"
    with pytest.raises(RuntimeError):
        run(["--debug", "pool"])
    monkeypatch.setenv("ANTIPHON_DEBUG", "1")
    with pytest.raises(ConfigError):
        run(["ask", ""])


def test_version_and_help(antiphon: Cli) -> None:
    assert antiphon("--version").out == f"antiphon {__version__}\n"
    ran = antiphon("--help")
    assert ran.status == 0
    assert all(name in ran.out for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_loads(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name


def test_the_reference_is_what_help_says() -> None:
    from antiphon.cli.docs import page

    written = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
    assert written.read_text(encoding="utf-8") == page(), "run `make docs`"


# ---- pool ---------------------------------------------------------------------------------------------------------


def test_pools_are_listed_with_their_members(antiphon: Cli) -> None:
    assert "mine *" in antiphon("pool", "list").out
    pools = {pool["name"]: pool for pool in antiphon("pool", "list", "--json").json["pools"]}
    assert pools["mine"]["members"] == ["Echo", "Small"]
    assert pools["mine"]["default"]
    assert not pools["late"]["default"]


def test_a_pool_is_shown_with_sizes_prices_and_where_members_come_from(antiphon: Cli) -> None:
    ran = antiphon("pool", "show", "mine")
    assert "7B" in ran.out
    assert "1 / 2" in ran.out
    assert "function:members_of_test_cli:echo" in ran.out
    assert "Says it again." in ran.out
    members = antiphon("pool", "show", "--json").json["members"]
    assert [m["descriptor"]["name"] for m in members] == ["Echo", "Small"]
    assert members[0]["quote"]["output"] == 2


def test_check_asks_nobody_and_says_that_all_is_well(antiphon: Cli, project: Path) -> None:
    ran = antiphon("pool", "check")
    assert (ran.status, ran.out) == (0, "mine: 2 members, all well\n")
    assert not (project / "asked.txt").exists()


def test_check_with_ask_says_the_cost_before_and_what_each_member_said(antiphon: Cli) -> None:
    ran = antiphon("pool", "check", "--ask", "--json")
    assert ran.status == 0
    assert "asking 2 members one question each costs up to about $0.00" in ran.err
    assert [a["outcome"] for a in ran.json["pools"][0]["answers"]] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (('model = "members_of_test_cli:echo"', 'model = "nowhere:f"'), "nowhere"),
        (('adapter = "function"', 'adapter = "functoin"'), "did you mean 'function'"),
        (("price = { input = 1, output = 2 }", ""), "price"),
        (('adapter = "function"', 'adapter = "function"\napi_key_env = "UNSET_KEY_OF_TEST"'), "UNSET_KEY_OF_TEST"),
        (('members = ["Echo", "Small"]', 'members = ["Echo", "Smal"]'), "did you mean"),
    ],
)
def test_check_finds_what_does_not_hold(antiphon: Cli, project: Path, change: tuple[str, str], fault: str) -> None:
    toml = project / "antiphon.toml"
    toml.write_text(toml.read_text().replace(*change))
    ran = antiphon("pool", "check")
    assert ran.status == 1
    assert "mine: fault: " in ran.out
    assert fault in ran.out
    assert antiphon("pool", "check", "--json").json["ok"] is False


def test_one_endpoint_that_works_is_enough(antiphon: Cli, project: Path) -> None:
    toml = project / "antiphon.toml"
    two = """endpoints = [
      { adapter = "function", model = "members_of_test_cli:echo", api_key_env = "UNSET_KEY_OF_TEST" },
      { adapter = "function", model = "members_of_test_cli:echo" },
    ]"""
    text = toml.read_text().replace('adapter = "function"\nmodel = "members_of_test_cli:echo"', two, 1)
    toml.write_text(text)
    ran = antiphon("pool", "check")
    assert ran.status == 0
    assert "warning: Echo: function:members_of_test_cli:echo needs a key" in ran.out


def test_a_lock_tells_what_changed(antiphon: Cli, project: Path) -> None:
    assert antiphon("pool", "lock", "mine").status == 0
    assert (project / "antiphon.lock").is_file()
    assert antiphon("pool", "check").status == 0
    toml = project / "antiphon.toml"
    toml.write_text(toml.read_text().replace("output = 2", "output = 3"))
    ran = antiphon("pool", "check")
    assert ran.status == 1
    assert "mine: changed since it was locked: Echo: price.output 2 -> 3" in ran.out
    assert antiphon("pool", "lock", "mine", "--json").json["changes"]["mine"] == ["Echo: price.output 2 -> 3"]
    assert antiphon("pool", "check").status == 0
