"""Keys of operators' programs, and what they page through: keys by age, the audit trail by who and by what."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261206_operator_keys"
down_revision = "20261205_row_security"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('operator_key',
        sa.Column('id', sa.Text(), nullable=False),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('scopes', postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column('digest', sa.LargeBinary(), nullable=False),
        sa.Column('redacted_value', sa.Text(), nullable=False),
        sa.Column('created_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
        sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_operator_key')),
        sa.UniqueConstraint('name', name=op.f('uq_operator_key_name'))
    )
    op.create_index(op.f('ix_audit_event_actor_id'), 'audit_event', ['actor', 'id'])
    op.create_index(op.f('ix_audit_event_subject_id'), 'audit_event', ['subject', 'id'])
    op.create_index(op.f('ix_api_key_created_at_id'), 'api_key', ['created_at', 'id'])
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON operator_key TO sluice_app")


def downgrade() -> None:
    op.drop_index(op.f('ix_api_key_created_at_id'), table_name='api_key')
    op.drop_index(op.f('ix_audit_event_subject_id'), table_name='audit_event')
    op.drop_index(op.f('ix_audit_event_actor_id'), table_name='audit_event')
    op.drop_table('operator_key')
