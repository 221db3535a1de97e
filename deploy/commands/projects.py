"""`sluice projects`: the parts of a tenant, each with keys of its own."""

from dataclasses import asdict
from typing import Annotated

import typer

from deploy.commands.options import AsJson, DatabaseUrl, DataDir
from deploy.commands.store_access import print_json, print_table, with_store
from deploy.commands.tenants import ACTOR
from deploy.configuration import DEFAULT_DATA_DIR
from gateway import project_administration
from gateway.db import Database
from gateway.tenants.project import Project

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Create, list and change projects of tenants."
)


@app.command()
def create(
    name: str,
    tenant: Annotated[str, typer.Option(help="The tenant's name.")],
    weight: Annotated[float, typer.Option(help="Share relative to the tenant's other projects.")] = 1.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Makes a project of a tenant."""

    async def verb(database: Database) -> Project:
        return await project_administration.create_project(database, ACTOR, tenant, name, weight=weight)

    project = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json(asdict(project))
        return
    options = f"--tenant {project.tenant_name} --project {project.name}"
    print(f"Project {project.name} of {project.tenant_name} made. A key for it: sluice keys create {options}")


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Shows projects, by tenant and name."""

    async def verb(database: Database) -> list[Project]:
        return list(await project_administration.list_projects(database, tenant))

    projects = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json([asdict(project) for project in projects])
        return
    print_table(
        ["id", "tenant", "name", "weight", "made"],
        [_row(project) for project in projects],
        empty="No projects yet: every tenant is made with one. sluice tenants create NAME",
    )


@app.command("set")
def set_(
    name: str,
    tenant: Annotated[str, typer.Option(help="The tenant's name.")],
    weight: Annotated[float, typer.Option(help="Share relative to the tenant's other projects.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Changes a project's weight; its next requests follow within 2 seconds."""

    async def verb(database: Database) -> Project:
        found = await project_administration.find_project(database, tenant, name)
        return await project_administration.set_project_weight(database, ACTOR, found.id, weight)

    project = with_store(verb, data_dir=data_dir, database_url=database_url)
    if as_json:
        print_json(asdict(project))
        return
    print(f"Project {project.name} of {project.tenant_name} has the weight {project.weight:g}.")


def _row(project: Project) -> list[object]:
    made = f"{project.created_at:%Y-%m-%d %H:%M}"
    return [project.id, project.tenant_name, project.name, f"{project.weight:g}", made]
