"""The closest name is suggested, whatever its case and punctuation."""

import pytest

from swad.util.names import did_you_mean


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
