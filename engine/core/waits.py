"""Why what waits was not taken up by the latest step."""

from dataclasses import dataclass, field

from engine.core.sequence import SequenceClass, WaitReason


@dataclass
class Waits:
    """What a step noted while it looked for somebody to admit.

    `fronts` is why a class was looked at no further; `of` is what kept single sequences, by id, from being
    taken.
    """

    fronts: dict[SequenceClass, WaitReason] = field(default_factory=dict)
    of: dict[str, WaitReason] = field(default_factory=dict)

    def reason(
        self, sequence_class: SequenceClass, *, is_long: bool, lead: float, quantum: float
    ) -> WaitReason:
        """Why those wait whom the step did not come to.

        `lead` is how much more service their tenant has had than the one whose turn it is.
        """
        front = self.fronts.get(sequence_class, WaitReason.TOKEN_BUDGET)
        if front is WaitReason.CLASS_HOLD:
            return front
        if lead > quantum:
            return WaitReason.TENANT_SHARE
        if is_long and front is WaitReason.TOKEN_BUDGET:
            return WaitReason.LONG_LANE
        return front
