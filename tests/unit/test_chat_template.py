"""Chat templates: the usual conventions, and no way out of the sandbox."""

import pytest

from gateway.text.chat_template import BrokenTemplateError, ChatTemplate, TemplateError
from tests.builders.engine_messages import CHAT_TEMPLATE

USER = [{"role": "user", "content": "Hi"}]


def render(source: str) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token=None).render(USER)


def test_renders_the_messages_and_asks_for_an_answer() -> None:
    assert render(CHAT_TEMPLATE) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|"),
        ("{% if true %}\n  a\n{% endif %}\nb", "  a\nb"),
        ("{{ {'x': '<é>'} | tojson }}", '{"x": "<é>"}'),
        ("{{ strftime_now('%%') }}", "%"),
        ("{% for m in messages %}{% break %}{% endfor %}", ""),
    ],
)
def test_follows_the_conventions_of_published_templates(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[7].content.nothing.at.all }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 1 // 0 }}",
        "{{ range(99999999) | list }}",
    ],
)
def test_what_goes_wrong_in_a_template_is_the_requests_error(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_a_template_that_cannot_be_read_is_refused_at_once() -> None:
    with pytest.raises(BrokenTemplateError):
        ChatTemplate("{% if %}", bos_token=None, eos_token=None)
