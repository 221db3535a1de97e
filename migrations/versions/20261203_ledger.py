"""The ledger in partitions by time, its sums per minute and day, and what keeps them in shape."""

import sqlalchemy as sa
from alembic import op

revision = "20261203_ledger"
down_revision = "20261202_keys"
branch_labels = None
depends_on = None

ROLLUPS = ("usage_rollup_minute", "usage_rollup_day")
PARTITIONED = ("usage_event", *ROLLUPS)

# Serving may define nothing. These functions do for it what retention needs, and no more; they run as the owner
# of the schema, so their search path is pinned. Partitions lie in a schema of their own: who serves reaches
# their rows through the parent alone, and so only under the parent's policies.
#
# Attaching takes no lock that stops writers, and the default partition's for a moment. Dropping stops them for
# that moment; where it would have to wait for a long query, it gives up until it is called again.
MAKE_PARTITION = """
CREATE FUNCTION usage_make_partition(parent text, first timestamptz, next timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' AS $$
DECLARE
    name text := parent || to_char(first, '_YYYYMMDD');
    moment text := CASE parent WHEN 'usage_event' THEN 'admitted_at' ELSE 'bucket_start' END;
BEGIN
    IF to_regclass('usage_partitions.' || name) IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE usage_partitions.%I (LIKE public.%I INCLUDING ALL)', name, parent);
    -- Rows that came while nobody had made a partition for them.
    EXECUTE format('LOCK TABLE usage_partitions.%I IN ACCESS EXCLUSIVE MODE', parent || '_default');
    EXECUTE format(
        'WITH moved AS (DELETE FROM usage_partitions.%I WHERE %I >= $1 AND %I < $2 RETURNING *)'
        ' INSERT INTO usage_partitions.%I SELECT * FROM moved',
        parent || '_default', moment, moment, name
    ) USING first, next;
    EXECUTE format(
        'ALTER TABLE public.%I ATTACH PARTITION usage_partitions.%I FOR VALUES FROM (%L) TO (%L)',
        parent, name, first, next
    );
END $$;
"""
MAKE_PARTITIONS = """
CREATE FUNCTION usage_make_partitions(days int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET lock_timeout = '200ms' AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('usage partitions')) THEN
        RETURN;  -- somebody else is at it
    END IF;
    PERFORM public.usage_make_partition(parent, first, first + length)
    FROM (VALUES ('usage_event', 'day', interval '1 day'),
                 ('usage_rollup_minute', 'day', interval '1 day'),
                 ('usage_rollup_day', 'month', interval '1 month')) AS made(parent, unit, length),
         LATERAL generate_series(date_trunc(unit, now()), now() + make_interval(days => days), length) AS first;
END $$;
"""
DROP_PARTITIONS = """
CREATE FUNCTION usage_drop_partitions(parent text, keep_days int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET lock_timeout = '200ms' AS $$
DECLARE
    moment text := CASE parent WHEN 'usage_event' THEN 'admitted_at' ELSE 'bucket_start' END;
    kept_from timestamptz := date_trunc('day', now()) - make_interval(days => keep_days);
    old regclass;
BEGIN
    IF parent NOT IN ('usage_event', 'usage_rollup_minute', 'usage_rollup_day') OR keep_days < 1 THEN
        RAISE EXCEPTION 'nothing of % is dropped after % days', parent, keep_days;
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtext('usage partitions')) THEN
        RETURN;
    END IF;
    FOR old IN
        SELECT child.oid FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
        WHERE inhparent = ('public.' || parent)::regclass
          AND substring(pg_get_expr(relpartbound, child.oid) FROM $re$TO \\('([^']+)'\\)$re$)::timestamptz <= kept_from
    LOOP
        EXECUTE format('DROP TABLE %s', old);
    END LOOP;
    EXECUTE format('DELETE FROM usage_partitions.%I WHERE %I < $1', parent || '_default', moment) USING kept_from;
END $$;
"""
MAKE_PAST_PARTITIONS = """
SELECT usage_make_partition('usage_event', first, first + interval '1 day')
FROM (SELECT DISTINCT date_trunc('day', admitted_at, 'UTC') AS first FROM usage_event_before) AS past
"""
COLUMNS = (
    "request_id, tenant_id, project_id, key_id, model, request_class, "
    "prompt_tokens, cached_tokens, completion_tokens, outcome, admitted_at, settled_at"
)
MOVE_EVENTS = f"INSERT INTO usage_event ({COLUMNS}) SELECT {COLUMNS} FROM usage_event_before"
SUM_UP = """
INSERT INTO usage_rollup_{unit} (bucket_start, tenant_id, project_id, key_id, model, request_class,
                                 num_requests, prompt_tokens, cached_tokens, completion_tokens)
SELECT date_trunc('{unit}', admitted_at, 'UTC'), tenant_id, project_id, key_id, model, request_class,
       count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens)
FROM usage_event GROUP BY 1, 2, 3, 4, 5, 6
"""
FUNCTIONS = (
    "usage_make_partition(text, timestamptz, timestamptz)",
    "usage_make_partitions(int)",
    "usage_drop_partitions(text, int)",
)
# Of the ledger nothing is taken away but by retention.
GRANTS = (
    *(f"GRANT SELECT, INSERT, UPDATE ON {table} TO sluice_app" for table in PARTITIONED),
    *(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC" for function in FUNCTIONS),
    *(f"GRANT EXECUTE ON FUNCTION {function} TO sluice_app" for function in FUNCTIONS[1:]),
)


def upgrade() -> None:
    _set_aside()
    op.execute("CREATE SCHEMA usage_partitions")
    _create_usage_event(sa.BigInteger(), partition_by='RANGE (admitted_at)')
    for name in ROLLUPS:
        _create_rollup(name)
    for name in PARTITIONED:
        op.execute(f"CREATE TABLE usage_partitions.{name}_default PARTITION OF {name} DEFAULT")
    for statement in (MAKE_PARTITION, MAKE_PARTITIONS, DROP_PARTITIONS, *GRANTS):
        op.execute(statement)
    op.execute(MAKE_PAST_PARTITIONS)
    op.execute("SELECT usage_make_partitions(7)")
    op.execute(MOVE_EVENTS)
    op.drop_table('usage_event_before')
    for unit in ("minute", "day"):
        op.execute(SUM_UP.format(unit=unit))


def downgrade() -> None:
    for name in ROLLUPS:
        op.drop_table(name)
    _set_aside()
    _create_usage_event(sa.Integer())
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON usage_event TO sluice_app")
    op.execute(MOVE_EVENTS)
    op.drop_table('usage_event_before')
    for function in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION {function}")
    op.execute("DROP SCHEMA usage_partitions")


def _set_aside() -> None:
    """The events as they are, under names that are in nobody's way, and all of them to be seen by the owner."""
    op.rename_table('usage_event', 'usage_event_before')
    op.execute("ALTER TABLE usage_event_before NO FORCE ROW LEVEL SECURITY")
    for index in ('pk_usage_event', 'ix_usage_event_tenant_id_settled_at'):
        op.execute(f"ALTER INDEX {index} RENAME TO {index}_before")


def _create_usage_event(count: sa.types.TypeEngine, partition_by: str | None = None) -> None:
    key = ['request_id'] if partition_by is None else ['request_id', 'admitted_at']
    op.create_table('usage_event',
        sa.Column('request_id', sa.Text(), nullable=False),
        sa.Column('tenant_id', sa.Text(), nullable=False),
        sa.Column('project_id', sa.Text(), nullable=False),
        sa.Column('key_id', sa.Text(), nullable=False),
        sa.Column('model', sa.Text(), nullable=False),
        sa.Column('request_class', sa.Text(), nullable=False),
        sa.Column('prompt_tokens', count, nullable=False),
        sa.Column('cached_tokens', count, nullable=False),
        sa.Column('completion_tokens', count, nullable=False),
        sa.Column('outcome', sa.Text(), nullable=False),
        sa.Column('admitted_at', sa.DateTime(timezone=True), nullable=False),
        sa.Column('settled_at', sa.DateTime(timezone=True), server_default=sa.text('now()'), nullable=False),
        sa.PrimaryKeyConstraint(*key, name=op.f('pk_usage_event')),
        postgresql_partition_by=partition_by
    )
    op.create_index(op.f('ix_usage_event_tenant_id_settled_at'), 'usage_event', ['tenant_id', 'settled_at'])


def _create_rollup(name: str) -> None:
    key = ('bucket_start', 'tenant_id', 'project_id', 'key_id', 'model', 'request_class')
    totals = ('num_requests', 'prompt_tokens', 'cached_tokens', 'completion_tokens')
    op.create_table(name,
        sa.Column('bucket_start', sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(column, sa.Text(), nullable=False) for column in key[1:]),
        *(sa.Column(column, sa.BigInteger(), nullable=False) for column in totals),
        sa.PrimaryKeyConstraint(*key, name=op.f(f'pk_{name}')),
        postgresql_partition_by='RANGE (bucket_start)'
    )
    op.create_index(op.f(f'ix_{name}_tenant_id_bucket_start'), name, ['tenant_id', 'bucket_start'])
