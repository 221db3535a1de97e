"""Input files of batches, and what a validation makes of them without a store."""

import io
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from engine.protocol import EngineDescription
from gateway.batch_validation import Rules, Validation
from gateway.batches.faults import Fault
from gateway.batches.items import Item
from gateway.errors import NotFound
from gateway.requests.catalogue import ServedModel
from gateway.text.text_model import TextSource, build_text_model
from tests.builders.bodies import chat_body, completion_body
from tests.builders.engine_messages import engine_description

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def chat_line(custom_id: str = "one", *, url: str = CHAT, method: str = "POST", **body: Any) -> bytes:
    """One line that asks the chat endpoint."""
    return line(custom_id=custom_id, method=method, url=url, body=chat_body(**body))


def completion_line(custom_id: str = "one", **body: Any) -> bytes:
    """One line that asks the completions endpoint."""
    return line(custom_id=custom_id, method="POST", url=COMPLETIONS, body=completion_body(**body))


def line(**fields: Any) -> bytes:
    """Any object as a line, without its line feed."""
    return msgspec.json.encode(fields)


def served_model(description: EngineDescription | None = None) -> ServedModel:
    """What a gateway knows of a model that an engine described."""
    description = description or engine_description()
    source = TextSource(
        tokenizer_json=description.tokenizer_json,
        chat_template=description.chat_template,
        bos_token=description.bos_token,
        eos_token=description.eos_token,
    )
    return ServedModel(
        name=description.model,
        created=description.created,
        text=build_text_model(source),
        vocab_size=description.vocab_size,
        limits=description.limits,
    )


@cache
def _tiny() -> ServedModel:
    return served_model()


@dataclass(frozen=True)
class Outcome:
    """What became of a file."""

    items: list[Item]
    faults: tuple[Fault, ...]
    num_tokens: int

    @property
    def told(self) -> list[tuple[str, int | None, str | None]]:
        """Code, line and parameter of each fault."""
        return [(fault.code, fault.line, fault.param) for fault in self.faults]


def validated(
    content: bytes,
    *,
    endpoint: str = CHAT,
    max_lines: int = 1_000,
    max_line_bytes: int = 100_000,
    models: tuple[ServedModel, ...] = (),
) -> Outcome:
    """Passes over a file; without `models` there is one, `tiny`."""
    known = {model.name: model for model in models or (_tiny(),)}

    def find(name: str) -> ServedModel:
        if name not in known:
            raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")
        return known[name]

    rules = Rules(endpoint=endpoint, max_lines=max_lines, max_line_bytes=max_line_bytes)
    validation = Validation(rules, find)
    items = [item for group in validation.items(io.BytesIO(content)) for item in group]
    return Outcome(items, validation.faults.listed(), validation.num_tokens)
