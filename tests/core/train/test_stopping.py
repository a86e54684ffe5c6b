"""When a run ends by its own wish."""

from core.train.stopping import StopConditions


def test_nothing_asked_never_stops() -> None:
    assert StopConditions().reason(elapsed_s=1e9, accuracies=[0.0, 1.0]) is None


def test_hours_are_counted_before_any_look() -> None:
    conditions = StopConditions(max_hours=0.5)
    assert conditions.reason(elapsed_s=1799.0, accuracies=[]) is None
    assert conditions.reason(elapsed_s=1800.0, accuracies=[]) == "max_hours 0.5 reached"


def test_target_looks_at_the_latest_accuracy_only() -> None:
    conditions = StopConditions(target=0.6)
    assert conditions.reason(elapsed_s=0, accuracies=[0.7, 0.5]) is None
    assert conditions.reason(elapsed_s=0, accuracies=[0.5, 0.6]) == "target 0.6 reached: held-out accuracy 0.6000"


def test_patience_counts_looks_since_the_first_best() -> None:
    conditions = StopConditions(patience=2)
    assert conditions.reason(elapsed_s=0, accuracies=[0.5, 0.5]) is None
    assert conditions.reason(elapsed_s=0, accuracies=[0.5, 0.5, 0.5]) == "no better look for 2 looks (patience 2)"
    assert conditions.reason(elapsed_s=0, accuracies=[0.5, 0.4, 0.6]) is None
