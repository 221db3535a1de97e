"""Every error a caller of the gateway can get, named by what the caller may do about it.

    GatewayError
    ├── InvalidRequest          400  mend the request (`param` names the culprit)
    │   ├── ContextLengthExceeded
    │   └── UnstorableText
    ├── InvalidApiKey           401  use a valid key
    ├── PermissionDenied        403  use a key that may do this
    ├── NotFound                404  name a thing that exists
    ├── AlreadyTaken            409  choose another name
    ├── StillNeeded             409  wait for the end of what needs it
    ├── RequestTooLarge         413  send less
    ├── RangeNotSatisfiable     416  ask for bytes that are there
    ├── LimitReached            429  wait, or ask for a higher limit
    ├── ServerOverloaded        503  try again
    ├── FileStoreUnavailable    503  try again
    ├── StoreUnavailable        503  try again
    ├── JournalUnavailable      503  try again
    ├── DeadlineExceeded        504  give it more time
    └── InternalError           500  give up; quote the request id

One place (`gateway/api/error_response.py`) turns them into HTTP. `reason` is why a request was not admitted,
from the closed set that engines, metrics and logs use too; `code` stays what OpenAI's clients know.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from engine.protocol import AdmissionReason, WaitReason

FILES_RETRY_SECONDS: Final = 5.0
LONGEST_MESSAGE: Final = 500  # characters: messages quote what was sent, and are logged


class GatewayError(Exception):
    """A foreseeable failure: its message is one sentence for the person who sent the request."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: float | None = None,
        should_retry: bool | None = None,
        reason: AdmissionReason | None = None,
        wait_reason: WaitReason | None = None,
    ) -> None:
        self.message = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}…"
        super().__init__(self.message)
        self.param = param
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        self.should_retry = should_retry
        self.reason = reason
        self.wait_reason = wait_reason


class InvalidRequest(GatewayError):
    """The body or a header cannot be used."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and output together are longer than the model's context."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(
            message,
            param=param,
            code="context_length_exceeded",
            reason=AdmissionReason.CONTEXT_TOO_LONG,
        )


class UnstorableText(InvalidRequest):
    """A text holds what the store can neither keep nor look for."""

    def __init__(self) -> None:
        super().__init__(
            "A text holds a character that cannot be stored or looked for: NUL, or one that is not Unicode.",
            code="invalid_value",
        )


class InvalidApiKey(GatewayError):
    """The store knows no such key, or knows that it was revoked or has expired."""

    status = 401
    type = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


class PermissionDenied(GatewayError):
    """The key is valid, but not for this use."""

    status = 403
    type = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="insufficient_permissions")


class NotFound(GatewayError):
    """What the request names does not exist, or not for this caller."""

    status = 404
    type = "invalid_request_error"


class AlreadyTaken(GatewayError):
    """The name belongs to another thing."""

    status = 409
    type = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="already_exists")


class StillNeeded(GatewayError):
    """What is to go is needed by something that has not ended. Clients would retry a 409 at once: in vain."""

    status = 409
    type = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="still_needed", should_retry=False)


class RequestTooLarge(GatewayError):
    """The body is over the size cap."""

    status = 413
    type = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="request_too_large")


class RangeNotSatisfiable(GatewayError):
    """None of the bytes that are asked for is there."""

    status = 416
    type = "invalid_request_error"


@dataclass(frozen=True, kw_only=True)
class LimitStanding:
    """How a reached limit, `name`, stands; `reset_seconds` is the time until it is free of use again."""

    limit: int
    remaining: int
    reset_seconds: float
    name: str = ""


class LimitReached(GatewayError):
    """A limit of the tenant is used up; nothing was counted."""

    status = 429

    def __init__(
        self,
        message: str,
        *,
        limit_type: str,
        code: str,
        retry_after_seconds: float | None,
        should_retry: bool | None = None,
        standing: "LimitStanding | None" = None,
        reason: AdmissionReason | None = None,
    ) -> None:
        super().__init__(
            message,
            code=code,
            retry_after_seconds=retry_after_seconds,
            should_retry=should_retry,
            reason=reason,
        )
        self.limit_type = limit_type  # "tokens" or "requests": the wire's `type` of this error
        self.standing = standing


class ServerOverloaded(GatewayError):
    """No engine can take the request now."""

    status = 503
    type = "service_unavailable_error"

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float = 1.0,
        reason: AdmissionReason | None = None,
        wait_reason: WaitReason | None = None,
    ) -> None:
        super().__init__(
            message,
            code="server_is_overloaded",
            retry_after_seconds=retry_after_seconds,
            reason=reason,
            wait_reason=wait_reason,
        )


class StoreUnavailable(GatewayError):
    """The database does not answer, so the request cannot be checked or counted."""

    status = 503
    type = "service_unavailable_error"

    def __init__(self, message: str, *, retry_after_seconds: float = 2.0) -> None:
        super().__init__(message, code="store_unavailable", retry_after_seconds=retry_after_seconds)


class FileStoreUnavailable(GatewayError):
    """Files can be neither written nor read right now."""

    status = 503
    type = "service_unavailable_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="file_store_unavailable", retry_after_seconds=FILES_RETRY_SECONDS)


class JournalUnavailable(GatewayError):
    """What a request uses cannot be written down on this machine, so it is not served."""

    status = 503
    type = "service_unavailable_error"

    def __init__(self, message: str, *, retry_after_seconds: float = 2.0) -> None:
        super().__init__(message, code="journal_unavailable", retry_after_seconds=retry_after_seconds)


class DeadlineExceeded(GatewayError):
    """The request's time ran out before its answer was whole."""

    status = 504
    type = "timeout_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="request_timeout", should_retry=False)


class InternalError(GatewayError):
    """Something failed that should not have."""

    status = 500
    type = "server_error"
