"""Rows of a tenant are seen and changed only by transactions that name the tenant, or say that they span all."""

from migrations.row_security import lock_rows, unlock_rows

revision = "20261205_row_security"
down_revision = "20261204_leases"
branch_labels = None
depends_on = None

WITH_A_TENANT_ID = (
    "api_key",
    "project",
    "quota_bucket",
    "quota_lease",
    "quota_limit",
    "replica_load",
    "usage_event",
    "usage_rollup_day",
    "usage_rollup_minute",
)


def upgrade() -> None:
    lock_rows("tenant", tenant_column="id")
    for table in WITH_A_TENANT_ID:
        lock_rows(table)


def downgrade() -> None:
    for table in WITH_A_TENANT_ID:
        unlock_rows(table)
    unlock_rows("tenant")
