"""`sluice admin`."""

import typer

from deploy import admin_process, configuration
from deploy.commands.options import AdminPort, ConfigFile, Host

app = typer.Typer(add_completion=False)


@app.command()
def admin(host: Host = None, admin_port: AdminPort = None, config: ConfigFile = None) -> None:
    """Runs the admin UI."""
    configuration.use_config_file(config)
    configuration.set_options({"admin.host": host, "admin.port": admin_port})
    admin_process.main()
