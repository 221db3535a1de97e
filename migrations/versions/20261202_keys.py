"""What a key may be used for, and a second secret while it is rotated."""

import sqlalchemy as sa
from alembic import op

revision = "20261202_keys"
down_revision = "20261201_engine_config"
branch_labels = None
depends_on = None

# Keys of before may do whatever they could.
ALL_SCOPES = "{inference,batch,files,models.read,usage.read}"


def upgrade() -> None:
    op.add_column('api_key', sa.Column('scopes', sa.ARRAY(sa.Text()), server_default=ALL_SCOPES, nullable=False))
    op.add_column('api_key', sa.Column('models', sa.ARRAY(sa.Text()), nullable=True))
    op.add_column('api_key', sa.Column('previous_secret_hash', sa.LargeBinary(), nullable=True))
    op.add_column('api_key', sa.Column('previous_redacted_value', sa.Text(), nullable=True))
    op.add_column('api_key', sa.Column('previous_expires_at', sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """An old secret that still lived on ends with this; keys may do everything again."""
    op.drop_column('api_key', 'previous_expires_at')
    op.drop_column('api_key', 'previous_redacted_value')
    op.drop_column('api_key', 'previous_secret_hash')
    op.drop_column('api_key', 'models')
    op.drop_column('api_key', 'scopes')
