"""`POST /v1/files`: a form with a file in it, which goes to the file store while it arrives.

Raw ASGI, as a framework would keep the file first, in memory or on a disk of its own choice.
"""

import logging
from typing import Final, assert_never

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.api.error_response import internal_error
from gateway.api.exchange import ClientLeftError, Exchange
from gateway.api.file_form import FileForm
from gateway.api.file_view import file_object
from gateway.api.multipart import Field, FileBegins, FileBytes, Form
from gateway.api.services import Services, services_of
from gateway.errors import GatewayError, InvalidRequest
from gateway.files.file import StoredFile
from gateway.filing import Upload
from gateway.idempotency import LONGEST_KEY
from gateway.keys.caller import Caller
from gateway.keys.scope import Scope as KeyScope

ROUTE: Final = "/v1/files"
FORM_BYTES: Final = 64 * 1024  # of a body, around the file

logger = logging.getLogger(__name__)


class UploadEndpoint:
    """An ASGI application for the one route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        services = services_of(scope)
        exchange = Exchange(
            scope, receive, send, write_timeout_seconds=services.settings.write_timeout_seconds
        )
        await exchange.carry(self._respond(services, exchange, dict(scope["headers"])))

    async def _respond(self, services: Services, exchange: Exchange, headers: dict[bytes, bytes]) -> None:
        caller: Caller | None = None
        stored: StoredFile | None = None
        try:
            caller = await services.keys.authenticate(exchange.context.authorization)
            caller.require(KeyScope.FILES)
            stored = await _store(services, exchange, caller, headers)
            await exchange.send_json(msgspec.json.encode(file_object(stored)), headers=[])
        except ClientLeftError:
            pass
        except Exception as error:
            await _fail(exchange, error)
        finally:
            _log(services, exchange, caller, stored)


async def _store(
    services: Services, exchange: Exchange, caller: Caller, headers: dict[bytes, bytes]
) -> StoredFile:
    """The file, stored. Raises GatewayError and ClientLeftError, and leaves nothing then."""
    form = Form(headers.get(b"content-type", b"").decode("latin-1"))
    key = _idempotency_key(headers)
    async with services.filing.uploading(caller, idempotency_key=key) as upload:
        upload.incoming.check_size(exchange.num_body_bytes - FORM_BYTES)
        fields = await _read(services, exchange, form, upload)
        return await services.filing.keep(upload, fields.wanted())


async def _read(services: Services, exchange: Exchange, form: Form, upload: Upload) -> FileForm:
    """Reads the form to its end; what is in the file goes on its way."""
    settings, fields, num_around = services.filing.settings, FileForm(), 0
    pieces = exchange.body_pieces(
        silence_seconds=settings.silence_seconds, within_seconds=settings.upload_seconds
    )
    async for piece in pieces:
        num_around += len(piece)
        for event in form.feed(piece):
            match event:
                case Field():
                    fields.note(event)
                case FileBegins():
                    fields.note_file(event)
                case FileBytes():
                    num_around -= len(event.data)
                    await upload.incoming.write(event.data)
                case _:
                    assert_never(event)
        if num_around > FORM_BYTES:
            raise InvalidRequest(f"The form has over {FORM_BYTES} bytes around its file.")
    if not form.is_whole:
        raise InvalidRequest("The form ends before its last boundary.")
    return fields


def _idempotency_key(headers: dict[bytes, bytes]) -> str | None:
    key = headers.get(b"idempotency-key", b"").decode("latin-1")
    if len(key) > LONGEST_KEY:
        raise InvalidRequest(f"An Idempotency-Key has at most {LONGEST_KEY} characters.")
    return key or None


async def _fail(exchange: Exchange, error: Exception) -> None:
    """Tells the caller of an error; of an unforeseen one, only that it was ours."""
    if not isinstance(error, GatewayError):
        logger.error("unexpected error", exc_info=error, extra=_context(exchange))
        error = internal_error(exchange.context.request_id)
    await exchange.leave_body()
    await exchange.send_error(error, headers=[])


def _log(services: Services, exchange: Exchange, caller: Caller | None, stored: StoredFile | None) -> None:
    services.metrics.responses.labels(ROUTE, str(exchange.status or "client left")).inc()
    fields = _context(exchange) | {"route": ROUTE, "status": exchange.status}
    if caller is not None:
        fields |= {"tenant": caller.tenant_name, "project": caller.project_name, "key": caller.key}
    if (error := exchange.error) is not None:
        fields |= {"error": error.code or error.type, "detail": error.message}
    elif stored is None:
        fields["error"] = "client_left"
    else:
        fields |= {"file": stored.id, "bytes": stored.num_bytes}
    if caller is not None and stored is not None:
        tenant = services.metrics.tenants.fold(caller.tenant_name)
        services.metrics.file_bytes.labels("in", tenant).inc(stored.num_bytes)
    logger.info("request", extra=fields)


def _context(exchange: Exchange) -> dict[str, object]:
    return {"trace_id": exchange.context.trace_id, "request_id": exchange.context.request_id}
