"""The `cassette` adapter: what is kept and when, what a key is made of, many writers, and files that are none."""

import asyncio
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, MemberError
from antiphon.testing import FaultServer
from antiphon.testing.server import HTTPReply
from antiphon.types import Message, Usage
from antiphon_pools.adapters import cassette
from antiphon_pools.adapters._tape import Tape
from antiphon_pools.adapters.cassette import CassetteAdapter, request_key

KEY = "sk-planted-0123456789abcdef"


class Inner:
    """Counts what it is asked; says what it is told to."""

    def __init__(self, *answers: Reply | Exception, hold: bool = False) -> None:
        self.answers, self.asked, self.closed = list(answers), 0, False
        self.release = asyncio.Event()
        self.started = asyncio.Event()
        if not hold:
            self.release.set()

    async def complete(self, request: Request, context: CallContext) -> Reply:
        self.asked += 1
        self.started.set()
        await self.release.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        self.closed = True


def make(path: object, inner: Inner | None = None, mode: str = "record_missing", **options: object) -> CassetteAdapter:
    endpoint = {"adapter": "cassette", "model": "m", "options": {"path": str(path), "mode": mode, **options}}
    descriptor = Descriptor.of({"name": "Ada", "description": "x", "endpoints": [endpoint]})
    return CassetteAdapter(endpoint=descriptor.endpoints[0], descriptor=descriptor, inner=inner)


def request(text: str = "Capital of Peru?", **changes: object) -> Request:
    values = {"model": "m", "messages": (Message("user", text),), "max_tokens": 32, "timeout_s": 20.0}
    return Request(**{**values, **changes})  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - nothing in there tells of it
            await asyncio.sleep(0.001)


def contents(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


LIMA = Reply("Lima", Usage(5, 2, 1, estimated=True), "m-2", "length")


async def test_a_reply_is_replayed_as_it_was_with_its_latency(tmp_path: Path) -> None:
    inner = Inner(LIMA, Reply("Quito"))
    recording = make(tmp_path / "new" / "tape.db", inner)
    assert await recording.complete(request(), CallContext()) == LIMA
    again = await recording.complete(request(), CallContext())
    await recording.aclose()
    assert (inner.asked, inner.closed) == (1, True)
    replaying = make(tmp_path / "new" / "tape.db", mode="replay")
    replayed = await replaying.complete(request(), CallContext())
    await replaying.aclose()
    assert replayed == again
    assert replayed.latency_s is not None
    assert (replayed.text, replayed.usage, replayed.model, replayed.finish) == ("Lima", LIMA.usage, "m-2", "length")


async def test_a_latency_that_the_member_reports_is_the_one_kept(tmp_path: Path) -> None:
    recording = make(tmp_path / "tape.db", Inner(Reply("Lima", latency_s=3.25)))
    await recording.complete(request(), CallContext())
    replayed = await recording.complete(request(), CallContext())
    assert (replayed.latency_s, replayed.usage) == (3.25, None)
    await recording.aclose()


async def test_record_asks_every_time_and_keeps_the_newest(tmp_path: Path) -> None:
    inner = Inner(Reply("Lima"), Reply("Quito"))
    recording = make(tmp_path / "tape.db", inner, mode="record")
    assert [(await recording.complete(request(), CallContext())).text for _ in range(2)] == ["Lima", "Quito"]
    await recording.aclose()
    replaying = make(tmp_path / "tape.db", mode="replay")
    assert (await replaying.complete(request(), CallContext())).text == "Quito"
    await replaying.aclose()


@pytest.mark.parametrize(
    "other",
    [
        request("Capital of Chile?"),
        request(messages=(Message("system", "s"), Message("user", "Capital of Peru?"))),
        request(messages=(Message("assistant", "Capital of Peru?"),)),
        request(model="m2"),
        request(max_tokens=33),
        request(sampling={"temperature": 0.5}),
    ],
)
def test_what_matters_is_part_of_the_key(other: Request) -> None:
    key = request_key("litellm", request(), 0)[0]
    assert request_key("litellm", other, 0)[0] != key
    assert request_key("openai", request(), 0)[0] != key
    assert request_key("litellm", request(), 1)[0] != key


def test_what_does_not_matter_is_not() -> None:
    a = request(sampling={"temperature": 0, "top_p": 1}, timeout_s=1.0)
    b = request(sampling={"top_p": 1, "temperature": 0}, timeout_s=2.0)
    assert request_key("litellm", a, 0) == request_key("litellm", b, 0)


def test_members_of_one_model_are_told_apart_by_their_options() -> None:
    keys = [request_key("local", request(), 0, {"lora": name, "system": "s"})[0] for name in ("a", "b")]
    assert len({*keys, request_key("local", request(), 0)[0]}) == 3
    here, there = ({"path": f"{folder}/wiki.jsonl", "k": 3} for folder in ("/here", "/there"))
    assert request_key("bm25", request(), 0, here) == request_key("bm25", request(), 0, there)
    assert request_key("bm25", request(), 0, here) != request_key("bm25", request(), 0, {**here, "k": 4})
    assert "wiki" not in request_key("bm25", request(), 0, here)[1]


async def test_each_sample_is_its_own(tmp_path: Path) -> None:
    inner = Inner(Reply("a"), Reply("b"))
    recording = make(tmp_path / "tape.db", inner)
    texts = [(await recording.complete(request(), CallContext(sample=sample))).text for sample in (0, 1, 0, 1)]
    await recording.aclose()
    assert (texts, inner.asked) == (["a", "b", "a", "b"], 2)


async def test_what_is_missing_in_replay_is_said_and_not_asked(tmp_path: Path) -> None:
    await make(tmp_path / "tape.db", Inner(LIMA)).aclose()
    inner = Inner(LIMA)
    replaying = make(tmp_path / "tape.db", inner, mode="replay")
    with pytest.raises(MemberError, match=r"tape\.db has no reply of m") as caught:
        await replaying.complete(request(), CallContext())
    await replaying.aclose()
    assert (caught.value.kind, inner.asked) == ("not_recorded", 0)


async def test_an_error_is_passed_on_and_not_kept(tmp_path: Path) -> None:
    inner = Inner(MemberError("rate_limited", "later", retry_after_s=2.0, usage=Usage(5, 0)), LIMA)
    recording = make(tmp_path / "tape.db", inner)
    with pytest.raises(MemberError, match="later") as caught:
        await recording.complete(request(), CallContext())
    assert (caught.value.kind, caught.value.usage) == ("rate_limited", Usage(5, 0))
    assert (await recording.complete(request(), CallContext())).text == "Lima"
    await recording.aclose()


async def test_the_same_request_at_once_is_asked_once(tmp_path: Path) -> None:
    inner = Inner(LIMA, hold=True)
    first, second = make(tmp_path / "tape.db", inner), make(tmp_path / "tape.db", inner)
    tasks = [asyncio.create_task(a.complete(request(), CallContext())) for a in (first, second) for _ in range(5)]
    await inner.started.wait()
    inner.release.set()
    assert {reply.text for reply in await asyncio.gather(*tasks)} == {"Lima"}
    assert inner.asked == 1
    assert cassette._flights == {}
    await first.aclose()
    await second.aclose()


async def test_who_waits_takes_over_where_the_asker_gives_up(tmp_path: Path) -> None:
    inner = Inner(LIMA, hold=True)
    recording = make(tmp_path / "tape.db", inner)
    asker = asyncio.create_task(recording.complete(request(), CallContext()))
    await inner.started.wait()
    inner.started.clear()
    waiters = [asyncio.create_task(recording.complete(request(), CallContext())) for _ in range(3)]
    (flight,) = cassette._flights.values()
    await until(lambda: bool(flight._done_callbacks))  # somebody waits for it
    asker.cancel()
    await inner.started.wait()
    inner.release.set()
    assert [reply.text for reply in await asyncio.gather(*waiters)] == ["Lima"] * 3
    assert (asker.cancelled(), inner.asked) == (True, 2)
    await recording.aclose()


async def test_a_failure_shared_is_charged_to_who_asked(tmp_path: Path) -> None:
    inner = Inner(MemberError("empty_response", "nothing", usage=Usage(5, 0)), hold=True)
    recording = make(tmp_path / "tape.db", inner)
    tasks = [asyncio.create_task(recording.complete(request(), CallContext())) for _ in range(4)]
    await inner.started.wait()
    (flight,) = cassette._flights.values()
    await until(lambda: len(flight._done_callbacks) == 3)  # the others wait for it
    inner.release.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [error.usage for error in errors if isinstance(error, MemberError)].count(Usage(5, 0)) == 1
    assert {error.kind for error in errors if isinstance(error, MemberError)} == {"empty_response"}
    assert (len(errors), inner.asked) == (4, 1)
    await recording.aclose()


async def test_a_slow_member_ends_by_the_timeout(tmp_path: Path) -> None:
    recording = make(tmp_path / "tape.db", Inner(LIMA, hold=True))
    with pytest.raises(MemberError) as caught:
        await recording.complete(request(timeout_s=0.1), CallContext())
    assert caught.value.kind == "timeout"
    await recording.aclose()


async def test_any_adapter_is_wrapped_by_name_and_no_key_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ADA_KEY", KEY)
    path = tmp_path / "tape.db"
    with FaultServer([HTTPReply(401, {"error": {"message": KEY}}), HTTPReply.says("Lima")]) as server:
        options = {"path": str(path), "adapter": "openai", "inner": {"max_tokens_field": "max_completion_tokens"}}
        endpoint = {"adapter": "cassette", "model": "m", "api_base": server.url, "api_key_env": "ADA_KEY"}
        member = Descriptor.of({"name": "Ada", "description": "x", "endpoints": [{**endpoint, "options": options}]})
        recording = CassetteAdapter(endpoint=member.endpoints[0], descriptor=member)
        with pytest.raises(MemberError) as caught:
            await recording.complete(request(), CallContext())
        texts = [(await recording.complete(request(), CallContext())).text for _ in range(2)]
        assert (texts, len(server.requests)) == (["Lima", "Lima"], 2)
        assert server.requests[0].body["max_completion_tokens"] == 32
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        kept = contents(tmp_path)
        assert b"Capital of Peru?" in kept
        assert KEY.encode() not in kept
        await recording.aclose()
    assert KEY not in str(caught.value)
    assert KEY not in caplog.text


WRITER = """
import asyncio, sys
from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.types import Message
from antiphon_pools.adapters.cassette import CassetteAdapter

path, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
class Inner:
    async def complete(self, request, context):
        return Reply(f"{who} to {request.messages[0].content}")
    async def aclose(self):
        pass
options = {"path": path, "mode": "record"}
member = Descriptor.of({"name": "Ada", "description": "x", "adapter": "cassette", "model": who, "options": options})
async def main():
    adapter = CassetteAdapter(endpoint=member.endpoints[0], descriptor=member, inner=Inner())
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(count):
        await adapter.complete(Request(who, (Message("user", str(i)),), 1, 60.0), CallContext())
        print(i, flush=True)
    await adapter.aclose()
asyncio.run(main())
"""


def writer(path: Path, who: str, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), who, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_many_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "tape.db"
    writers = [writer(path, f"w{i}", 30) for i in range(3)]  # they also race to make the file
    for process in writers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in writers:
        process.communicate("go\n", timeout=600)
        assert process.returncode == 0
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*), count(DISTINCT text) FROM replies").fetchone() == (90, 90)


def test_what_was_given_out_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "tape.db"
    process = writer(path, "w", 100_000)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    lines = [process.stdout.readline() for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.read().splitlines()
    process.wait()
    given_out = {int(line) for line in lines if line.strip().isdigit()}
    assert len(given_out) >= 19
    tape = Tape(path, read_only=True, where="test")
    for number in given_out:
        key, _ = request_key("litellm", Request("w", (Message("user", str(number)),), 1, 1.0), 0)
        kept = tape.read(key)
        assert kept is not None
        assert kept.text == f"w to {number}"
    tape.close()


def test_readers_go_on_while_somebody_writes_and_every_commit_is_synced(tmp_path: Path) -> None:
    path = tmp_path / "tape.db"
    tape = Tape(path, read_only=False, where="test")
    tape.write("k", "{}", 0, Reply("kept"), 0.0)
    with sqlite3.connect(path, isolation_level=None) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        other.execute("BEGIN EXCLUSIVE")  # only WAL lets others read under this lock
        assert tape.read("k") == Reply("kept", latency_s=0.0)
        other.execute("ROLLBACK")
    assert tape._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: a power cut loses nothing given out
    tape.close()


def test_threads_may_share_a_tape(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "tape.db", read_only=False, where="test")
    threads = [threading.Thread(target=tape.write, args=(str(i), "{}", 0, Reply(str(i)), 0.0)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [tape.read(str(i)) for i in range(20)] == [Reply(str(i), latency_s=0.0) for i in range(20)]
    tape.close()
    with pytest.raises(ConfigError, match="closed"):
        tape.read("1")


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")


def newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA application_id = {0x416E7450}")
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("mode", ["replay", "record"])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_text(json.dumps({"no": "database"}) * 50), "no cassette, or a damaged one"),
        (foreign, "no cassette; choose another path"),
        (newer, "version 99"),
        (lambda path: path.mkdir(), "tape.db"),
    ],
)
def test_a_file_that_is_no_cassette_is_refused_and_left_alone(
    tmp_path: Path, spoil: object, says: str, mode: str
) -> None:
    path = tmp_path / "tape.db"
    spoil(path)  # type: ignore[operator]
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(ConfigError, match="Ada") as caught:
        make(path, Inner(LIMA), mode=mode)
    assert says in str(caught.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_bad_option_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Ada.*no such cassette"):
        make(tmp_path / "absent.db", mode="replay")
    with pytest.raises(ConfigError, match=r"Ada.*mode"):
        make(tmp_path / "tape.db", mode="play")
    with pytest.raises(ConfigError, match=r"Ada.*did you mean 'inner'"):
        make(tmp_path / "tape.db", Inner(LIMA), iner={})
    with pytest.raises(ConfigError, match="cannot wrap a cassette"):
        make(tmp_path / "tape.db", adapter="cassette")
