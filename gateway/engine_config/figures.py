"""Which figures of an engine's status are kept as history. Pure."""

from typing import Any

import msgspec

from engine.protocol import EngineStatus


def figures_of(status: EngineStatus) -> dict[str, Any]:
    """One moment of an engine, as JSON holds it: load, memory, service levels, fairness, guardrails."""
    figures: dict[str, Any] = msgspec.to_builtins(
        {
            "step": status.step,
            "healthy": status.healthy,
            "draining": status.draining,
            "interactive": status.interactive,
            "offline": status.offline,
            "waiting": status.waiting,
            "prompt_tokens_per_second": status.prompt_tokens_per_second,
            "generated_tokens_per_second": status.generated_tokens_per_second,
            "kv_blocks_total": status.kv_blocks_total,
            "kv_blocks_used": status.kv_blocks_used,
            "kv_blocks_cached": status.kv_blocks_cached,
            "kv_blocks_free": status.kv_blocks_free,
            "prefix": status.prefix,
            "fairness": status.fairness,
            "slo": status.slo,
            "guardrail_mode": status.guardrails.mode,
            "guardrail_level": status.guardrails.level,
            "config_revision": status.config_revision,
        }
    )
    return figures
