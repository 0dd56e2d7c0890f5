"""How many frontends there are where the configuration does not say."""

import os

import pytest

from fermata.deployments.config.deployment import FrontendConfig


@pytest.mark.parametrize(
    ("cores", "frontends"),
    [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (8, 2), (16, 4), (32, 8), (64, 8)],
)
def test_one_may_die_and_clients_reconnect_where_there_are_cores_for_two(
    monkeypatch: pytest.MonkeyPatch, cores: int, frontends: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert FrontendConfig().processes == frontends
    assert FrontendConfig(processes=1).processes == 1
