"""Labels that come from outside stay few."""

from gateway.metrics import LabelCap


def test_values_beyond_the_cap_are_folded() -> None:
    cap = LabelCap(2)
    assert [cap.fold(value) for value in ["a", "b", "c", "a", "c"]] == ["a", "b", "other", "a", "other"]
