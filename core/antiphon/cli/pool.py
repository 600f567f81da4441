"""`antiphon pool`: the configured pools, who is in them, whether they hold, how they fare, and their lock."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from antiphon.cli._options import config_options, json_option
from antiphon.cli._output import note, plural, print_json, safe, seconds, shorten, table, usd
from antiphon.cli.profile import profile
from antiphon.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.catalogue import Catalogue, Entry
    from antiphon.contracts import MemberView
    from antiphon.descriptor import Descriptor, Endpoint, Price
    from antiphon.pool import Pool
    from antiphon.registry import Registry

TEST_QUESTION = "What is 2 + 2? Answer with the number alone."
TEST_TOKENS = 16
REACHED = ("ok", "empty_response", "not_recorded")
"""Outcomes of a test question by which a member counts as reached."""


@click.group()
def pool() -> None:
    """List, show, check, measure and lock pools."""


pool.add_command(profile)


@pool.command("list")
@json_option
@config_options
def list_(as_json: bool, config_file: Path | None, data: Path | None) -> None:
    """List the configured pools and their members."""
    config = _catalogue(config_file, data)[0].config
    default, pools = config.defaults.pool, sorted(config.pools.items())
    if as_json:
        keys = {"members", "names", "adapter", "allow_unpriced", "description"}
        listed = [{"name": n, "default": n == default, **p.model_dump(mode="json", include=keys)} for n, p in pools]
        print_json({"pools": listed})
        return
    rows = [(n + " *" * (n == default), p.adapter or "", p.description, ", ".join(p.members)) for n, p in pools]
    table(("pool", "all by", "about", "members"), rows)
    note("* the default")


@pool.command()
@click.argument("name", required=False)
@json_option
@config_options
def show(name: str | None, as_json: bool, config_file: Path | None, data: Path | None) -> None:
    """Show the members of pool NAME: size, price, latency, endpoints, source."""
    catalogue, registry = _catalogue(config_file, data)
    name = name or catalogue.config.defaults.pool
    entries = catalogue.pool_entries(name)
    quotes = {entry.name: _quote(entry.descriptor, registry) for entry in entries}
    if as_json:
        members = [
            {
                "source": entry.source,
                "version": entry.version,
                "overridden": list(entry.overridden),
                "quote": None if (quote := quotes[entry.name]) is None else quote.model_dump(mode="json"),
                "descriptor": entry.descriptor.model_dump(mode="json"),
            }
            for entry in entries
        ]
        print_json({"pool": name, "members": members})
        return
    table(
        ("member", "size", "USD per million in/out", "latency", "endpoints", "source"),
        [_row(e, quotes) for e in entries],
    )
    for entry in entries:
        click.echo(safe(f"\n{entry.name}: {entry.descriptor.description}"))


@dataclass(slots=True)
class Verdict:
    """What `check` found about one pool."""

    pool: str
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    members: int = 0

    @property
    def ok(self) -> bool:
        return not self.faults and not self.changes


@pool.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--ask", "live", is_flag=True, help="Put one short question to each member; its cost is said before.")
@json_option
@config_options
@click.pass_context
def check(
    context: click.Context,
    names: tuple[str, ...],
    live: bool,
    as_json: bool,
    config_file: Path | None,
    data: Path | None,
) -> None:
    """Load the pools NAME (default: the default pool) for real: names, prices, keys, adapters, files, the lock.

    Nobody is asked anything unless you say --ask. Exit status 1: something does not hold, or a pool is not what was
    locked.
    """
    catalogue, registry = _catalogue(config_file, data)
    with redirect_stdout(sys.stderr):  # nor one that prints while it is checked or asked
        verdicts = [_check(name, catalogue, registry, live) for name in names or (catalogue.config.defaults.pool,)]
    if as_json:
        print_json({"ok": all(v.ok for v in verdicts), "pools": [{**asdict(v), "ok": v.ok} for v in verdicts]})
    else:
        for verdict in verdicts:
            _show_verdict(verdict)
    if not all(verdict.ok for verdict in verdicts):
        context.exit(1)


@pool.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@config_options
def lock(names: tuple[str, ...], as_json: bool, config_file: Path | None, data: Path | None) -> None:
    """Write what the pools NAME (default: all) are made of to antiphon.lock, beside antiphon.toml."""
    from antiphon.lock import write

    catalogue, _ = _catalogue(config_file, data)
    locked = list(names or catalogue.config.pools)
    changes = {name: list(catalogue.check_lock(name)) for name in locked}
    path = write(catalogue, locked)
    if as_json:
        print_json({"path": str(path), "pools": locked, "changes": changes})
        return
    for name in locked:
        for change in changes[name]:
            click.echo(f"{name}: {change}")
    click.echo(f"locked {', '.join(locked)} in {path}")


def _catalogue(config_file: Path | None, data: Path | None) -> tuple[Catalogue, Registry]:
    from antiphon._setup import registry_for
    from antiphon.catalogue import Catalogue
    from antiphon.config import load_config

    config = load_config(config_file, overrides={"defaults": {"data": None if data is None else str(data)}})
    with redirect_stdout(sys.stderr):  # a plugin that prints while it is imported must not spoil the results
        registry = registry_for(config)
    return Catalogue.of(registry, config), registry


def _row(entry: Entry, quotes: dict[str, Price | None]) -> tuple[str, ...]:
    who, quote = entry.descriptor, quotes[entry.name]
    size = "" if who.parameters_b is None else f"{who.parameters_b:g}B"
    if who.active_parameters_b is not None:
        size += f" ({who.active_parameters_b:g}B active)"
    price = "none" if quote is None else f"{'-' if quote.input is None else f'{quote.input:g}'} / {quote.output:g}"
    latency = ""
    if who.latency is not None:
        latency = f"{seconds(who.latency.first_token_s)} + {who.latency.tokens_per_s:g} tokens/s"
    source = entry.source + (f" ({', '.join(entry.overridden)} overridden)" if entry.overridden else "")
    return (entry.name, size, price, latency, ", ".join(e.label for e in who.endpoints), source)


def _quote(descriptor: Descriptor, registry: Registry) -> Price | None:
    if descriptor.price is None and not descriptor.pricing_args:
        return None
    return registry.pricing(descriptor.pricing, **descriptor.pricing_args).quote(descriptor)


def _check(name: str, catalogue: Catalogue, registry: Registry, live: bool) -> Verdict:
    from antiphon._setup import make_pool

    verdict = Verdict(name)
    try:
        descriptors = catalogue.pool(name)
        allow_unpriced = catalogue.config.pool(name).allow_unpriced
        made = make_pool(descriptors, catalogue.config, registry, allow_unpriced=allow_unpriced)
        verdict.changes += catalogue.check_lock(name)
    except AntiphonError as error:
        verdict.faults.append(str(error))
        return verdict
    verdict.members = len(descriptors)
    asyncio.run(_check_members(made, registry, verdict, live))
    return verdict


async def _check_members(made: Pool, registry: Registry, verdict: Verdict, live: bool) -> None:
    for descriptor in made.descriptors:
        faults = [fault for e in descriptor.endpoints if (fault := await _endpoint_fault(descriptor, e, registry))]
        where = verdict.faults if len(faults) == len(descriptor.endpoints) else verdict.warnings
        where += [f"{descriptor.name}: {fault}" for fault in faults]
    if live and not verdict.faults:
        verdict.answers += await _ask_all(made)
        verdict.faults += [
            f"{answer['member']}: {answer['outcome']}: {answer['error']}"
            for answer in verdict.answers
            if answer["outcome"] not in REACHED
        ]
    await made.aclose()


async def _endpoint_fault(descriptor: Descriptor, endpoint: Endpoint, registry: Registry) -> str | None:
    """Why this endpoint could not be used, as far as can be told without a call."""
    try:
        adapter = registry.adapter(endpoint.adapter, endpoint=endpoint, descriptor=descriptor)
        await adapter.aclose()
    except AntiphonError as error:
        return f"{endpoint.label}: {error}"
    variable = endpoint.api_key_env if getattr(adapter, "needs_key", True) else None
    if variable is not None and not os.environ.get(variable):
        return f"{endpoint.label} needs a key, and the environment variable {variable} is not set"
    return None


async def _ask_all(made: Pool) -> list[dict[str, Any]]:
    from antiphon.contracts import CallContext
    from antiphon.types import Message

    note(f"asking {plural(len(made.members), 'member')} one question each costs up to about {usd(_most(made.members))}")
    context = CallContext(task_id="pool-check", question=TEST_QUESTION)
    messages = [Message("user", TEST_QUESTION)]
    calls = await asyncio.gather(
        *(made.ask(view.name, messages, context=context, max_tokens=TEST_TOKENS) for view in made.members)
    )
    return [
        {
            "member": call.member,
            "outcome": call.outcome,
            "reply": call.reply,
            "error": call.error,
            "cost_usd": call.cost_usd,
            "latency_s": call.latency_s,
        }
        for call in calls
    ]


def _most(members: Sequence[MemberView]) -> float:
    """USD for one test question to each, were every reply as long as it may be."""
    asked = len(TEST_QUESTION) / 1e6  # more tokens than it has: one a character
    quotes = [view.quote for view in members if view.quote is not None]
    return sum((quote.input or 0.0) * asked + quote.output * TEST_TOKENS / 1e6 for quote in quotes)


def _show_verdict(verdict: Verdict) -> None:
    for answer in verdict.answers:
        said = shorten(answer["reply"] or answer["error"] or answer["outcome"], 60)
        click.echo(
            f"{verdict.pool}: {answer['member']}: {answer['outcome']}, {usd(answer['cost_usd'])}, "
            f"{seconds(answer['latency_s'])}: {said}"
        )
    for change in verdict.changes:
        click.echo(f"{verdict.pool}: changed since it was locked: {change}")
    for warning in verdict.warnings:
        click.echo(f"{verdict.pool}: warning: {warning}")
    for fault in verdict.faults:
        click.echo(f"{verdict.pool}: fault: {fault}")
    if verdict.ok:
        click.echo(f"{verdict.pool}: {plural(verdict.members, 'member')}, all well")
