"""The first tables, and the role that serving processes take."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261129_first_tables"
down_revision = None
branch_labels = None
depends_on = None

# Roles belong to the whole server: another database's migration may have made this one, even just now.
# What serving may do is granted per table; audit rows can be added and read, never changed.
MAKE_ROLE = """
DO $$ BEGIN
    CREATE ROLE sluice_app NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$;
"""
LET_OWNER_SERVE = """
DO $$ BEGIN
    IF NOT pg_has_role(current_user, 'sluice_app', 'SET') THEN
        EXECUTE format('GRANT sluice_app TO %I', current_user);
    END IF;
END $$;
"""
CHANGED_WHILE_SERVING = (
    "tenant, project, api_key, quota_limit, quota_bucket, reservation, replica, usage_event, "
    "operator, operator_invite, operator_session"
)
GRANTS = (
    "GRANT USAGE ON SCHEMA public TO sluice_app",
    f"GRANT SELECT, INSERT, UPDATE, DELETE ON {CHANGED_WHILE_SERVING} TO sluice_app",
    "GRANT SELECT, INSERT ON audit_event TO sluice_app",
    "GRANT SELECT ON alembic_version TO sluice_app",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO sluice_app",
)


def upgrade() -> None:
    op.create_table('audit_event',
        sa.Column('id', sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column('at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('actor', sa.Text(), nullable=False),
        sa.Column('action', sa.Text(), nullable=False),
        sa.Column('subject', sa.Text(), nullable=False),
        sa.Column('before', postgresql.JSONB(), nullable=True),
        sa.Column('after', postgresql.JSONB(), nullable=True),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_audit_event'))
    )
    op.create_table('operator',
        sa.Column('id', sa.Text(), nullable=False),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('password_hash', sa.Text(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_operator')),
        sa.UniqueConstraint('name', name=op.f('uq_operator_name'))
    )
    op.create_table('operator_invite',
        sa.Column('token_hash', sa.LargeBinary(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('used_at', sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint('token_hash', name=op.f('pk_operator_invite'))
    )
    op.create_table('replica',
        sa.Column('epoch', sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('heartbeat_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.PrimaryKeyConstraint('epoch', name=op.f('pk_replica'))
    )
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
        sa.PrimaryKeyConstraint('request_id', name=op.f('pk_reservation'))
    )
    op.create_index(op.f('ix_reservation_tenant_id'), 'reservation', ['tenant_id'])
    op.create_table('tenant',
        sa.Column('id', sa.Text(), nullable=False),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('weight', sa.Double(), nullable=False),
        sa.Column('disabled_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('updated_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.CheckConstraint('weight > 0', name=op.f('ck_tenant_weight_positive')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_tenant')),
        sa.UniqueConstraint('name', name=op.f('uq_tenant_name'))
    )
    op.create_index(op.f('ix_tenant_updated_at'), 'tenant', ['updated_at'])
    op.create_table('usage_event',
        sa.Column('request_id', sa.Text(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('project_id', sa.Text(), nullable=False),
        sa.Column('key_id', sa.Text(), nullable=False),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('request_class', sa.Text(), nullable=False),
        sa.Column('prompt_tokens', sa.Integer(), nullable=False),
        sa.Column('cached_tokens', sa.Integer(), nullable=False),
        sa.Column('completion_tokens', sa.Integer(), nullable=False),
        sa.Column('outcome', sa.Text(), nullable=False),
        sa.Column('admitted_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('settled_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.PrimaryKeyConstraint('request_id', name=op.f('pk_usage_event'))
    )
    op.create_index(op.f('ix_usage_event_tenant_id_settled_at'), 'usage_event', ['tenant_id', 'settled_at'])
    op.create_table('operator_session',
        sa.Column('token_hash', sa.LargeBinary(), nullable=False),
        sa.Column('operator_id', sa.Text(), nullable=False),
        sa.Column('csrf_token', sa.Text(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('last_seen_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(['operator_id'], ['operator.id'], name=op.f('fk_operator_session_operator_id'), ondelete='CASCADE'),
        sa.PrimaryKeyConstraint('token_hash', name=op.f('pk_operator_session'))
    )
    op.create_index(op.f('ix_operator_session_operator_id'), 'operator_session', ['operator_id'])
    op.create_table('project',
        sa.Column('id', sa.Text(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_project_tenant_id')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_project')),
        sa.UniqueConstraint('tenant_id', 'name', name=op.f('uq_project_tenant_id_name'))
    )
    op.create_table('quota_bucket',
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('available', sa.Double(), nullable=False),
        sa.Column('refilled_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_quota_bucket_tenant_id')),
        sa.PrimaryKeyConstraint('tenant_id', name=op.f('pk_quota_bucket')),
        postgresql_with={'fillfactor': 50}
    )
    op.create_table('quota_limit',
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('kind', sa.Text(), nullable=False),
        sa.Column('value', sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind in ('concurrent_requests', 'tokens_per_minute')", name=op.f('ck_quota_limit_kind_known')),
        sa.CheckConstraint('value >= 0', name=op.f('ck_quota_limit_value_not_negative')),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_quota_limit_tenant_id')),
        sa.PrimaryKeyConstraint('tenant_id', 'kind', name=op.f('pk_quota_limit'))
    )
    op.create_table('api_key',
        sa.Column('id', sa.Text(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('project_id', sa.Text(), nullable=False),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('secret_hash', sa.LargeBinary(), nullable=False),
        sa.Column('redacted_value', sa.Text(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('updated_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.ForeignKeyConstraint(['project_id'], ['project.id'], name=op.f('fk_api_key_project_id')),
        sa.ForeignKeyConstraint(['tenant_id'], ['tenant.id'], name=op.f('fk_api_key_tenant_id')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_api_key'))
    )
    op.create_index(op.f('ix_api_key_tenant_id'), 'api_key', ['tenant_id'])
    op.create_index(op.f('ix_api_key_updated_at'), 'api_key', ['updated_at'])
    op.execute(MAKE_ROLE)
    op.execute(LET_OWNER_SERVE)
    for grant in GRANTS:
        op.execute(grant)


def downgrade() -> None:
    """The role stays: other databases of the server may serve as it."""
    op.execute("REVOKE ALL ON SCHEMA public FROM sluice_app")
    op.execute("REVOKE ALL ON alembic_version FROM sluice_app")
    op.drop_index(op.f('ix_api_key_updated_at'), table_name='api_key')
    op.drop_index(op.f('ix_api_key_tenant_id'), table_name='api_key')
    op.drop_table('api_key')
    op.drop_table('quota_limit')
    op.drop_table('quota_bucket')
    op.drop_table('project')
    op.drop_index(op.f('ix_operator_session_operator_id'), table_name='operator_session')
    op.drop_table('operator_session')
    op.drop_index(op.f('ix_usage_event_tenant_id_settled_at'), table_name='usage_event')
    op.drop_table('usage_event')
    op.drop_index(op.f('ix_tenant_updated_at'), table_name='tenant')
    op.drop_table('tenant')
    op.drop_index(op.f('ix_reservation_tenant_id'), table_name='reservation')
    op.drop_table('reservation')
    op.drop_table('replica')
    op.drop_table('operator_invite')
    op.drop_table('operator')
    op.drop_table('audit_event')
