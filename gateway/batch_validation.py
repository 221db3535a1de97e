"""One pass over a batch's input: each line checked as its endpoint would, and its prompt counted. Pure.

Bytes in, items and faults out. Memory does not grow with the file, but for what it takes to know each
line's custom_id again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import BinaryIO, Final

from gateway.batches.faults import Fault, Faults
from gateway.batches.input_line import InputLine
from gateway.batches.items import Item
from gateway.batches.lines import BYTE_ORDER_MARK, Line, read_lines
from gateway.batches.prefix import prefix_of
from gateway.errors import GatewayError, InvalidRequest
from gateway.logs import without_keys
from gateway.requests.catalogue import ServedModel
from gateway.requests.decode import decode
from gateway.requests.parse import PARSERS
from gateway.requests.prepare import output_cap
from gateway.requests.prompt_text import PromptText, prompt_text
from gateway.requests.values import InferenceRequest
from gateway.text.wordwise import EncodeAll, encoder_of

GROUP_LINES: Final = 256  # are encoded at once
GROUP_BYTES: Final = 256 * 1024
_DIGEST_BYTES: Final = 16

FindModel = Callable[[str], ServedModel]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a batch's input must keep to."""

    endpoint: str
    max_lines: int
    max_line_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A line that may be run, if its prompt is not too long."""

    line: Line
    custom_id: str
    request: InferenceRequest
    prompt: PromptText | tuple[int, ...]


class Validation:
    """`find_model` gives what the batch's key may use by name, or raises NotFound.

    After `items` is exhausted, `faults` are all that is wrong, and the rest is of use if that is nothing.
    """

    def __init__(self, rules: Rules, find_model: FindModel) -> None:
        self.faults = Faults()
        self.num_items = 0
        self.num_tokens = 0
        self.model: ServedModel | None = None
        self._rules = rules
        self._find_model = find_model
        self._encode_all: EncodeAll | None = None
        self._line_of: dict[bytes, int] = {}  # by digest of custom_id

    def items(self, source: BinaryIO) -> Iterator[list[Item]]:
        """Those of some lines at a time."""
        num_lines = 0
        for group in _grouped(self._lines(source)):
            num_lines += len(group)
            yield self._counted([self._checked(line) for line in group])
        if num_lines == 0:
            self.faults.add(Fault("empty_file", None, "The input file has no requests.", "input_file_id"))

    def _lines(self, source: BinaryIO) -> Iterator[Line]:
        """Lines with something in them; blank ones ask for nothing. Ends where there are too many."""
        num_lines = 0
        for line in read_lines(source, max_bytes=self._rules.max_line_bytes):
            if line.data is not None and not line.data.strip():
                continue
            num_lines += 1
            if num_lines > self._rules.max_lines:
                text = f"The input file has more than {self._rules.max_lines} requests."
                self.faults.add(Fault("too_many_tasks", line.number, text, "input_file_id"))
                return
            yield line

    # --- one line ----------------------------------------------------------------------------------------

    def _checked(self, line: Line) -> Candidate | Fault:
        try:
            order = self._order(line)
        except InvalidRequest as error:
            return _fault(line, error, param=error.param)
        try:
            request, prompt = self._request(bytes(order.body))
        except GatewayError as error:
            return _fault(line, error, param=_in_body(error))
        return Candidate(line=line, custom_id=order.custom_id, request=request, prompt=prompt)

    def _order(self, line: Line) -> InputLine:
        order = _decoded(line, self._rules)
        self._check_custom_id(order.custom_id, line)
        if order.method != "POST":
            raise InvalidRequest("'method' must be 'POST'.", param="method", code="invalid_method")
        if order.url != self._rules.endpoint:
            raise InvalidRequest(
                f"'url' is '{order.url}', but the batch's endpoint is '{self._rules.endpoint}'.",
                param="url",
                code="url_mismatch",
            )
        return order

    def _check_custom_id(self, custom_id: str, line: Line) -> None:
        if "\0" in custom_id:
            raise InvalidRequest(
                "'custom_id' holds a NUL character, which cannot be stored.",
                param="custom_id",
                code="invalid_value",
            )
        digest = blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        first = self._line_of.setdefault(digest, line.number)
        if first != line.number:
            raise InvalidRequest(
                f"The custom_id '{custom_id}' is that of line {first} already; each must be used once.",
                param="custom_id",
                code="duplicate_custom_id",
            )

    def _request(self, body: bytes) -> tuple[InferenceRequest, PromptText | tuple[int, ...]]:
        request = PARSERS[self._rules.endpoint](body)
        if request.stream:
            raise InvalidRequest(
                "A request in a batch cannot be streamed.", param="stream", code="unsupported_value"
            )
        return request, prompt_text(request.prompt, self._model_of(request))

    def _model_of(self, request: InferenceRequest) -> ServedModel:
        """The one model of all lines. Raises NotFound and InvalidRequest."""
        if self.model is None:
            self.model = self._find_model(request.model)
        if request.model != self.model.name:
            raise InvalidRequest(
                f"The model is '{request.model}', but that of earlier lines is '{self.model.name}'; "
                "all requests of a batch must be for one model.",
                param="model",
                code="model_mismatch",
            )
        return self.model

    # --- many lines --------------------------------------------------------------------------------------

    def _counted(self, group: list[Candidate | Fault]) -> list[Item]:
        """Faults are noted in the order of their lines."""
        prompts = iter(self._encoded([one for one in group if isinstance(one, Candidate)]))
        counted = [one if isinstance(one, Fault) else self._item(one, next(prompts)) for one in group]
        for one in counted:
            if isinstance(one, Fault):
                self.faults.add(one)
        return [one for one in counted if isinstance(one, Item)]

    def _encoded(self, candidates: list[Candidate]) -> list[list[int] | tuple[int, ...]]:
        """The prompt ids of each."""
        if self.model is None:
            return []
        texts = [one.prompt for one in candidates if isinstance(one.prompt, PromptText)]
        if self._encode_all is None and texts:
            self._encode_all = encoder_of(
                self.model.text,
                add_special_tokens=texts[0].add_special_tokens,  # of one endpoint, as all
            )
        encoded = iter(self._encode_all([prompt.text for prompt in texts]) if self._encode_all else [])
        return [next(encoded) if isinstance(one.prompt, PromptText) else one.prompt for one in candidates]

    def _item(self, candidate: Candidate, prompt_ids: list[int] | tuple[int, ...]) -> Item | Fault:
        assert self.model is not None, "there is no candidate without"
        line = candidate.line
        try:
            output_cap(candidate.request, len(prompt_ids), self.model.limits)
        except InvalidRequest as error:
            return _fault(line, error, param=_in_body(error))
        self.num_items += 1
        self.num_tokens += len(prompt_ids)
        return Item(
            line=line.number,
            custom_id=candidate.custom_id,
            first_byte=line.first_byte,
            num_bytes=line.num_bytes,
            prompt_tokens=len(prompt_ids),
            prefix=prefix_of(prompt_ids),
        )


def _decoded(line: Line, rules: Rules) -> InputLine:
    """What a line says. Raises InvalidRequest."""
    if line.data is None:
        raise InvalidRequest(
            f"This line has {line.num_bytes} bytes; {rules.max_line_bytes} are the most.",
            code="line_too_large",
        )
    if line.data.startswith(BYTE_ORDER_MARK):
        raise _unreadable("It begins with a byte order mark, which only the file itself may.")
    try:
        line.data.decode()
        return decode(line.data, InputLine)
    except UnicodeDecodeError as error:
        raise _unreadable(f"Its byte {error.start + 1} is not valid UTF-8.") from error
    except InvalidRequest as error:
        if error.param is not None:
            raise
        raise _unreadable(f"{error.__cause__}.") from error


def _unreadable(why: str) -> InvalidRequest:
    return InvalidRequest(f"This line is not a JSON object. {why}", code="invalid_json_line")


def _in_body(error: GatewayError) -> str:
    return "body" if error.param is None else f"body.{error.param}"


def _fault(line: Line, error: GatewayError, *, param: str | None) -> Fault:
    return Fault(error.code or "invalid_request", line.number, without_keys(error.message), param)


def _grouped(lines: Iterator[Line]) -> Iterator[list[Line]]:
    group: list[Line] = []
    num_bytes = 0
    for line in lines:
        group.append(line)
        num_bytes += line.num_bytes
        if len(group) == GROUP_LINES or num_bytes >= GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group
