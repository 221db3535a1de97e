"""The models that a caller can ask for."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.api.context import context_of
from gateway.api.services import Services, services_of
from gateway.requests.catalogue import ServedModel

router = APIRouter(prefix="/v1/models", tags=["Models"])


@router.get("", summary="List models")
async def list_models(request: Request) -> JSONResponse:
    """Every model that an engine serves, or served last."""
    services = await _authenticated(request)
    return JSONResponse({"object": "list", "data": [_model(model) for model in services.catalogue.models]})


@router.get("/{model_id:path}", summary="Retrieve a model")
async def retrieve_model(request: Request, model_id: str) -> JSONResponse:
    """One model by its name."""
    services = await _authenticated(request)
    return JSONResponse(_model(services.catalogue.find(model_id)))


async def _authenticated(request: Request) -> Services:
    services = services_of(request.scope)
    await services.keys.authenticate(context_of(request.scope).authorization)
    return services


def _model(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "sluice"}
