"""All of the management API: one line for each kind of thing."""

from typing import Final

from fastapi import APIRouter

from gateway.api.admin import audit, keys, limits, projects, tenants, usage

PREFIX: Final = "/admin/v1"
PARTS: Final = (tenants, projects, keys, limits, usage, audit)
SHAPES: Final = tuple(shape for part in PARTS for shape in part.SHAPES)

router = APIRouter(prefix=PREFIX)
for part in PARTS:
    router.include_router(part.router)
