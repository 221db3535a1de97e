"""Whose seat is the next: how many sequences run at once, and for whom the last few seats are kept. Pure."""

import math
from dataclasses import dataclass

from engine.core.restraint import Restraint
from engine.core.roster import Roster
from engine.core.sequence import SequenceClass

OFFLINE_SEAT_FROM = 8  # seats: with so many, one is offline work's, if there is any
SPARE_PART = 16  # of the seats: for tenants that hold less than is due to them
COMPANY_SECONDS = 1.0


@dataclass(frozen=True)
class Company:
    """Who was served lately; looked up anew after `until`, in seconds of the loop's clock."""

    until: float
    tenants: frozenset[str]


class Seats:
    """`max_num_seqs` of them. Offline work gets up for people."""

    def __init__(self, roster: Roster, restraint: Restraint) -> None:
        self._roster = roster
        self._restraint = restraint
        self._company = Company(-math.inf, frozenset())

    def open_to(
        self, sequence_class: SequenceClass, tenants: set[str], now: float, *, quantum: float
    ) -> set[str]:
        """Of `tenants` those that may have one more seat.

        The last few are for those who hold less than is due to them, and are no more than a quantum ahead of
        others in service: so a flood that runs for long leaves a seat to whoever comes now and then. Alone a
        tenant has them all.
        """
        num_seats, running = self._restraint.limits.max_num_seqs, self._roster.num_running
        num_free = num_seats - running[SequenceClass.INTERACTIVE]
        if sequence_class is SequenceClass.OFFLINE:
            return tenants if num_free > running[SequenceClass.OFFLINE] else set()
        num_free -= self._num_kept_for_offline()
        if num_free <= 0 or num_free > num_seats // SPARE_PART:
            return tenants if num_free > 0 else set()
        share = self._roster.rooms[sequence_class].share
        company = self._served_lately(now) | tenants
        if len(company) == 1:
            return tenants
        seats_by_weight = num_seats / sum(share.weight(tenant) for tenant in company)
        holds, latest = self._roster.num_running_of, share.smallest + quantum
        return {
            each
            for each in tenants
            if holds(each) < max(1, seats_by_weight * share.weight(each)) and share.virtual(each) <= latest
        }

    def _num_kept_for_offline(self) -> int:
        """The seat in which offline work gets its floor while people would take all."""
        limits, restrictions = self._restraint.limits, self._restraint.restrictions
        has_work = (
            self._roster.num_running[SequenceClass.OFFLINE] or self._roster.rooms[SequenceClass.OFFLINE]
        )
        is_kept = limits.max_num_seqs >= OFFLINE_SEAT_FROM and limits.offline_min_share > 0
        return int(bool(has_work) and is_kept and not restrictions.pauses_offline)

    def _served_lately(self, now: float) -> frozenset[str]:
        if self._company.until <= now:
            self._company = Company(now + COMPANY_SECONDS, frozenset(self._roster.service.recent(now)))
        return self._company.tenants
