"""When which sequence has to be looked at because of its time; asks for no scan over all that wait."""

import heapq

from engine.core.sequence import Sequence


class Alarms:
    """One moment per sequence: the last that was set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._set_at: dict[str, float] = {}
        self._num_set = 0

    def set(self, sequence: Sequence, at: float) -> None:
        """Rings for `sequence` at `at`, and at no earlier time that was set for it."""
        self._set_at[sequence.id] = at
        self._num_set += 1
        heapq.heappush(self._heap, (at, self._num_set, sequence))

    def clear(self, sequence: Sequence) -> None:
        """Rings no more for `sequence`."""
        self._set_at.pop(sequence.id, None)
        if len(self._heap) > 2 * len(self._set_at) + 1024:
            self._heap = [alarm for alarm in self._heap if self._counts(alarm)]
            heapq.heapify(self._heap)

    def ring(self, now: float) -> list[Sequence]:
        """Whose moment has come; it has to be set again to come once more."""
        due: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now:
            alarm = heapq.heappop(self._heap)
            if self._counts(alarm):
                del self._set_at[alarm[2].id]
                due.append(alarm[2])
        return due

    @property
    def next_at(self) -> float | None:
        """When the next one rings, at the earliest; None when nothing is set."""
        return self._heap[0][0] if self._heap else None

    def _counts(self, alarm: tuple[float, int, Sequence]) -> bool:
        at, _, sequence = alarm
        return self._set_at.get(sequence.id) == at
