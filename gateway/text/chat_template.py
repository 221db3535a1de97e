"""Renders messages to the prompt that a model was trained on, with its own template in a sandbox.

A template comes with a model, so it is somebody else's program: it can read the messages and nothing else.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]


class TemplateError(Exception):
    """The template refuses these messages; the text says why."""


class BrokenTemplateError(Exception):
    """The template itself cannot be read."""


class ChatTemplate:
    """One model's template. `bos_token` and `eos_token` are what it may call by these names."""

    def __init__(self, source: str, *, bos_token: str | None, eos_token: str | None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BrokenTemplateError(f"the chat template cannot be read: {error}") from error
        self._template.globals = dict(
            self._template.globals
        )  # of a ChainMap each rendering's copy takes 12 us
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, ready for the assistant's answer. Raises TemplateError."""
        return self._render(messages, add_generation_prompt=True)

    def render_beginning(self, messages: Sequence[Message]) -> str:
        """Messages that others follow. Raises TemplateError, as some templates want a whole conversation."""
        return self._render(messages, add_generation_prompt=False)

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._special
            )
        except Exception as error:  # a template meeting messages it was not written for may raise anything
            raise TemplateError(str(error)) from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Plain JSON; jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
