"""All credit that this replica has been lent, and what live requests hold of it. It knows no store.

A request is let in by `take`, at once and without a lock, because no other coroutine runs meanwhile; `Hold`
is what it has then, until `end`. There is no counter to take back: live requests hold what is held.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gateway.quotas.credit import Credit
from gateway.quotas.limits import LimitId, QuotaLimit, Unit
from gateway.quotas.policy import Ask, BucketId, Granted, OpenBucket, use


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What one request needs of these limits. `output_floor` is the least output it can do with."""

    limits: tuple[QuotaLimit, ...]
    prompt_tokens: int
    output_cap: int
    output_floor: int


class Hold(msgspec.Struct, kw_only=True):
    """What one live request holds: so much of each credit. It grows when its output is extended."""

    parts: dict[Credit, float]
    output_tokens: int
    is_over: bool = False

    @property
    def token_credits(self) -> list[Credit]:
        """Those that count its tokens."""
        return [credit for credit in self.parts if credit.limit.unit is Unit.TOKENS]


class Wallet:
    """The credits of one replica, by limit and by bucket."""

    def __init__(self) -> None:
        self._by_bucket: dict[BucketId, Credit] = {}
        self._current: dict[LimitId, Credit] = {}

    def __iter__(self) -> Iterator[Credit]:
        return iter(list(self._by_bucket.values()))

    def credit(self, bucket: BucketId) -> Credit:
        """The credit of a bucket that is open here."""
        return self._by_bucket[bucket]

    # --- requests ----------------------------------------------------------------------------------------

    def take(self, want: Want, *, now: float) -> Hold | None:
        """Holds all that the request wants, if it is free here; otherwise nothing."""
        ask = self.ask(want, now=now)
        if ask is None or not self._is_free(ask):
            return None
        return self.hold(ask, Granted(want.output_cap))

    def grow(self, hold: Hold, output_tokens: int) -> bool:
        """Whether a live request got that much more output, out of what is free here."""
        ask = self.ask_more(hold, output_tokens)
        if not self._is_free(ask):
            return False
        self.add(hold, ask, Granted(output_tokens))
        return True

    def ask(self, want: Want, *, now: float) -> Ask | None:
        """A request's need in the store's words; None while a bucket for it is not open here."""
        credits = [self._open(limit, now=now) for limit in want.limits]
        found = [credit for credit in credits if credit is not None]
        if len(found) < len(credits):
            return None
        return Ask(
            ones=tuple(credit.bucket for credit in found if credit.limit.unit is Unit.REQUESTS),
            tokens=tuple(credit.bucket for credit in found if credit.limit.unit is Unit.TOKENS),
            prompt_tokens=want.prompt_tokens,
            output_cap=want.output_cap,
            output_floor=want.output_floor,
        )

    def ask_more(self, hold: Hold, output_tokens: int) -> Ask:
        """More output for a live request: of the buckets that it was let in by, whatever time it is."""
        tokens = tuple(credit.bucket for credit in hold.token_credits)
        return Ask(ones=(), tokens=tokens, prompt_tokens=0, output_cap=output_tokens, output_floor=1)

    def hold(self, ask: Ask, granted: Granted) -> Hold:
        """A request is let in."""
        hold = Hold(parts={}, output_tokens=0)
        self.add(hold, ask, granted)
        return hold

    def add(self, hold: Hold, ask: Ask, granted: Granted) -> None:
        """A request holds more than before."""
        assert not hold.is_over, "nobody would give it back"
        for bucket in ask.buckets:
            credit, amount = self._by_bucket[bucket], float(use(ask, granted, bucket))
            credit.hold(amount)
            hold.parts[credit] = hold.parts.get(credit, 0.0) + amount
        hold.output_tokens += granted.output_tokens

    def end(self, hold: Hold, *, used_tokens: int, counts_as_request: bool) -> dict[BucketId, float]:
        """The request is over, once; what it held and did not use is free. What it spent of each bucket."""
        spent = {}
        for credit, amount in hold.parts.items():
            is_tokens = credit.limit.unit is Unit.TOKENS
            spent[credit.bucket] = credit.end(
                held=amount, used=float(used_tokens if is_tokens else counts_as_request)
            )
        hold.parts.clear()
        hold.is_over = True
        return spent

    # --- buckets -----------------------------------------------------------------------------------------

    def missing(self, limits: Iterable[QuotaLimit], *, now: float) -> list[QuotaLimit]:
        """Those without an open bucket right now: not used here lately, changed, or their window is over."""
        return [limit for limit in limits if self._open(limit, now=now) is None]

    def open(self, limit: QuotaLimit, opened: OpenBucket, *, now: float) -> None:
        """From now on the limit is counted in this bucket."""
        credit = self._by_bucket.get(opened.id)
        if credit is None:
            ends_at = None if opened.seconds_left is None else now + opened.seconds_left
            credit = self._by_bucket[opened.id] = Credit(limit, opened.id, window_ends_at=ends_at)
        credit.limit, credit.is_retired = limit, False
        self._current[limit.id] = credit

    def follow(self, limits: Mapping[LimitId, QuotaLimit]) -> None:
        """These are the limits now: what was lent under others goes back."""
        for credit in self._by_bucket.values():
            if limits.get(credit.limit.id) != credit.limit:
                credit.is_retired = True

    def forget_idle(self) -> None:
        """Lets go of buckets that nothing is lent of."""
        for credit in self:
            if credit.is_idle:
                del self._by_bucket[credit.bucket]
                if self._current.get(credit.limit.id) is credit:
                    del self._current[credit.limit.id]

    def _open(self, limit: QuotaLimit, *, now: float) -> Credit | None:
        credit = self._current.get(limit.id)
        if credit is None or credit.is_retired or credit.limit != limit:
            return None
        is_over = credit.window_ends_at is not None and now >= credit.window_ends_at
        return None if is_over else credit

    def _is_free(self, ask: Ask) -> bool:
        granted = Granted(ask.output_cap)
        return all(self._by_bucket[bucket].free >= use(ask, granted, bucket) for bucket in ask.buckets)
