"""The models that can be asked for, as the engines described them; the last description while one is away."""

import asyncio
from dataclasses import dataclass, replace

from engine.protocol import AdmissionReason, EngineDescription, EngineLimits, EngineStatus
from gateway.errors import NotFound, ServerOverloaded
from gateway.text.text_model import TextModel, TextSource, build_text_model


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model: its text, and the limits in force at its engine. `created` is a Unix time."""

    name: str
    created: int
    text: TextModel
    vocab_size: int
    limits: EngineLimits


class Catalogue:
    """Models by name."""

    def __init__(self) -> None:
        self._models: dict[str, ServedModel] = {}

    def models(self, *, allowed: frozenset[str] | None) -> tuple[ServedModel, ...]:
        """Every model that is allowed, by name; None: all."""
        return tuple(
            self._models[name] for name in sorted(self._models) if allowed is None or name in allowed
        )

    def find(self, name: str, *, allowed: frozenset[str] | None) -> ServedModel:
        """The model of that name, as if what is not allowed did not exist; None: all are.

        Raises NotFound, or ServerOverloaded before any engine has been met.
        """
        if not self._models:
            raise ServerOverloaded("No engine has been reached yet.", reason=AdmissionReason.ENGINE_UNHEALTHY)
        model = self._models.get(name)
        if model is None or (allowed is not None and name not in allowed):
            raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")
        return model

    async def learn(self, description: EngineDescription) -> None:
        """Takes in what an engine serves. Raises UnusableTextModelError. Parses in a thread, once a text."""
        source = _source(description)
        known = self._models.get(description.model)
        if known is not None and known.text.source == source:
            text = known.text
        else:
            text = await asyncio.to_thread(build_text_model, source)
        self._models[description.model] = _served(description, text)

    def follow(self, status: EngineStatus) -> None:
        """Takes in the limits now in force."""
        known = self._models.get(status.model)
        if known is not None and known.limits != status.limits:
            self._models[status.model] = replace(known, limits=status.limits)


def _source(description: EngineDescription) -> TextSource:
    return TextSource(
        tokenizer_json=description.tokenizer_json,
        chat_template=description.chat_template,
        bos_token=description.bos_token,
        eos_token=description.eos_token,
    )


def _served(description: EngineDescription, text: TextModel) -> ServedModel:
    return ServedModel(
        name=description.model,
        created=description.created,
        text=text,
        vocab_size=description.vocab_size,
        limits=description.limits,
    )
