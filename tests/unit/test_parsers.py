"""The fuzzers themselves: their beginnings are taken, and a little chance breaks nothing."""

import io
import random

import numpy as np
import pytest
from PIL import Image

from fermata.deployments.models.pictures.decoding import PIXEL_BYTES_MAX
from fermata.fault_simulator.fuzzing.campaign import INPUT_BYTES, by_lines, mutated
from fermata.fault_simulator.fuzzing.codecs import server
from fermata.fault_simulator.fuzzing.line_coverage import reached_lines
from fermata.fault_simulator.fuzzing.parsers import (
    PARSERS,
    PIXELS_MAX,
    REGISTRY,
    SLACK_BYTES,
    bounded_memory,
)
from fermata.fault_simulator.fuzzing.targets import TARGETS
from fermata.foundation.errors import ConfigError
from fermata.foundation.logs import LOG
from fermata.profiles.store import load_file

FOUND = [
    # A JPEG with a subsampling that its decoder has no name for.
    (
        "pictures",
        "ffd8ffe00000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f141d1a1f"
        "1e1d1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e333432ffdb004301"
        "0909090c0b0c180d0d1832211c213232323232303029303030303030303030303030303030303030"
        "303030303030333536363133313537393933363935303034ffc00011080010001803011400021101"
        "0311ffffda000c030100021103463c0000",
    ),
]
"""Inputs that once broke a parser."""


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_is_refused_by_name_now(name: str, data: str) -> None:
    PARSERS[name].read(bytes.fromhex(data))


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_taken_and_short_chance_breaks_nothing(name: str) -> None:
    seeds = TARGETS[name].seeds()
    assert seeds
    for seed in seeds:
        TARGETS[name].read(seed)
    assert by_lines(name, 0.5, set())


def test_an_input_that_reaches_a_new_line_leads_further() -> None:
    with reached_lines() as reached:
        PARSERS["rest"].read(b"\x00\x02{}")
        before = len(reached)
        PARSERS["rest"].read(b"\x00\x02{}")
        assert len(reached) == before > 0
        PARSERS["rest"].read(PARSERS["rest"].seeds()[0])
        assert len(reached) > before


def test_a_codec_that_blames_the_server_is_found() -> None:
    """The stand-in frontend serves, and an error of its own is seen whoever caused it."""
    server().check()
    LOG.error("broken on purpose")
    with pytest.raises(AssertionError, match="broken on purpose"):
        server().check()
    server().check()


def test_a_picture_takes_no_more_memory_than_is_said() -> None:
    # All of this one, its shorter side as long as a model wants it, would be 85 MB.
    out = io.BytesIO()
    Image.new("RGB", (65_535, 1)).save(out, "PNG")
    PARSERS["pictures"].read(out.getvalue())
    with pytest.raises(AssertionError, match="bytes were taken"), bounded_memory(0):
        np.ones(PIXEL_BYTES_MAX * PIXELS_MAX + SLACK_BYTES + (1 << 28), np.uint8)


def test_seeds_reach_every_model() -> None:
    said = b"".join(PARSERS["inference"].seeds())
    assert all(name.encode() in said for name in REGISTRY.models)


def test_changes_come_from_their_seed_alone() -> None:
    seeds = [b"one", bytes(3 * INPUT_BYTES)]
    first = [mutated(random.Random(4), seeds) for _ in range(50)]
    assert first == [mutated(random.Random(4), seeds) for _ in range(50)]
    assert all(len(each) <= INPUT_BYTES for each in first)


def test_a_key_of_several_lines_is_refused_in_one(tmp_path: object) -> None:
    path = f"{tmp_path}/table.json"
    with open(path, "w") as file:
        file.write('{"schema": 1, "dev\\nice\\ud800": "cpu"}')
    with pytest.raises(ConfigError) as caught:
        load_file(path)
    assert r"dev\nice\ud800" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
