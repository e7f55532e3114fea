"""Names are compared without case and punctuation, and the closest one is suggested."""

import pytest

from swad.util.names import did_you_mean, plain


def test_case_and_punctuation_do_not_matter():
    assert plain("Office-Home") == plain("office_home") == plain("OFFICE HOME")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("Cartoons", "did you mean 'cartoon'?"),
        ("art painting", "did you mean 'art_painting'?"),
        ("zebra", ""),
        ("", ""),
    ],
)
def test_the_closest_name_is_suggested(name, answer):
    assert did_you_mean(name, ["art_painting", "cartoon", "photo"]) == answer
