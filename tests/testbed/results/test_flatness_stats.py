from swad.testbed.results.flatness_stats import FlatnessCurve, average_curves


def test_an_average_of_one_is_itself_and_radii_are_those_in_common():
    one = FlatnessCurve("A", (1.0, 2.0), (1.0, 2.0), (0.0, 1.0), (2.0, 3.0))
    other = FlatnessCurve("A", (2.0, 3.0), (4.0, 5.0), (4.0, 5.0), (4.0, 5.0))
    assert average_curves([one]) is one
    assert average_curves([one, other]).radii == (2.0,)
    assert average_curves([one, other]).mean == (3.0,)
