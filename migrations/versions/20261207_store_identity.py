"""A name that no other store has: what a gateway keeps on its own disk says which store it is for."""

import sqlalchemy as sa
from alembic import op

revision = "20261207_store_identity"
down_revision = "20261206_operator_keys"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('store_identity',
        sa.Column('id', sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_store_identity'))
    )
    op.execute("INSERT INTO store_identity (id) VALUES (gen_random_uuid()::text)")
    op.execute("GRANT SELECT ON store_identity TO sluice_app")


def downgrade() -> None:
    op.drop_table('store_identity')
