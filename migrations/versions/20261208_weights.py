"""Weights of projects within their tenant, and of keys within their project; key caches hear of a project's."""

import sqlalchemy as sa
from alembic import op

revision = "20261208_weights"
down_revision = "20261207_store_identity"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ('project', 'api_key'):
        op.add_column(table, sa.Column('weight', sa.Double(), server_default=sa.text('1'), nullable=False))
        op.create_check_constraint(op.f(f'ck_{table}_weight_positive'), table, 'weight > 0')
    op.add_column('project', sa.Column('updated_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False))
    op.create_index(op.f('ix_project_updated_at'), 'project', ['updated_at'])


def downgrade() -> None:
    op.drop_index(op.f('ix_project_updated_at'), table_name='project')
    op.drop_column('project', 'updated_at')
    for table in ('api_key', 'project'):
        op.drop_constraint(op.f(f'ck_{table}_weight_positive'), table, type_='check')
        op.drop_column(table, 'weight')
