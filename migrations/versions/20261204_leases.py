"""Limits at every level, and credit that is lent to replicas."""

import sqlalchemy as sa
from alembic import op

revision = "20261204_leases"
down_revision = "20261203_ledger"
branch_labels = None
depends_on = None

KINDS = (
    "'concurrent_requests', 'concurrent_long_requests', 'requests_per_minute', 'tokens_per_minute', "
    "'tokens_per_day', 'tokens_per_month', 'input_tokens', 'output_tokens'"
)
GRANTS = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON quota_limit, quota_bucket, quota_lease, replica_load TO sluice_app",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO sluice_app",
)


def upgrade() -> None:
    """Limits move over; buckets begin anew, full, and no request may be under way."""
    op.rename_table('quota_limit', 'old_limit')
    op.execute("ALTER TABLE old_limit RENAME CONSTRAINT pk_quota_limit TO pk_old_limit")
    op.drop_table('quota_bucket')
    op.drop_table('reservation')
    op.create_table('quota_limit',
        sa.Column('id', sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('scope', sa.Text(), nullable=False),
        sa.Column('scope_id', sa.Text(), nullable=False),
        sa.Column('kind', sa.Text(), nullable=False),
        sa.Column('model', sa.Text(), nullable=True),
        sa.Column('request_class', sa.Text(), nullable=True),
        sa.Column('value', sa.BigInteger(), nullable=True),
        sa.Column('updated_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.CheckConstraint(f"kind in ({KINDS})", name=op.f('ck_quota_limit_kind_known')),
        sa.CheckConstraint("scope in ('tenant', 'project', 'key')", name=op.f('ck_quota_limit_scope_known')),
        sa.CheckConstraint("request_class in ('interactive', 'offline')", name=op.f('ck_quota_limit_request_class_known')),
        sa.CheckConstraint('value >= 0', name=op.f('ck_quota_limit_value_not_negative')),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_quota_limit_tenant_id')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_quota_limit')),
        sa.UniqueConstraint('tenant_id', 'scope', 'scope_id', 'kind', 'model', 'request_class',
                            name=op.f('uq_quota_limit_what'), postgresql_nulls_not_distinct=True),
    )
    op.execute("""
        INSERT INTO quota_limit (tenant_id, scope, scope_id, kind, value)
        SELECT tenant_id, 'tenant', tenant_id, kind, value FROM old_limit
    """)
    op.drop_table('old_limit')
    op.create_index('ix_quota_limit_updated_at', 'quota_limit', ['updated_at'])
    op.create_table('quota_bucket',
        sa.Column('id', sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column('limit_id', sa.BigInteger(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('window_start', sa.DateTime(timezone=True), nullable=False),
        sa.Column('capacity', sa.Double(), nullable=False),
        sa.Column('available', sa.Double(), nullable=False),
        sa.Column('outstanding', sa.Double(), server_default='0', nullable=False),
        sa.Column('refilled_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('wanted_until', sa.DateTime(timezone=True), server_default='-infinity', nullable=False),
        sa.ForeignKeyConstraint(['limit_id'], ['quota_limit.id'], name=op.f('fk_quota_bucket_limit_id')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_quota_bucket')),
        sa.UniqueConstraint('limit_id', 'window_start', name=op.f('uq_quota_bucket_limit_id_window_start')),
        postgresql_with={'fillfactor': 50},
    )
    op.create_table('quota_lease',
        sa.Column('bucket_id', sa.BigInteger(), nullable=False),
        sa.Column('epoch', sa.BigInteger(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('granted', sa.Double(), nullable=False),
        sa.Column('idle', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('bucket_id', 'epoch', name=op.f('pk_quota_lease')),
        postgresql_with={'fillfactor': 50},
    )
    op.create_index('ix_quota_lease_epoch', 'quota_lease', ['epoch'])
    op.create_table('replica_load',
        sa.Column('epoch', sa.BigInteger(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('num_live', sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint('epoch', 'tenant_id', name=op.f('pk_replica_load')),
    )
    op.add_column('replica', sa.Column('exchange_number', sa.BigInteger(), server_default='0', nullable=False))
    op.add_column('replica', sa.Column('fenced_at', sa.DateTime(timezone=True), nullable=True))
    for grant in GRANTS:
        op.execute(grant)


def downgrade() -> None:
    """Keeps the limits that the older schema can hold: two kinds, of whole tenants."""
    op.drop_column('replica', 'fenced_at')
    op.drop_column('replica', 'exchange_number')
    op.drop_table('replica_load')
    op.drop_table('quota_lease')
    op.drop_table('quota_bucket')
    op.drop_index('ix_quota_limit_updated_at', table_name='quota_limit')
    op.rename_table('quota_limit', 'new_limit')
    op.execute("ALTER TABLE new_limit RENAME CONSTRAINT pk_quota_limit TO pk_new_limit")
    op.create_table('quota_limit',
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('kind', sa.Text(), nullable=False),
        sa.Column('value', sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind in ('concurrent_requests', 'tokens_per_minute')", name=op.f('ck_quota_limit_kind_known')),
        sa.CheckConstraint('value >= 0', name=op.f('ck_quota_limit_value_not_negative')),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_quota_limit_tenant_id')),
        sa.PrimaryKeyConstraint('tenant_id', 'kind', name=op.f('pk_quota_limit')),
    )
    op.execute("""
        INSERT INTO quota_limit (tenant_id, kind, value)
        SELECT tenant_id, kind, value FROM new_limit
        WHERE scope = 'tenant' AND model IS NULL AND request_class IS NULL AND value IS NOT NULL
          AND kind IN ('concurrent_requests', 'tokens_per_minute')
    """)
    op.drop_table('new_limit')
    op.create_table('quota_bucket',
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('available', sa.Double(), nullable=False),
        sa.Column('refilled_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_quota_bucket_tenant_id')),
        sa.PrimaryKeyConstraint('tenant_id', name=op.f('pk_quota_bucket')),
        postgresql_with={'fillfactor': 50},
    )
    op.execute("""
        INSERT INTO quota_bucket (tenant_id, available)
        SELECT t.id, coalesce(l.value, 0) FROM tenant t
        LEFT JOIN quota_limit l ON l.tenant_id = t.id AND l.kind = 'tokens_per_minute'
    """)
    op.create_table('reservation',
        sa.Column('request_id', sa.Text(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('project_id', sa.Text(), nullable=False),
        sa.Column('key_id', sa.Text(), nullable=False),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('request_class', sa.Text(), nullable=False),
        sa.Column('epoch', sa.BigInteger(), nullable=False),
        sa.Column('tokens', sa.Integer(), nullable=True),
        sa.Column('admitted_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.PrimaryKeyConstraint('request_id', name=op.f('pk_reservation')),
    )
    op.create_index('ix_reservation_tenant_id', 'reservation', ['tenant_id'])
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON quota_limit, quota_bucket, reservation TO sluice_app")
