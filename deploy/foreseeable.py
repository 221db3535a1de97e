"""What may go wrong in any command, and the one line that a person is told then.

Imported when something did go wrong: it knows the errors of all libraries.
"""

from sqlalchemy.exc import OperationalError, ProgrammingError

from deploy.data_directory import DataDirectoryError
from deploy.embedded_postgres import EmbeddedPostgresError
from deploy.failure import Failure
from deploy.listener import AddressUnavailable
from deploy.models import ModelNotAvailable
from deploy.supervisor import ChildFailed
from gateway.errors import JournalUnavailable, StoreUnavailable, UnstorableText
from gateway.setting_sources import ConfigurationError
from gateway.tenants.errors import AdministrationError

FORESEEABLE = (
    AddressUnavailable,
    AdministrationError,
    ChildFailed,
    ConfigurationError,
    DataDirectoryError,
    EmbeddedPostgresError,
    Failure,
    JournalUnavailable,
    ModelNotAvailable,
    StoreUnavailable,
    UnstorableText,
)


def line_for(error: Exception) -> str | None:
    """What to tell the person at the terminal, or None for what nobody foresaw."""
    match error:
        case OperationalError():
            return f"the database cannot be reached: {str(error.orig).splitlines()[0]}"
        case ProgrammingError():
            return f"the database refuses: {str(error.orig).splitlines()[0]}"
        case _:
            return str(error) if isinstance(error, FORESEEABLE) else None
