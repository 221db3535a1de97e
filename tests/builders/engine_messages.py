"""Messages of an engine with everything filled in that a test does not care about."""

import json
from typing import Any

from engine.protocol import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    ClassCounts,
    EngineDescription,
    EngineLimits,
    EngineStatus,
    GenerateRequest,
    RequestClass,
    Sampling,
    Window,
)
from gateway.text.token_bytes import byte_level_alphabet

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level_tokenizer_json() -> str:
    """A tokenizer whose ids 0-2 are special tokens, and id 3 + b is the byte b. No merges."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *byte_level_alphabet()])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {
                    "id": number,
                    "content": content,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for number, content in enumerate(SPECIAL_TOKENS)
            ],
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    )


def token_ids_of(text: str) -> tuple[int, ...]:
    """The ids of a text under `byte_level_tokenizer_json`."""
    return tuple(3 + byte for byte in text.encode())


def engine_limits(**changes: Any) -> EngineLimits:
    """Limits of a small engine."""
    values: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_num_prefill_tokens": 256,
        "max_model_len": 512,
        "max_output_len": 256,
        "prefill_chunk_size": 128,
        "long_context_threshold": 256,
        "max_num_long_context_seqs": 2,
        "kv_cache_utilization_limit": 0.9,
        "waiting_timeout_ms": 5_000,
    }
    return EngineLimits(**values | changes)


def engine_description(**changes: Any) -> EngineDescription:
    """An engine that serves the model `tiny` with the byte tokenizer."""
    values: dict[str, Any] = {
        "major": PROTOCOL_MAJOR,
        "minor": PROTOCOL_MINOR,
        "model": "tiny",
        "created": 1_700_000_000,
        "tokenizer_json": byte_level_tokenizer_json(),
        "chat_template": CHAT_TEMPLATE,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "eos_token_ids": (2,),
        "vocab_size": 3 + 256,
        "limits": engine_limits(),
        "window": Window(interactive=8, offline=4),
        "dtype": "float32",
        "device": "cpu",
    }
    return EngineDescription(**values | changes)


def engine_status(**changes: Any) -> EngineStatus:
    """A healthy idle engine."""
    values: dict[str, Any] = {
        "model": "tiny",
        "step": 1,
        "healthy": True,
        "draining": False,
        "uptime_seconds": 1.0,
        "interactive": ClassCounts(running=0, waiting=0),
        "offline": ClassCounts(running=0, waiting=0),
        "kv_blocks_total": 8,
        "kv_blocks_used": 0,
        "kv_blocks_cached": 0,
        "kv_blocks_free": 8,
        "prompt_tokens_per_second": 0.0,
        "generated_tokens_per_second": 0.0,
        "slo": (),
        "limits": engine_limits(),
        "window": Window(interactive=8, offline=4),
    }
    return EngineStatus(**values | changes)


def generate_request(**changes: Any) -> GenerateRequest:
    """One interactive request of one tenant."""
    values: dict[str, Any] = {
        "id": "request-1",
        "trace_id": "0" * 32,
        "model": "tiny",
        "tenant": "ten_a",
        "request_class": RequestClass.INTERACTIVE,
        "prompt_ids": (1, 5, 6),
        "sampling": Sampling(),
        "timeout_ms": 60_000,
        "epoch": 1,
    }
    return GenerateRequest(**values | changes)
