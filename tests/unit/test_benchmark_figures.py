"""Figures of benchmarks as they are printed."""

from collections.abc import Iterator

import pytest

from benchmarks.figures import Figure, present
from fermata.foundation.errors import ConfigError


def missing() -> Iterator[Figure]:
    yield Figure("first", 1.0, "", 1.0)
    raise ConfigError("data.csv: cannot be read; give a CSV file")


def test_what_was_given_wrongly_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^Cameras: data\.csv: cannot be read"):
        present("Cameras", missing(), as_json=True)
    assert capsys.readouterr().out == "", "half of the figures are none"
