"""A form reads the same however its bytes are cut into pieces."""

import itertools

from hypothesis import given
from hypothesis.strategies import binary, integers, lists, sampled_from

from gateway.api.multipart import Field, FileBegins, FileBytes, Form, FormEvent

CONTENT_TYPE = "multipart/form-data; boundary=line"
NEARLY_BOUNDARIES = [b"\r\n--line", b"\r\n--lin", b"\r\n--", b"\r", b"\n", b"--line", b"{}\n"]


def read(body: bytes, cuts: list[int]) -> list[FormEvent]:
    """All events; those of the file's bytes as one."""
    form, events, content = Form(CONTENT_TYPE), [], b""
    edges = [0, *sorted(cut % len(body) for cut in cuts), len(body)]
    for start, end in itertools.pairwise(edges):
        for event in form.feed(body[start:end]):
            if isinstance(event, FileBytes):
                content += event.data
            else:
                events.append(event)
    assert form.is_whole
    return [*events, FileBytes(content)]


@given(
    pieces=lists(sampled_from(NEARLY_BOUNDARIES[1:]) | binary(max_size=20), max_size=10),
    cuts=lists(integers(0, 10_000), max_size=20),
)
def test_a_form_reads_the_same_however_it_is_cut(pieces: list[bytes], cuts: list[int]) -> None:
    content = b"".join(pieces)
    if NEARLY_BOUNDARIES[0] in content:
        return
    body = (
        b'--line\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--line\r\nContent-Disposition: form-data; name="file"; filename="in"\r\n\r\n'
        + content
        + b"\r\n--line--\r\n"
    )
    assert read(body, cuts) == [Field("purpose", "batch"), FileBegins("file", "in"), FileBytes(content)]
