"""What an adapter, and the pool around it, add to one call: beside bare LiteLLM and bare httpx, in the same run.

    python benchmarks/call_overhead.py [--json] [--rounds N]

A loopback server in another process answers at once, so that what is measured is the client's own work. Rounds are
interleaved and ratios are taken within each round, so that a drift of the machine cancels. Alone: one call after
another, p50. At 64: 64 calls at once, time per call. Targets: the `litellm` adapter at most 1.1 x bare LiteLLM, the
`openai` adapter at most 1.5 x bare httpx, alone and at 64.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from antiphon.contracts import CallContext, Request
from antiphon.descriptor import Descriptor
from antiphon.pool import Pool
from antiphon.registry import Registry
from antiphon.types import Message

AT_ONCE = 64
TARGETS = {"litellm": 1.1, "openai": 1.5}
BARE_OF = {"openai": "httpx", "pool_openai": "httpx", "litellm": "bare_litellm", "pool_litellm": "bare_litellm"}
QUESTION = "Which city is the capital of Peru?"

SERVER = r"""
import asyncio, json, socket
choice = {"index": 0, "message": {"role": "assistant", "content": "Lima"}, "finish_reason": "stop"}
usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
start = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
body = json.dumps({**start, "choices": [choice], "usage": usage})
head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
reply = (head + body).encode()

class Connection(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.received = transport, b""
    def data_received(self, data):
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            length = int(self.received[:end].lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self.received) < end + 4 + length:
                return
            self.received = self.received[end + 4 + length:]
            self.transport.write(reply)

async def main():
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

Call = Callable[[], Awaitable[object]]


async def measure(api_base: str, rounds: int, alone: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per call of each variant, one value a round: `alone` (p50 of the round) and `at_64`."""
    calls, close = variants(api_base)
    seconds: dict[str, dict[str, list[float]]] = {name: {"alone": [], "at_64": []} for name in calls}
    for call in calls.values():  # connections, imports and caches
        await together(call)
    for _ in range(rounds):
        one_by_one: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(alone):
            for name in random.sample(list(calls), len(calls)):
                one_by_one[name].append(await timed(calls[name]))
        for name in random.sample(list(calls), len(calls)):
            seconds[name]["alone"].append(statistics.median(one_by_one[name]))
            seconds[name]["at_64"].append(await together(calls[name]))
    await close()
    return seconds


async def timed(call: Call) -> float:
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


async def together(call: Call) -> float:
    started = time.perf_counter()
    await asyncio.gather(*[call() for _ in range(AT_ONCE)])
    return (time.perf_counter() - started) / AT_ONCE


def variants(api_base: str) -> tuple[dict[str, Call], Callable[[], Awaitable[None]]]:
    """What is measured, by name, and what closes it."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import httpx
    import litellm

    litellm.disable_aiohttp_transport = True  # as the adapter has it
    litellm.suppress_debug_info = True
    os.environ["BENCH_KEY"] = "k" * 24
    registry = Registry.load()
    members = {
        "openai": member("openai", "m", api_base),
        "litellm": member("litellm", "hosted_vllm/m", api_base),
    }
    pool = Pool(members.values(), registry)
    adapters = {
        name: registry.adapter(name, endpoint=each.endpoints[0], descriptor=each) for name, each in members.items()
    }
    messages = (Message("user", QUESTION),)
    plain = [{"role": "user", "content": QUESTION}]
    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=1024, max_keepalive_connections=1024))
    headers = {"authorization": f"Bearer {os.environ['BENCH_KEY']}"}

    async def bare_httpx() -> object:
        body = {"model": "m", "messages": plain, "max_tokens": 64, "temperature": 0.0, "stream": False}
        response = await client.post(f"{api_base}/chat/completions", json=body, headers=headers, timeout=60.0)
        response.raise_for_status()
        return response.json()["choices"][0]["message"]["content"]

    async def bare_litellm() -> object:
        response = await litellm.acompletion(
            model="hosted_vllm/m",
            messages=plain,
            max_tokens=64,
            temperature=0.0,
            api_base=api_base,
            api_key=os.environ["BENCH_KEY"],
            timeout=60.0,
            num_retries=0,
            max_retries=0,
        )
        return response.choices[0].message.content

    def adapter(name: str) -> Call:
        request = Request(members[name].endpoints[0].model, messages, 64, 60.0, {"temperature": 0.0})
        return lambda: adapters[name].complete(request, CallContext())

    def through_pool(name: str) -> Call:
        async def ask() -> object:
            call = await pool.ask(name, messages, context=CallContext(), max_tokens=64)
            if not call.ok:
                raise SystemExit(f"a call through the pool failed: {call.error}")
            return call

        return ask

    async def close() -> None:
        await client.aclose()
        await pool.aclose()
        for each in adapters.values():
            await each.aclose()

    calls: dict[str, Call] = {
        "httpx": bare_httpx,
        "openai": adapter("openai"),
        "pool_openai": through_pool("openai"),
        "bare_litellm": bare_litellm,
        "litellm": adapter("litellm"),
        "pool_litellm": through_pool("litellm"),
    }
    return calls, close


def member(adapter: str, model: str, api_base: str) -> Descriptor:
    endpoint = {"adapter": adapter, "model": model, "api_base": api_base, "api_key_env": "BENCH_KEY"}
    price = {"input": 0.1, "output": 0.2}
    data = {"name": adapter, "description": "answers at once", "price": price, "sampling": {"temperature": 0.0}}
    return Descriptor.of({**data, "endpoints": [endpoint]})


def summary(seconds: dict[str, dict[str, list[float]]], rounds: int) -> dict[str, object]:
    """Milliseconds, calls a second and ratios: medians over the rounds."""
    result: dict[str, object] = {
        "benchmark": "call_overhead",
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "rounds": rounds,
        "alone_ms": {name: round(1e3 * statistics.median(each["alone"]), 3) for name, each in seconds.items()},
        "at_64_per_s": {name: round(1 / statistics.median(each["at_64"]), 1) for name, each in seconds.items()},
    }
    met = True
    for load in ("alone", "at_64"):
        for name, bare in BARE_OF.items():
            ratios = [ours / theirs for ours, theirs in zip(seconds[name][load], seconds[bare][load], strict=True)]
            ratio = statistics.median(ratios)
            result[f"ratio_{name}_{load}"] = round(ratio, 3)
            met = met and ratio <= TARGETS.get(name, float("inf"))
    result["targets"] = TARGETS
    result["met"] = met
    return result


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--json", action="store_true", help="print one JSON object last")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--alone", type=int, default=30, help="calls one after another, in each round")
    chosen = options.parse_args()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        api_base = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        seconds = asyncio.run(measure(api_base, chosen.rounds, chosen.alone))
    finally:
        server.terminate()
        server.wait()
    result = summary(seconds, chosen.rounds)
    print(f"{'':14} {'alone, p50':>12} {'x bare':>7} {'64 at once':>12} {'x bare':>7}")
    for name in seconds:
        alone, at_64 = (result.get(f"ratio_{name}_{load}", "") for load in ("alone", "at_64"))
        milliseconds = 1e3 * statistics.median(seconds[name]["alone"])
        per_s = 1 / statistics.median(seconds[name]["at_64"])
        print(f"{name:14} {milliseconds:9.2f} ms {alone:>7} {per_s:8.0f} /s {at_64:>9}")
    if chosen.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
