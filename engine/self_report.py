"""What an engine says of itself: what it serves, how it is, how much each gateway may send. Pure."""

from dataclasses import dataclass

from engine import protocol, translation
from engine.core.limits import Limits
from engine.core.rungs import Restrictions
from engine.core.sequence import SequenceClass
from engine.loop import Snapshot
from engine.models.description import ModelDescription

MAX_ROWS = 64  # of tenants in a status: it is sent every second


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What a gateway has to know of the model, under which name it is asked for. `created` is a Unix time."""

    name: str
    created: int
    text: ModelDescription
    vocab_size: int
    dtype: str
    device: str


def description_of(
    model: ServedModel, *, limits: Limits, window: protocol.Window
) -> protocol.EngineDescription:
    """All that a gateway needs to know, said once when it connects."""
    return protocol.EngineDescription(
        major=protocol.PROTOCOL_MAJOR,
        minor=protocol.PROTOCOL_MINOR,
        model=model.name,
        created=model.created,
        tokenizer_json=model.text.tokenizer_json,
        chat_template=model.text.chat_template,
        bos_token=model.text.bos_token,
        eos_token=model.text.eos_token,
        eos_token_ids=model.text.eos_token_ids,
        vocab_size=model.vocab_size,
        limits=translation.limits_of(limits),
        window=window,
        dtype=model.dtype,
        device=model.device,
    )


def window_of(limits: Limits, restrictions: Restrictions, *, num_gateways: int) -> protocol.Window:
    """Each gateway's share: enough waits here to fill the next steps, the rest in the gateways.

    While offline work is paused all of it waits there, where it keeps its place.
    """
    interactive = -(-2 * limits.max_num_seqs // max(1, num_gateways))
    offline = 0 if restrictions.pauses_offline else -(-interactive // 2)
    return protocol.Window(interactive=interactive, offline=offline)


def status_of(
    snapshot: Snapshot,
    *,
    model: ServedModel,
    instance: str,
    config_revision: int | None,
    config_error: str | None,
    unix_time_ahead: float,
    window: protocol.Window,
    is_healthy: bool,
    is_draining: bool,
    uptime_seconds: float,
) -> protocol.EngineStatus:
    """The figures of one moment.

    `config_revision` is one that was seen but is not in force; `unix_time_ahead` of the loop's clock, in
    seconds.
    """
    return protocol.EngineStatus(
        model=model.name,
        step=snapshot.step,
        healthy=is_healthy,
        draining=is_draining,
        uptime_seconds=uptime_seconds,
        interactive=_counts(snapshot, SequenceClass.INTERACTIVE),
        offline=_counts(snapshot, SequenceClass.OFFLINE),
        kv_blocks_total=snapshot.num_blocks,
        kv_blocks_used=snapshot.num_used_blocks,
        kv_blocks_cached=snapshot.num_cached_blocks,
        kv_blocks_free=snapshot.num_free_blocks,
        prompt_tokens_per_second=snapshot.prompt_tokens_per_second,
        generated_tokens_per_second=snapshot.generated_tokens_per_second,
        slo=tuple(translation.slo_row_of(reading) for reading in snapshot.slo),
        limits=translation.limits_of(snapshot.limits),
        window=window,
        instance=instance,
        config_revision=snapshot.config_revision if config_revision is None else config_revision,
        config_error=config_error,
        guardrails=translation.guardrails_of(
            mode=snapshot.guardrail_mode,
            level=snapshot.guardrail_level,
            moves=snapshot.guardrail_moves,
            unix_time_ahead=unix_time_ahead,
        ),
        waiting=_waiting_rows(snapshot),
        tenants=_tenant_rows(snapshot),
        fairness=snapshot.fairness,
        prefix=protocol.PrefixCounts(
            queried_tokens=snapshot.num_prefix_queried_tokens, hit_tokens=snapshot.num_prefix_hit_tokens
        ),
    )


def _waiting_rows(snapshot: Snapshot) -> tuple[protocol.WaitingRow, ...]:
    """The largest counts first."""
    rows = sorted(snapshot.waiting_reasons.items(), key=lambda row: -row[1])[:MAX_ROWS]
    return tuple(
        protocol.WaitingRow(
            tenant=tenant,
            request_class=protocol.RequestClass(sequence_class.value),
            reason=protocol.WaitReason(reason.value),
            count=count,
        )
        for (tenant, sequence_class, reason), count in rows
    )


def _tenant_rows(snapshot: Snapshot) -> tuple[protocol.TenantRow, ...]:
    """Whoever was served most of late first."""
    rates = snapshot.service_rates
    loads = sorted(snapshot.tenants, key=lambda load: -rates.get(load.tenant, 0.0))[:MAX_ROWS]
    return tuple(
        protocol.TenantRow(
            tenant=load.tenant,
            name=load.name,
            weight=load.weight,
            running=load.running,
            waiting=load.waiting,
            service=rates.get(load.tenant, 0.0),
        )
        for load in loads
    )


def _counts(snapshot: Snapshot, sequence_class: SequenceClass) -> protocol.ClassCounts:
    return protocol.ClassCounts(
        running=snapshot.running[sequence_class], waiting=snapshot.waiting[sequence_class]
    )
