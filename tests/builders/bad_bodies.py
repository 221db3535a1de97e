"""Bodies that must be refused with status 400, with the parameter that the error must name."""

from typing import Any

from tests.builders.bodies import chat_body, completion_body, encoded


def _user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


BAD_CHAT_BODIES: list[tuple[str, bytes, str | None]] = [
    ("not JSON", b"{", None),
    ("not an object", b"[]", None),
    ("empty", b"", None),
    ("not UTF-8", b'{"model": "\xff"}', None),
    ("nested without end", b'{"x":' + b"[" * 100_000, None),
    ("a number beyond every float", b'{"model": "tiny", "messages": [], "n": 1e400}', "n"),
    (
        "a number of ten thousand digits",
        b'{"model": "tiny", "messages": [], "n": ' + b"9" * 10_000 + b"}",
        "n",
    ),
    *(
        (name, encoded(body), param)
        for name, body, param in [
            ("no model", chat_body(model=None), "model"),
            ("model of a wrong type", chat_body(model=7), "model"),
            ("no messages", chat_body(messages=None), "messages"),
            ("empty messages", chat_body(messages=[]), "messages"),
            ("messages of a wrong type", chat_body(messages="Hi"), "messages"),
            ("unknown role", chat_body(messages=[{"role": "wizard", "content": "x"}]), "messages[0].role"),
            ("no role", chat_body(messages=[{"content": "x"}]), "messages[0].role"),
            ("tool role", chat_body(messages=[{"role": "tool", "content": "x"}]), "messages[0].role"),
            ("null content", chat_body(messages=_user(None)), "messages[0].content"),
            ("content of a wrong type", chat_body(messages=_user(5)), "messages[0].content"),
            (
                "an image",
                chat_body(messages=_user([{"type": "image_url", "image_url": {"url": "x"}}])),
                "messages[0].content[0].type",
            ),
            (
                "a text part without text",
                chat_body(messages=_user([{"type": "text"}])),
                "messages[0].content[0].text",
            ),
            ("negative max_tokens", chat_body(max_tokens=-1), "max_tokens"),
            ("zero max_tokens", chat_body(max_tokens=0), "max_tokens"),
            ("fractional max_tokens", chat_body(max_tokens=1.5), "max_tokens"),
            ("boolean max_tokens", chat_body(max_tokens=True), "max_tokens"),
            ("zero max_completion_tokens", chat_body(max_completion_tokens=0), "max_completion_tokens"),
            ("negative temperature", chat_body(temperature=-0.1), "temperature"),
            ("temperature above 2", chat_body(temperature=2.1), "temperature"),
            ("temperature of a wrong type", chat_body(temperature="hot"), "temperature"),
            ("top_p of 0", chat_body(top_p=0), "top_p"),
            ("top_p above 1", chat_body(top_p=1.5), "top_p"),
            ("top_k below -1", chat_body(top_k=-2), "top_k"),
            ("seed of a wrong type", chat_body(seed="x"), "seed"),
            ("seed beyond 64 bits", chat_body(seed=2**64), "seed"),
            ("five stop strings", chat_body(stop=list("abcde")), "stop"),
            ("empty stop string", chat_body(stop=""), "stop"),
            ("empty stop string in a list", chat_body(stop=["a", ""]), "stop[1]"),
            ("stream_options without stream", chat_body(stream_options={}), "stream_options"),
            ("unknown service tier", chat_body(service_tier="gold"), "service_tier"),
            ("min_tokens above max_tokens", chat_body(min_tokens=5, max_tokens=4), "min_tokens"),
            ("several answers", chat_body(n=2), "n"),
            ("logprobs", chat_body(logprobs=True), "logprobs"),
            ("tools", chat_body(tools=[{"type": "function"}]), "tools"),
            ("a tool choice", chat_body(tool_choice="required"), "tool_choice"),
            ("JSON mode", chat_body(response_format={"type": "json_object"}), "response_format"),
            ("presence penalty", chat_body(presence_penalty=0.5), "presence_penalty"),
            ("frequency penalty", chat_body(frequency_penalty=-1), "frequency_penalty"),
            ("repetition penalty", chat_body(repetition_penalty=1.1), "repetition_penalty"),
            ("logit bias", chat_body(logit_bias={"5": 1}), "logit_bias"),
            ("audio", chat_body(modalities=["text", "audio"]), "modalities"),
        ]
    ),
]

BAD_COMPLETION_BODIES: list[tuple[str, bytes, str | None]] = [
    (name, encoded(body), param)
    for name, body, param in [
        ("no prompt", completion_body(prompt=None), "prompt"),
        ("empty prompt", completion_body(prompt=""), "prompt"),
        ("empty prompt list", completion_body(prompt=[]), "prompt"),
        ("empty text in a list", completion_body(prompt=[""]), "prompt"),
        ("empty ids in a list", completion_body(prompt=[[]]), "prompt"),
        ("prompt of a wrong type", completion_body(prompt={"a": 1}), "prompt"),
        ("several prompts", completion_body(prompt=["a", "b"]), "prompt"),
        ("several prompts of ids", completion_body(prompt=[[5], [6]]), "prompt"),
        ("echo", completion_body(echo=True), "echo"),
        ("best_of", completion_body(best_of=2), "best_of"),
        ("suffix", completion_body(suffix="x"), "suffix"),
        ("logprobs of 0 alternatives", completion_body(logprobs=0), "logprobs"),
        ("negative max_tokens", completion_body(max_tokens=-1), "max_tokens"),
    ]
]
