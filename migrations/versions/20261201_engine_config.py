"""Configuration of engines while they run, their history, and groups of tenants that share a cache."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261201_engine_config"
down_revision = "20261129_first_tables"
branch_labels = None
depends_on = None

CHANGED_WHILE_SERVING = "engine_config, engine_instance, engine_snapshot, guardrail_event"
GRANTS = (f"GRANT SELECT, INSERT, UPDATE, DELETE ON {CHANGED_WHILE_SERVING} TO sluice_app",)


def upgrade() -> None:
    op.create_table('engine_config',
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('revision', sa.BigInteger(), nullable=False),
        sa.Column('limits', postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column('weights', postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column('guardrails', postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column('updated_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.PrimaryKeyConstraint('model', name=op.f('pk_engine_config'))
    )
    op.create_table('engine_instance',
        sa.Column('instance', sa.Text(), nullable=False),
        sa.Column('address', sa.Text(), nullable=False),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('config_revision', sa.BigInteger(), nullable=False),
        sa.Column('config_error', sa.Text(), nullable=True),
        sa.Column('limits', postgresql.JSONB(), nullable=False),
        sa.Column('guardrail_mode', sa.Text(), nullable=False),
        sa.Column('guardrail_level', sa.Integer(), nullable=False),
        sa.Column('seen_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.PrimaryKeyConstraint('instance', name=op.f('pk_engine_instance'))
    )
    op.create_table('engine_snapshot',
        sa.Column('instance', sa.Text(), nullable=False),
        sa.Column('at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('address', sa.Text(), nullable=False),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('figures', postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint('instance', 'at', name=op.f('pk_engine_snapshot'))
    )
    op.create_index(op.f('ix_engine_snapshot_at'), 'engine_snapshot', ['at'])
    op.create_table('guardrail_event',
        sa.Column('instance', sa.Text(), nullable=False),
        sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column('address', sa.Text(), nullable=False),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('from_level', sa.Integer(), nullable=False),
        sa.Column('to_level', sa.Integer(), nullable=False),
        sa.Column('measure', sa.Text(), nullable=False),
        sa.Column('value', sa.Double(), nullable=True),
        sa.Column('target', sa.Double(), nullable=True),
        sa.Column('detail', sa.Text(), nullable=False),
        sa.Column('is_dry_run', sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint('instance', 'number', name=op.f('pk_guardrail_event'))
    )
    op.create_index(op.f('ix_guardrail_event_at'), 'guardrail_event', ['at'])
    op.add_column('tenant', sa.Column('cache_group', sa.Text(), nullable=True))
    for grant in GRANTS:
        op.execute(grant)


def downgrade() -> None:
    op.drop_column('tenant', 'cache_group')
    op.drop_index(op.f('ix_guardrail_event_at'), table_name='guardrail_event')
    op.drop_table('guardrail_event')
    op.drop_index(op.f('ix_engine_snapshot_at'), table_name='engine_snapshot')
    op.drop_table('engine_snapshot')
    op.drop_table('engine_instance')
    op.drop_table('engine_config')
