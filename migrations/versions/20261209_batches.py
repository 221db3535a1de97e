"""Files and batches: their rows, and the limits of what a tenant may store and enqueue."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from migrations.row_security import lock_rows

revision = "20261209_batches"
down_revision = "20261208_weights"
branch_labels = None
depends_on = None

KINDS_BEFORE = (
    "'concurrent_requests', 'concurrent_long_requests', 'requests_per_minute', 'tokens_per_minute', "
    "'tokens_per_day', 'tokens_per_month', 'input_tokens', 'output_tokens'"
)
KINDS = f"{KINDS_BEFORE}, 'batch_enqueued_tokens', 'file_storage_bytes'"
STATUSES = (
    "'validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled'"
)
TABLES = ("file", "batch", "batch_item", "batch_result", "batch_share")


def _at(name):
    return sa.Column(name, sa.DateTime(timezone=True))


def _total(name, type_=sa.BigInteger):
    return sa.Column(name, type_(), nullable=False, server_default='0')


def upgrade() -> None:
    _know_kinds(KINDS)
    op.create_table('file',
        sa.Column('id', sa.Text(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('project_id', sa.Text(), nullable=False),
        sa.Column('purpose', sa.Text(), nullable=False),
        sa.Column('filename', sa.Text(), nullable=False),
        sa.Column('num_bytes', sa.BigInteger(), nullable=False),
        sa.Column('sha256', sa.LargeBinary(), nullable=False),
        sa.Column('blob', sa.Text(), nullable=False),
        sa.Column('idempotency_key', sa.Text()),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        _at('expires_at'),
        sa.CheckConstraint("purpose in ('batch', 'batch_output')", name=op.f('ck_file_purpose_known')),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_file_tenant_id')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_file')),
        sa.UniqueConstraint('tenant_id', 'project_id', 'idempotency_key', name=op.f('uq_file_tenant_id_project_id_idempotency_key')),
    )
    op.create_index('ix_file_tenant_id_project_id_created_at_id', 'file', ['tenant_id', 'project_id', 'created_at', 'id'])
    op.create_index('ix_file_expires_at', 'file', ['expires_at'])
    op.create_table('batch',
        sa.Column('id', sa.Text(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('project_id', sa.Text(), nullable=False),
        sa.Column('key_id', sa.Text(), nullable=False),
        sa.Column('endpoint', sa.Text(), nullable=False),
        sa.Column('model', sa.Text()),
        sa.Column('input_file_id', sa.Text(), nullable=False),
        sa.Column('input_blob', sa.Text(), nullable=False),
        sa.Column('completion_window', sa.Text(), nullable=False),
        sa.Column('output_expires_after_seconds', sa.Integer()),
        sa.Column('metadata', JSONB()),
        sa.Column('idempotency_key', sa.Text()),
        sa.Column('status', sa.Text(), server_default='validating', nullable=False),
        sa.Column('ends_as', sa.Text()),
        sa.Column('validator_epoch', sa.BigInteger()),
        sa.Column('errors', JSONB()),
        sa.Column('output_file_id', sa.Text()),
        sa.Column('error_file_id', sa.Text()),
        *(_total(f'num_{what}', sa.Integer) for what in ('items', 'completed', 'failed')),
        *(_total(f'{what}_tokens') for what in ('enqueued', 'prompt', 'cached', 'completion')),
        sa.Column('items_per_second', sa.Double()),
        sa.Column('sampled_num', sa.Integer()),
        _at('sampled_at'),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
        *(_at(f'{what}_at') for what in ('in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelling', 'cancelled')),
        sa.CheckConstraint(f"status in ({STATUSES})", name=op.f('ck_batch_status_known')),
        sa.CheckConstraint("ends_as in ('completed', 'expired', 'cancelled')", name=op.f('ck_batch_ends_as_known')),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_batch_tenant_id')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_batch')),
        sa.UniqueConstraint('tenant_id', 'project_id', 'idempotency_key', name=op.f('uq_batch_tenant_id_project_id_idempotency_key')),
    )
    op.create_index('ix_batch_tenant_id_project_id_created_at_id', 'batch', ['tenant_id', 'project_id', 'created_at', 'id'])
    op.create_index('ix_batch_tenant_id_created_at_id', 'batch', ['tenant_id', 'created_at', 'id'])
    op.create_index('ix_batch_status_created_at_id', 'batch', ['status', 'created_at', 'id'])
    op.create_index('ix_batch_created_at_id', 'batch', ['created_at', 'id'])
    op.create_index('ix_batch_input_file_id', 'batch', ['input_file_id'])
    op.create_index('ix_batch_open', 'batch', ['status', 'tenant_id'],
        postgresql_where=sa.text("status in ('validating', 'in_progress', 'finalizing', 'cancelling')"))
    op.create_index('ix_batch_validating', 'batch', ['tenant_id', 'created_at', 'id'],
        postgresql_where=sa.text("status = 'validating'"))
    op.create_table('batch_item',
        sa.Column('batch_id', sa.Text(), nullable=False),
        sa.Column('line', sa.Integer(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('custom_id', sa.Text(), nullable=False),
        sa.Column('first_byte', sa.BigInteger(), nullable=False),
        sa.Column('num_bytes', sa.Integer(), nullable=False),
        sa.Column('prompt_tokens', sa.Integer(), nullable=False),
        sa.Column('prefix', sa.BigInteger(), nullable=False),
        sa.Column('state', sa.Text(), server_default='pending', nullable=False),
        sa.Column('attempt', sa.Integer(), server_default='0', nullable=False),
        _at('not_before'),
        sa.Column('lease_epoch', sa.BigInteger()),
        sa.CheckConstraint("state in ('pending', 'leased', 'done', 'unrun')", name=op.f('ck_batch_item_state_known')),
        sa.PrimaryKeyConstraint('batch_id', 'line', name=op.f('pk_batch_item')),
        postgresql_with={'fillfactor': 70},
    )
    op.create_index('ix_batch_item_pending', 'batch_item', ['batch_id', 'prefix', 'line'],
        postgresql_where=sa.text("state = 'pending'"))
    op.create_index('ix_batch_item_leased', 'batch_item', ['lease_epoch', 'batch_id'],
        postgresql_where=sa.text("state = 'leased'"))
    op.create_table('batch_result',
        sa.Column('batch_id', sa.Text(), nullable=False),
        sa.Column('line', sa.Integer(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('is_error', sa.Boolean(), nullable=False),
        sa.Column('body', sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint('batch_id', 'line', name=op.f('pk_batch_result')),
    )
    op.create_table('batch_share',
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('served', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('tenant_id', name=op.f('pk_batch_share')),
    )
    for table in TABLES:
        lock_rows(table)
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(TABLES)} TO sluice_app")


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
    op.execute("DELETE FROM quota_limit WHERE kind IN ('batch_enqueued_tokens', 'file_storage_bytes')")
    _know_kinds(KINDS_BEFORE)


def _know_kinds(kinds: str) -> None:
    op.drop_constraint(op.f('ck_quota_limit_kind_known'), 'quota_limit', type_='check')
    op.create_check_constraint(op.f('ck_quota_limit_kind_known'), 'quota_limit', f'kind in ({kinds})')
