"""Composes an engine from its settings and runs it until it is told to stop: knows all parts."""

import asyncio
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import uvloop
from prometheus_client import ProcessCollector

from engine.core.admission import within_cache
from engine.core.kv_cache import KvCache
from engine.core.limits import LimitError, Limits
from engine.core.scheduler import Scheduler
from engine.core.slo import SloMonitor
from engine.desired_state import DesiredState
from engine.errors import EngineError
from engine.loop import EngineLoop
from engine.models.config import read_config
from engine.models.description import describe
from engine.models.loading import LoadedModel, load_model
from engine.runner.kv_tensors import kv_block_bytes, num_blocks_in
from engine.runner.model_runner import ModelRunner
from engine.runner.runner import Runner
from engine.runner.scripted_runner import ScriptedRunner, letters
from engine.self_report import ServedModel
from engine.server import EngineServer
from engine.settings import PREFILL_PAIR_COST, EngineSection, EngineSettings
from engine.telemetry import Telemetry

logger = logging.getLogger(__name__)

GIB = 1024**3
MAX_CPU_CACHE_GIB = 4.0
GPU_CACHE_SHARE = 0.85  # of the memory that is free once the weights are loaded


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an engine is made of."""

    model: ServedModel
    limits: Limits
    context_length: int
    runner: Runner
    num_blocks: int


def run(
    settings: EngineSettings,
    *,
    model_name: str,
    directory: Path,
    prepared_in: Path | None,
    listener: socket.socket,
) -> int:
    """Serves the model in `directory` as `model_name` on a bound socket; returns the exit status.

    What the next start need not work out again is kept in the folder `prepared_in`. Raises EngineError, in
    one line, when it cannot start.
    """
    parts = assemble(settings, model_name=model_name, directory=directory, prepared_in=prepared_in)
    return uvloop.run(_serve(settings, parts, listener))


def assemble(
    settings: EngineSettings, *, model_name: str, directory: Path, prepared_in: Path | None = None
) -> Parts:
    """Loads what the settings name and sizes the cache; raises EngineError."""
    if settings.engine.runner == "scripted":
        return _assemble_scripted(
            settings, model_name=model_name, directory=directory, prepared_in=prepared_in
        )
    loaded = load_model(
        directory, dtype=settings.engine.dtype, device=settings.engine.device, prepared_in=prepared_in
    )
    limits = settings.scheduler.limits(
        device=loaded.device.type, context_length=loaded.max_position_embeddings
    )
    num_blocks = _num_blocks(settings.engine, limits, loaded)
    runner = ModelRunner(
        loaded,
        num_blocks=num_blocks,
        block_size=settings.engine.kv_block_size,
        num_threads=_num_threads(settings.engine),
    )
    runner.warm_up()
    return Parts(
        model=ServedModel(
            name=model_name,
            created=int(time.time()),
            text=loaded.description,
            vocab_size=loaded.vocab_size,
            dtype=loaded.precision.name,
            device=loaded.device.type,
        ),
        limits=_limits_within(num_blocks, settings.engine, limits),
        context_length=loaded.max_position_embeddings,
        runner=runner,
        num_blocks=num_blocks,
    )


def _assemble_scripted(
    settings: EngineSettings, *, model_name: str, directory: Path, prepared_in: Path | None
) -> Parts:
    """The model's tokenizer and limits around a runner that computes nothing."""
    config = read_config(directory, prepared_in=prepared_in)
    limits = settings.scheduler.limits(device="cpu", context_length=config.max_position_embeddings)
    vocab_size = config.vocab_size
    return Parts(
        model=ServedModel(
            name=model_name,
            created=int(time.time()),
            text=describe(directory),
            vocab_size=vocab_size,
            dtype="none",
            device="cpu",
        ),
        limits=limits,
        context_length=config.max_position_embeddings,
        runner=ScriptedRunner(
            letters(min(100, vocab_size // 2), min(26, vocab_size // 4)),
            seconds_per_step=settings.engine.scripted_step_ms / 1000,
        ),
        num_blocks=_blocks_for_all(limits, settings.engine.kv_block_size),
    )


def _num_threads(section: EngineSection) -> int:
    return len(os.sched_getaffinity(0)) if section.num_threads == "auto" else section.num_threads


def _num_blocks(section: EngineSection, limits: Limits, loaded: LoadedModel) -> int:
    """Blocks that fit the memory asked for; `auto` takes a part of what is free, at most what can be used."""
    size, is_auto = section.kv_block_size, section.kv_cache_gib == "auto"
    gib = _free_gib(loaded.device) if section.kv_cache_gib == "auto" else section.kv_cache_gib
    fitting = num_blocks_in(int(gib * GIB), loaded.config, block_size=size, dtype=loaded.precision.cache)
    if fitting < 1:
        block_gib = kv_block_bytes(loaded.config, block_size=size, dtype=loaded.precision.cache) / GIB
        raise EngineError(f"engine.kv_cache_gib: {gib:.3g} GiB hold not one block of {block_gib:.3g} GiB")
    return min(fitting, _blocks_for_all(limits, size)) if is_auto else fitting


def _limits_within(num_blocks: int, section: EngineSection, limits: Limits) -> Limits:
    """What is left of `limits` with a cache of that size."""
    try:
        fitted = within_cache(limits, KvCache(num_blocks=num_blocks, block_size=section.kv_block_size))
    except LimitError as error:
        raise EngineError(f"engine.kv_cache_gib: {error}") from error
    if fitted != limits:
        logger.warning("the cache holds less than the context", extra={"max_model_len": fitted.max_model_len})
    return fitted


def _blocks_for_all(limits: Limits, block_size: int) -> int:
    """What the largest allowed set of the longest allowed sequences would fill."""
    num_blocks = limits.max_num_seqs * -(-limits.max_model_len // block_size)
    return math.ceil(num_blocks / limits.kv_cache_utilization_limit)


def _free_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return GPU_CACHE_SHARE * torch.cuda.mem_get_info(device)[0] / GIB
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    return min(MAX_CPU_CACHE_GIB, available / 4)


async def _serve(settings: EngineSettings, parts: Parts, listener: socket.socket) -> int:
    stop, crashes = asyncio.Event(), list[BaseException]()
    event_loop = asyncio.get_running_loop()

    def crashed(error: BaseException) -> None:
        crashes.append(error)
        event_loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        event_loop.add_signal_handler(number, stop.set)
    logging.getLogger("websockets").setLevel(logging.WARNING)  # connections are logged by the server itself
    server, loop = _compose(settings, parts, crashed)
    await server.start(loop, listener)
    loop.start()
    logger.info("engine ready", extra={"model": parts.model.name, "num_blocks": parts.num_blocks})
    await stop.wait()
    if not crashes:
        await server.drain(settings.engine.drain_seconds)
    await server.stop()
    if not crashes:
        await asyncio.to_thread(loop.stop)
    return 1 if crashes else 0


def _compose(
    settings: EngineSettings, parts: Parts, crashed: Callable[[BaseException], None]
) -> tuple[EngineServer, EngineLoop]:
    targets = settings.slo.targets()
    telemetry = Telemetry(SloMonitor(targets, now=time.monotonic()))
    ProcessCollector(registry=telemetry.metrics.registry)
    kv_cache = KvCache(num_blocks=parts.num_blocks, block_size=settings.engine.kv_block_size)
    server = EngineServer(
        model=parts.model,
        desired_state=DesiredState(parts.limits, kv_cache=kv_cache, context_length=parts.context_length),
        shared_secret=settings.shared_secret,
        registry=telemetry.metrics.registry,
    )
    loop = EngineLoop(
        scheduler=Scheduler(
            limits=parts.limits,
            kv_cache=kv_cache,
            vocab_size=parts.model.vocab_size,
            itl_guard_seconds=targets.itl_guard_seconds,
            prefill_pair_cost=PREFILL_PAIR_COST[parts.model.device],
        ),
        runner=parts.runner,
        telemetry=telemetry,
        publish=server.publish,
        on_crash=crashed,
    )
    return server, loop
