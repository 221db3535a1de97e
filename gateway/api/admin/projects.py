"""`/admin/v1/projects`: the parts of a tenant, each with keys of its own."""

from datetime import datetime
from typing import Final, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from gateway import project_administration
from gateway.api.admin.described import answered, described
from gateway.api.admin.desk import Desk, desk_for
from gateway.api.admin.pages import After, Limit, Named, Page, page_of
from gateway.api.admin.tenants import Weight
from gateway.api.body import read_body
from gateway.operators.scopes import OperatorScope
from gateway.tenants.ids import ProjectId
from gateway.tenants.project import Project

router = APIRouter(prefix="/projects", tags=["Management: projects"])


class NewProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A project to be made; its name is unique within its tenant."""

    tenant: str
    name: str
    weight: Weight = 1.0


class ProjectChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A project's other share of what its tenant gets."""

    weight: Weight


class ProjectView(msgspec.Struct, frozen=True):
    """A part of a tenant."""

    id: str
    tenant: str
    tenant_name: str
    name: str
    weight: float
    created_at: datetime
    object: Literal["project"] = "project"


SHAPES: Final = (NewProject, ProjectChanges, ProjectView, Page[ProjectView])


@router.post(
    "",
    summary="Create a project",
    **described(ProjectView, body=NewProject, status=201, errors=(404, 409)),
)
async def create_project(request: Request, desk: Desk = desk_for(OperatorScope.TENANTS_WRITE)) -> Response:
    """409 when the tenant has one of this name."""
    body = await read_body(request, NewProject)
    project = await project_administration.create_project(
        desk.database, desk.actor, body.tenant, body.name, weight=body.weight
    )
    return answered(_view(project), status=201)


@router.get("", summary="List projects by tenant and name", **described(Page[ProjectView], errors=(404,)))
async def list_projects(
    tenant: Named = None,
    limit: Limit = 20,
    after: After = None,
    desk: Desk = desk_for(OperatorScope.TENANTS_READ),
) -> Response:
    """A page of everybody's projects, or of one tenant's."""
    found = await project_administration.page_of_projects(desk.database, tenant, limit=limit + 1, after=after)
    return answered(page_of([_view(project) for project in found], limit=limit))


@router.patch(
    "/{project}",
    summary="Change a project's weight",
    **described(ProjectView, body=ProjectChanges, errors=(404,)),
)
async def change_project(
    request: Request, project: str, desk: Desk = desk_for(OperatorScope.TENANTS_WRITE)
) -> Response:
    """By its id; the next requests follow within 2 seconds. May be repeated."""
    body = await read_body(request, ProjectChanges)
    changed = await project_administration.set_project_weight(
        desk.database, desk.actor, ProjectId(project), body.weight
    )
    return answered(_view(changed))


def _view(project: Project) -> ProjectView:
    return ProjectView(
        id=project.id,
        tenant=project.tenant,
        tenant_name=project.tenant_name,
        name=project.name,
        weight=project.weight,
        created_at=project.created_at,
    )
