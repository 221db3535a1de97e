"""Locks the rows of a table to the tenants that a transaction names: the second wall behind every WHERE.

A transaction sees what its settings say (`gateway/db.py`): the rows of `sluice.tenants`, or all of them under
`sluice.reach`. Without either it sees none. Forced, so that the table's owner is held to it, too.
"""

from typing import Final

from alembic import op

# In sub-selects, so that the settings are read once for a statement and not once for a row.
# A setting of a transaction that is over reads as an empty text, not as absent.
_VISIBLE: Final = """
    (SELECT current_setting('sluice.reach', true) = 'all')
    OR {column} = ANY ((SELECT nullif(current_setting('sluice.tenants', true), '')::text[])::text[])
"""


def lock_rows(table: str, *, tenant_column: str = "tenant_id") -> None:
    """Every migration that makes a table with a tenant in it calls this."""
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY whose_rows ON {table} USING ({_VISIBLE.format(column=tenant_column)})")


def unlock_rows(table: str) -> None:
    """The way back."""
    op.execute(f"DROP POLICY whose_rows ON {table}")
    op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
