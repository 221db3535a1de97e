"""A whole engine in this process, on a free port, with the scripted runner in place of a model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from deploy.listener import bind
from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.scheduler import Scheduler
from engine.core.slo import SloMonitor, SloTargets
from engine.desired_state import DesiredState
from engine.loop import EngineLoop
from engine.models.description import ModelDescription
from engine.runner.runner import Runner
from engine.runner.scripted_runner import ScriptedRunner, letters
from engine.self_report import ServedModel
from engine.server import EngineServer
from engine.telemetry import Telemetry

SHARED_SECRET = "5ec2e7" * 8  # hexadecimal, as the settings of a gateway want it
LIMITS = Limits(
    max_num_seqs=32,
    max_num_batched_tokens=256,
    max_num_prefill_tokens=128,
    max_model_len=512,
    max_output_len=256,
    prefill_chunk_size=64,
    waiting_timeout_ms=30_000,
)


@dataclass(frozen=True)
class ScriptedEngine:
    """A running engine and where to find it."""

    url: str
    loop: EngineLoop
    server: EngineServer
    crash: asyncio.Future[BaseException]


def description(tokenizer_json: str, **changes: object) -> ServedModel:
    """A model's description around `tokenizer_json`, with a ChatML-like template."""
    text = ModelDescription(
        tokenizer_json=tokenizer_json,
        chat_template=(
            "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
        bos_token=None,
        eos_token="<|im_end|>",
        eos_token_ids=(2,),
    )
    base = ServedModel(
        name="scripted",
        created=1_700_000_000,
        text=text,
        vocab_size=300,
        dtype="none",
        device="cpu",
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # names are checked by replace


@asynccontextmanager
async def scripted_engine(
    tokenizer_json: str,
    *,
    limits: Limits = LIMITS,
    runner: Runner | None = None,
    num_blocks: int = 256,
    block_size: int = 16,
    port: int = 0,
    targets: SloTargets | None = None,
    **description_changes: object,
) -> AsyncIterator[ScriptedEngine]:
    """Runs an engine until the block ends. By default it answers "abcd..." one letter a step, 1 ms a step."""
    model = description(tokenizer_json, **description_changes)
    telemetry = Telemetry(SloMonitor(targets or SloTargets(), now=asyncio.get_running_loop().time()))
    kv_cache = KvCache(num_blocks=num_blocks, block_size=block_size)
    server = EngineServer(
        model=model,
        desired_state=DesiredState(limits, kv_cache=kv_cache, context_length=8192),
        shared_secret=SHARED_SECRET,
        registry=telemetry.metrics.registry,
    )
    event_loop = asyncio.get_running_loop()
    crash: asyncio.Future[BaseException] = event_loop.create_future()
    loop = EngineLoop(
        scheduler=Scheduler(
            limits=limits,
            kv_cache=kv_cache,
            vocab_size=model.vocab_size,
        ),
        runner=runner or ScriptedRunner(letters(ord("a"), 26), seconds_per_step=0.001),
        telemetry=telemetry,
        publish=server.publish,
        on_crash=lambda error: event_loop.call_soon_threadsafe(crash.set_result, error),
    )
    listener = bind("127.0.0.1", port, option="port")
    await server.start(loop, listener)
    loop.start()
    try:
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        yield ScriptedEngine(url=url, loop=loop, server=server, crash=crash)
    finally:
        await server.stop()
        await asyncio.to_thread(loop.stop)
