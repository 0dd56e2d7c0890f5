"""A router that Ray runs, as others meet it."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("ray")
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from fermata.deployments.control.health import cause_of
from fermata.foundation.errors import ConfigError, GoneError, NoAnswerError
from fermata.router.leadership.actor import Called


class Method:
    """Of an actor: fails as Ray has it fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def remote(self, *given: Any) -> Any:
        raise self.error


def met(error: Exception) -> BaseException:
    class Actor:
        mark = Method(error)

    with pytest.raises(Exception) as told:  # noqa: PT011
        asyncio.run(Called(Actor()).mark())
    return told.value


def test_whoever_was_ended_is_gone_for_good() -> None:
    assert isinstance(met(ActorDiedError()), GoneError)


def test_whoever_is_away_may_come_back() -> None:
    found = met(ActorUnavailableError("on its way", None))
    assert isinstance(found, NoAnswerError)
    assert not isinstance(found, GoneError)


def test_what_our_own_code_has_raised_there_stays() -> None:
    said = ConfigError("slo_ms=1 is below 3")
    found = met(RayTaskError("mark", "a traceback", said).as_instanceof_cause())
    assert isinstance(found, ConfigError)
    assert cause_of(found) is said
