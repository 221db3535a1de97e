"""The models that a caller can ask for."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.api.context import context_of
from gateway.api.services import services_of
from gateway.keys.caller import Caller
from gateway.keys.scope import Scope
from gateway.requests.catalogue import ServedModel

router = APIRouter(prefix="/v1/models", tags=["Models"])


@router.get("", summary="List models")
async def list_models(request: Request) -> JSONResponse:
    """Every model that an engine serves, or served last, and that the key may use."""
    caller = await _reader(request)
    models = services_of(request.scope).catalogue.models(allowed=caller.models)
    return JSONResponse({"object": "list", "data": [_model(model) for model in models]})


@router.get("/{model_id:path}", summary="Retrieve a model")
async def retrieve_model(request: Request, model_id: str) -> JSONResponse:
    """One model by its name."""
    caller = await _reader(request)
    catalogue = services_of(request.scope).catalogue
    return JSONResponse(_model(catalogue.find(model_id, allowed=caller.models)))


async def _reader(request: Request) -> Caller:
    """Who asks. Raises InvalidApiKey, PermissionDenied or StoreUnavailable."""
    services = services_of(request.scope)
    caller = await services.keys.authenticate(context_of(request.scope).authorization)
    caller.require(Scope.MODELS_READ)
    return caller


def _model(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "sluice"}
