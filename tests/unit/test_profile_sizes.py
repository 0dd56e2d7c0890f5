"""A family of input sizes on the command line."""

import pytest

from fermata.commands.profile import at_sizes
from fermata.foundation.errors import ConfigError


def test_each_model_is_measured_at_each_size() -> None:
    named = at_sizes(["faces:centerface", "imagenet:lite0"], "128, 224")
    assert named == [
        "faces:centerface@128",
        "faces:centerface@224",
        "imagenet:lite0@128",
        "imagenet:lite0@224",
    ]
    assert at_sizes(["digits:xl"], "") == ["digits:xl"]


@pytest.mark.parametrize(
    ("model", "sizes", "message"),
    [
        ("faces:centerface", "0", "sides of 1 to 9999 pixels"),
        ("faces:centerface@160", "128", "size already"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(model: str, sizes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        at_sizes([model], sizes)
