"""`sluice scheduler`: the engines' limits and guardrails while they run, through the store."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import msgspec
import typer

from deploy.commands.options import AsJson, DatabaseUrl, DataDir
from deploy.commands.store_access import print_json, print_table, with_store
from deploy.commands.tenants import ACTOR
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.failure import Failure
from engine.protocol import GuardrailMode
from gateway import engine_administration
from gateway.db import Database
from gateway.engine_administration import ModelConfig, Ordered, facts_of
from gateway.engine_config.changes import LIMIT_KEYS
from gateway.engine_config.values import EngineInForce, StoredGuardrailEvent

OBEYED_WITHIN_SECONDS: Final = 5.0
LOOK_EVERY_SECONDS: Final = 0.25
DEFAULT: Final = "default"
NO_MODEL: Final = "No engine has been connected yet."

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="See and change how running engines schedule."
)

Model = Annotated[str | None, typer.Option(help="Only engines of this model. Without it: all.")]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An order, and what the engines made of it."""

    ordered: Sequence[Ordered]
    configs: Sequence[ModelConfig]


@app.command()
def show(
    model: Model = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Shows what is wanted beside what each engine has in force."""

    async def verb(database: Database) -> Sequence[ModelConfig]:
        return await engine_administration.show_scheduler(database, model)

    configs = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json([_as_json(config) for config in configs])
        return
    for config in configs:
        _print_config(config)


@app.command("set")
def set_(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="KEY=default: the engine's own value again.")
    ],
    model: Model = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Changes limits of running engines, within seconds and for good."""
    changes = dict(_parsed(setting) for setting in settings)

    async def verb(database: Database) -> Outcome:
        ordered = await engine_administration.set_scheduler(database, ACTOR, model, changes)
        return Outcome(ordered=ordered, configs=await _until_obeyed(database, ordered))

    _report(with_store(verb, data_dir=data_dir, database_url=database_url))


@app.command()
def guardrails(
    mode: Annotated[
        GuardrailMode | None,
        typer.Option(help="automatic: they act; dry_run: they only tell; manual: they stay at --level."),
    ] = None,
    level: Annotated[int | None, typer.Option(min=0, max=5, help="0 (normal) to 5, in manual mode.")] = None,
    model: Model = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Shows where the guardrails stand, or says who moves them."""

    async def change(database: Database) -> Outcome:
        ordered = await engine_administration.set_guardrails(database, ACTOR, model, mode=mode, level=level)
        return Outcome(ordered=ordered, configs=await _until_obeyed(database, ordered))

    async def look(database: Database) -> Sequence[ModelConfig]:
        return await engine_administration.show_scheduler(database, model)

    if mode is None and level is None:
        configs = with_store(look, data_dir=data_dir, database_url=database_url)
        _print_guardrails(configs)
    else:
        _report(with_store(change, data_dir=data_dir, database_url=database_url))


@app.command()
def events(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 20,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Shows the latest moves of the guardrails with what was measured, newest first."""

    async def verb(database: Database) -> Sequence[StoredGuardrailEvent]:
        return await engine_administration.guardrail_events(database, limit=limit)

    latest = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json([asdict(event) for event in latest])
        return
    print_table(
        ["at", "engine", "level", "measure", "value", "target", "what"],
        [_event_row(event) for event in latest],
        empty="The guardrails have not moved.",
    )


# --- an order ----------------------------------------------------------------------------------------------


def _parsed(setting: str) -> tuple[str, str | None]:
    key, separator, value = (part.strip() for part in setting.partition("="))
    if not separator or not key or not value:
        raise typer.BadParameter(
            f"write KEY=VALUE, not '{setting}'; the keys are {', '.join(LIMIT_KEYS)}",
            param_hint="KEY=VALUE",
        )
    return key, None if value == DEFAULT else value


async def _until_obeyed(database: Database, ordered: Sequence[Ordered]) -> Sequence[ModelConfig]:
    """The engines' word on an order; what they have said after some seconds, if they take longer."""
    revisions = {each.after.model: each.after.revision for each in ordered}
    loop = asyncio.get_running_loop()
    until = loop.time() + OBEYED_WITHIN_SECONDS
    while True:
        configs = [
            config
            for config in await engine_administration.show_scheduler(database)
            if config.desired.model in revisions
        ]
        is_known = all(
            engine.config_revision >= revisions[engine.model]
            for config in configs
            for engine in _speaking(config)
        )
        if is_known or loop.time() >= until:
            return configs
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def _speaking(config: ModelConfig) -> list[EngineInForce]:
    return [engine for engine in config.engines if not engine.is_silent]


def _report(outcome: Outcome) -> None:
    """Says what changed and who obeys; raises Failure when an engine refuses."""
    for each in outcome.ordered:
        old, new = facts_of(each.before), facts_of(each.after)
        changed = [name for name in new if old[name] != new[name] and name != "revision"]
        for name in changed:
            print(f"{each.after.model}: {name} {_shown(old[name])} -> {_shown(new[name])}")
        if not changed:
            print(f"{each.after.model}: nothing to change.")
    refusals = []
    for config in outcome.configs:
        engines = _speaking(config)
        for engine in engines:
            if engine.config_error is not None:
                refusals.append(f"{engine.address} refuses: {engine.config_error}")
            else:
                print(f"{engine.address}: {_obedience(engine, config)}")
        if not engines:
            print(f"{config.desired.model}: no engine is connected; it holds for the next one.")
    if refusals:
        raise Failure("; ".join(refusals))


def _obedience(engine: EngineInForce, config: ModelConfig) -> str:
    revision = config.desired.revision
    if engine.config_revision >= revision:
        return f"in force (revision {revision})."
    return f"has not answered yet; see `sluice scheduler show` for revision {revision}."


# --- what is shown -----------------------------------------------------------------------------------------


def _print_config(config: ModelConfig) -> None:
    desired, engines = config.desired, config.engines
    orders = desired.guardrails
    facts: list[list[object]] = [
        [key, _shown(getattr(desired.limits, key)), *(getattr(engine.limits, key) for engine in engines)]
        for key in LIMIT_KEYS
    ]
    facts += [
        ["guardrails", orders.mode.value, *(engine.guardrail_mode.value for engine in engines)],
        ["guardrail level", _ordered_level(config), *(engine.guardrail_level for engine in engines)],
        ["revision", desired.revision, *(engine.config_revision for engine in engines)],
        ["refused because", "", *(engine.config_error or "" for engine in engines)],
        ["heard", "", *(_ago(engine) for engine in engines)],
    ]
    print_table([desired.model, "wanted", *(engine.address for engine in engines)], facts, empty=NO_MODEL)


def _ordered_level(config: ModelConfig) -> object:
    orders = config.desired.guardrails
    return orders.level if orders.mode is GuardrailMode.MANUAL else ""


def _print_guardrails(configs: Sequence[ModelConfig]) -> None:
    rows = [
        [
            config.desired.model,
            config.desired.guardrails.mode.value,
            engine.address,
            engine.guardrail_mode.value,
            engine.guardrail_level,
            _ago(engine),
        ]
        for config in configs
        for engine in config.engines
    ]
    print_table(["model", "wanted", "engine", "mode", "level", "heard"], rows, empty=NO_MODEL)


def _event_row(event: StoredGuardrailEvent) -> list[object]:
    return [
        f"{event.at:%Y-%m-%d %H:%M:%S}",
        event.address,
        f"{event.from_level} -> {event.to_level}" + (" (dry run)" if event.is_dry_run else ""),
        event.measure or "operator",
        "" if event.value is None else f"{event.value:g}",
        "" if event.target is None else f"{event.target:g}",
        event.detail,
    ]


def _shown(value: object) -> object:
    return DEFAULT if value is None else value


def _ago(engine: EngineInForce) -> str:
    return f"{engine.age_seconds:.0f} s ago" + (" (silent)" if engine.is_silent else "")


def _as_json(config: ModelConfig) -> dict[str, Any]:
    desired = config.desired
    return {
        "model": desired.model,
        "revision": desired.revision,
        "limits": msgspec.to_builtins(desired.limits),
        "weights": dict(desired.weights),
        "guardrails": msgspec.to_builtins(desired.guardrails),
        "updated_at": desired.updated_at,
        "engines": [
            {**asdict(engine), "limits": msgspec.to_builtins(engine.limits), "is_silent": engine.is_silent}
            for engine in config.engines
        ],
    }
