"""The wire between a gateway and an engine: every message, and nothing else.

One WebSocket per gateway-engine pair carries msgpack frames. A frame is one message of the two unions below;
a gateway's may be several in an array, all that it had to say at a time.
Major versions must match; minor ones may differ: unknown fields are ignored, new ones have defaults,
and a message is only sent to who knows it.

    gateway -> engine   Hello, then Configure | GenerateRequest | Extend | Cancel | ReportQuery
    engine  -> gateway  EngineDescription, then StepEvents | EngineStatus | Report; Goodbye before a refusal

The engine takes and gives token ids; it knows no text.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec

PROTOCOL_MAJOR: Final = 1
PROTOCOL_MINOR: Final = 4
EXTENDS_SINCE_MINOR: Final = 3  # engines before that know neither `Extend` nor `paid_tokens`
BURSTS_SINCE_MINOR: Final = 4  # engines before that read one message a frame
MOST_IN_BURST: Final = 16  # a prompt of a million tokens takes 3 MiB
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024  # a tokenizer.json alone can exceed the library's default of 1 MiB
PING_INTERVAL_SECONDS: Final = 1.0
DEAD_AFTER_SECONDS: Final = 5.0


class RequestClass(StrEnum):
    """Who waits for the answer: a person, or a job that takes what capacity is left."""

    INTERACTIVE = "interactive"
    OFFLINE = "offline"


class FinishReason(StrEnum):
    """Why a sequence that ran stopped running."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


class AdmissionReason(StrEnum):
    """Why a request was refused: a closed set, the same in responses, metrics, logs and pages."""

    QUEUE_FULL = "queue_full"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    KV_NEVER_FITS = "kv_never_fits"
    CONTEXT_TOO_LONG = "context_too_long"
    OUTPUT_TOO_LONG = "output_too_long"
    LONG_CONTEXT_DEGRADED = "long_context_degraded"
    RATE_SHARE = "rate_share"
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    WAITING_TIMEOUT = "waiting_timeout"
    DRAINING = "draining"
    INVALID_REQUEST = "invalid_request"
    ENGINE_UNHEALTHY = "engine_unhealthy"


class WaitReason(StrEnum):
    """Why a request still waits: a closed set, told while it waits and when its waiting time runs out."""

    KV_BLOCKS = "kv_blocks"
    MAX_NUM_SEQS = "max_num_seqs"
    TOKEN_BUDGET = "token_budget"  # noqa: S105  # tokens of text
    TENANT_SHARE = "tenant_share"
    LONG_LANE = "long_lane"
    CLASS_HOLD = "class_hold"


class GuardrailMode(StrEnum):
    """Who moves the guardrails: the measured service levels, nobody (but moves are told), or an operator."""

    AUTOMATIC = "automatic"
    DRY_RUN = "dry_run"
    MANUAL = "manual"


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch a filter off.

    `seed` fixes the draw of every position, whatever else runs in the same step.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request as the engine counted them: computed prompt, of it cached, and sampled output."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


# --- gateway -> engine -------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First frame of a connection. `epoch` names one life of the gateway process: it never repeats.

    An observer only reads statuses; its requests are refused, and it takes no share of the window.
    """

    major: int
    minor: int
    replica: str
    epoch: int
    observer: bool = False


class GenerateRequest(msgspec.Struct, frozen=True, tag="generate"):
    """One prompt to continue. Durations are relative, so clocks need not agree.

    `timeout_ms` is what is left of the request's whole time; `queued_ms` is what it has already waited in the
    gateway, counted into its waiting time and time to first token.

    `cache_namespace` keys the prefix cache. The first `num_shared_tokens` of the prompt, a system prompt say,
    are kept under `shared_namespace` instead: a group of tenants may agree to share those.

    `project` and `key` say who of the tenant asks. What the tenant gets, its projects share by their weights,
    and what a project gets, its keys.

    `account` is the gateway's own note of who pays; it comes back in the request's record. It has paid for
    `paid_tokens` of output, 0 says for all; the engine generates no token that is not paid for, and waits
    there for an `Extend`.
    """

    id: str
    trace_id: str
    model: str
    tenant: str
    request_class: RequestClass
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    timeout_ms: int
    epoch: int
    queued_ms: int = 0
    weight: float = 1.0
    cache_namespace: bytes = b""
    shared_namespace: bytes = b""
    num_shared_tokens: int = 0
    tenant_name: str = ""
    adapter: str | None = None
    account: bytes = b""
    project: str = ""
    project_weight: float = 1.0
    key: str = ""
    key_weight: float = 1.0
    paid_tokens: int = 0


class Extend(msgspec.Struct, frozen=True, tag="extend"):
    """`paid_tokens` of output are paid for now, in all; after the last `Extend` the answer ends with these.

    Unknown ids are ignored: the answer may be over.
    """

    id: str
    paid_tokens: int
    is_last: bool = False


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The request's answer is not wanted any more. Unknown ids are ignored: the answer may be on its way."""

    id: str


class ReportQuery(msgspec.Struct, frozen=True, tag="report_query"):
    """Asks what the engine did for one life of a gateway, to settle what that life left open.

    With `fence` that life is over: what it runs is ended first, and nothing more is taken from it.
    """

    replica: str
    epoch: int
    fence: bool = False


AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class LimitChanges(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits that differ from those the engine was started with; None leaves one as it was."""

    max_num_seqs: AtLeastOne | None = None
    max_num_batched_tokens: AtLeastOne | None = None
    max_num_prefill_tokens: AtLeastOne | None = None
    max_model_len: AtLeastOne | None = None
    max_output_len: AtLeastOne | None = None
    prefill_chunk_size: AtLeastOne | None = None
    long_context_threshold: AtLeastOne | None = None
    max_num_long_context_seqs: AtLeastOne | None = None
    kv_cache_utilization_limit: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    waiting_timeout_ms: AtLeastOne | None = None
    offline_kv_utilization_limit: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    offline_min_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None


class GuardrailOrders(msgspec.Struct, frozen=True):
    """What an operator orders of the guardrails. `level` counts in manual mode only: 0 (normal) to 5."""

    mode: GuardrailMode = GuardrailMode.AUTOMATIC
    level: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """The desired state of every engine of a model. An engine keeps the highest revision it has seen.

    It is in force from the next step. `weights` are of tenants that have one other than their requests say.
    """

    revision: int
    limits: LimitChanges = LimitChanges()
    weights: dict[str, float] = {}
    guardrails: GuardrailOrders = GuardrailOrders()


GatewayMessage = Hello | Configure | GenerateRequest | Extend | Cancel | ReportQuery


# --- engine -> gateway -------------------------------------------------------------------------------------


class EngineLimits(msgspec.Struct, frozen=True):
    """The scheduler's limits in force; `[scheduler]` of the settings under the same names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_prefill_tokens: int
    max_model_len: int
    max_output_len: int
    prefill_chunk_size: int
    long_context_threshold: int
    max_num_long_context_seqs: int
    kv_cache_utilization_limit: float
    waiting_timeout_ms: int
    offline_kv_utilization_limit: float = 0.5
    offline_min_share: float = 0.05


class Window(msgspec.Struct, frozen=True):
    """How many requests of each class a connection may have at the engine; the rest wait in the gateway."""

    interactive: int
    offline: int


class EngineDescription(msgspec.Struct, frozen=True, tag="description"):
    """What the engine serves: all a gateway needs to turn text into ids and back."""

    major: int
    minor: int
    model: str
    created: int
    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    limits: EngineLimits
    window: Window
    dtype: str
    device: str


class TokenDelta(msgspec.Struct, frozen=True, tag="delta"):
    """Tokens sampled for one request. Several steps' tokens may come in one delta when the reader is slow."""

    id: str
    token_ids: tuple[int, ...]


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The request ran and is over; its cache blocks are free."""

    id: str
    reason: FinishReason
    usage: Usage
    queue_wait_ms: float = 0.0
    time_to_first_token_ms: float | None = None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request never ran. `detail` is a sentence for the person who sent it.

    `wait_reason` is what it last waited for, when its waiting time ran out.
    """

    id: str
    reason: AdmissionReason
    detail: str
    retry_after_ms: int | None = None
    wait_reason: WaitReason | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Computing the request raised an error; others go on."""

    id: str
    error: str
    usage: Usage


SequenceEvent = TokenDelta | Finished | Refused | Failed


class StepEvents(msgspec.Struct, frozen=True, tag="events"):
    """All that happened to this connection's requests since the last frame, in order."""

    step: int
    events: tuple[SequenceEvent, ...]


class SloRow(msgspec.Struct, frozen=True):
    """One key of `[slo]`: its target, its value in the last 10-second window and over five minutes.

    None means that there was nothing to measure.
    """

    name: str
    target: float
    now: float | None
    five_minutes: float | None
    minutes_in_breach: int


class WaitingRow(msgspec.Struct, frozen=True):
    """How many requests of a tenant and class wait, by what for."""

    tenant: str
    request_class: RequestClass
    reason: WaitReason
    count: int


class TenantRow(msgspec.Struct, frozen=True):
    """One tenant inside the engine. `service` is charged tokens per second of the last ten, unweighted."""

    tenant: str
    name: str
    weight: float
    running: int
    waiting: int
    service: float


class GuardrailEvent(msgspec.Struct, frozen=True):
    """One move of the guardrails and what was measured. `number` counts up within one life of the engine.

    `measure` names a key of `[slo]`, or is empty when an operator moved them. `is_dry_run`: nothing was done.
    """

    number: int
    at: float  # Unix time
    from_level: int
    to_level: int
    measure: str
    value: float | None
    target: float | None
    detail: str
    is_dry_run: bool = False


class Guardrails(msgspec.Struct, frozen=True):
    """Where the guardrails stand, and their latest moves, oldest first."""

    mode: GuardrailMode = GuardrailMode.AUTOMATIC
    level: int = 0
    events: tuple[GuardrailEvent, ...] = ()


class PrefixCounts(msgspec.Struct, frozen=True):
    """Prompt tokens looked up in the prefix cache at first admission, and of them found, since the start."""

    queried_tokens: int = 0
    hit_tokens: int = 0


class ClassCounts(msgspec.Struct, frozen=True):
    """Requests of one class inside the engine."""

    running: int
    waiting: int


class EngineStatus(msgspec.Struct, frozen=True, tag="status"):
    """Sent every second: health as forward progress, load, and the figures operators look at."""

    model: str
    step: int
    healthy: bool
    draining: bool
    uptime_seconds: float
    interactive: ClassCounts
    offline: ClassCounts
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks_free: int
    prompt_tokens_per_second: float
    generated_tokens_per_second: float
    slo: tuple[SloRow, ...]
    limits: EngineLimits
    window: Window
    instance: str = ""  # names one life of the engine process
    config_revision: int = 0
    config_error: str | None = None  # why the newest configuration is not in force
    guardrails: Guardrails = Guardrails()
    waiting: tuple[WaitingRow, ...] = ()
    tenants: tuple[TenantRow, ...] = ()
    fairness: float | None = None  # Jain's index of weighted service among tenants that had work; 1 is even
    prefix: PrefixCounts = PrefixCounts()


class RequestRecord(msgspec.Struct, frozen=True):
    """What the engine did for one ended request of a gateway's life; `account` is what came with it."""

    id: str
    usage: Usage
    account: bytes = b""


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Answer to a ReportQuery: every ended request of that life that the engine still remembers."""

    replica: str
    epoch: int
    records: tuple[RequestRecord, ...]


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """Why the engine closes this connection, in a sentence."""

    reason: str


EngineMessage = EngineDescription | StepEvents | EngineStatus | Report | Goodbye


class ProtocolError(Exception):
    """The peer sent a frame that is no message of this protocol."""


_encoder = msgspec.msgpack.Encoder()
_gateway_decoder = msgspec.msgpack.Decoder(
    GatewayMessage | Annotated[list[GatewayMessage], msgspec.Meta(min_length=1)]
)
_engine_decoder = msgspec.msgpack.Decoder(EngineMessage)


def encode(message: GatewayMessage | EngineMessage) -> bytes:
    """One frame holding `message`."""
    return _encoder.encode(message)


def encode_burst(messages: Sequence[GatewayMessage]) -> bytes:
    """One frame holding all `messages`, for an engine that reads bursts: at most `MOST_IN_BURST`."""
    return _encoder.encode(messages)


def decode_from_gateway(frame: bytes) -> list[GatewayMessage]:
    """The messages that a gateway sent, in their order; raises ProtocolError."""
    try:
        found = _gateway_decoder.decode(frame)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not a gateway's message: {error}") from error
    return found if isinstance(found, list) else [found]


def decode_from_engine(frame: bytes) -> EngineMessage:
    """The message that an engine sent; raises ProtocolError."""
    try:
        return _engine_decoder.decode(frame)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not an engine's message: {error}") from error
