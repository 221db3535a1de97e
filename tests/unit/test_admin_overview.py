"""What the overview says of one engine."""

from admin_ui.pages.overview import waiting_rows
from engine.protocol import RequestClass, TenantRow, WaitingRow, WaitReason
from tests.builders.engine_messages import engine_status


def test_who_waits_is_told_by_name_in_the_words_of_the_api() -> None:
    acme = TenantRow(tenant="ten_1", name="acme", weight=1.0, running=1, waiting=12, service=3.0)
    waiting = WaitingRow(
        tenant="ten_1", request_class=RequestClass.INTERACTIVE, reason=WaitReason.TENANT_SHARE, count=12
    )
    rows = waiting_rows(engine_status(tenants=(acme,), waiting=(waiting,)))
    assert rows == [("acme, interactive", "12 tenant_share")]
