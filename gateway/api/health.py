"""Whether this process lives, and whether it can serve. A hung engine is no reason to restart a gateway."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.api.services import services_of

router = APIRouter(tags=["Health"])


@router.get("/healthz", summary="This process's own loop answers")
async def healthz() -> JSONResponse:
    """Always 200."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", summary="This process can serve")
async def readyz(request: Request) -> JSONResponse:
    """200 with an engine and a store; 503 with what is missing otherwise."""
    missing = services_of(request.scope).readiness.missing
    if missing is None:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not ready", "reason": missing}, status_code=503)
