from swad.results.labels import method_label


def test_methods_are_named_after_algorithm_and_weights() -> None:
    assert method_label("erm", "best") == "ERM (best)"
    assert method_label("coral", "last") == "CORAL (last)"
    assert method_label("coral", "swad") == "CORAL + SWAD"
    assert method_label("erm", None) == "ERM (selected step)"
