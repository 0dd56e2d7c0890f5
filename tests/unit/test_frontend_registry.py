"""Models by name and version, and which of them serve."""

import asyncio

import pytest

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.repository import (
    FixedRepositoryError,
    LoadFailedError,
    Repository,
)
from fermata.deployments.specs.registry import Registry, UnknownModelError, UnloadedModelError
from fermata.foundation.errors import ConfigError
from fermata.router.links.messages import Place, Unavailable
from fermata.router.links.unavailability import UNLOADED, Unavailability, UnavailableCause


def entry(name: str, version: int, variant: str) -> dict[str, object]:
    variants = [{"name": variant, "alpha_ms": 1, "beta_ms": 1}]
    return {"name": name, "version": version, "slo_ms": 50, "variants": variants}


def failed(reason: str) -> Unavailability:
    return Unavailability(UnavailableCause.LOAD_FAILED, reason)


def pair() -> Registry:
    applications = [entry("m", 2, "two"), entry("m", 1, "one"), entry("n", 1, "other")]
    return registry(read_config({"applications": applications}))


def test_the_highest_version_that_is_loaded_serves() -> None:
    models = pair()
    model, version = models.find("m")
    assert (version, model.variants, model.versions) == ("2", ("two",), ("1", "2"))
    models.set_unavailable({"m@2": UNLOADED})
    model, version = models.find("m")
    assert (version, model.variants) == ("1", ("one",))
    assert model.application(version) == "m@1"


@pytest.mark.parametrize(("name", "version"), [("m@1", ""), ("m", "1")])
def test_versions_are_named_in_either_way(name: str, version: str) -> None:
    model, found = pair().find(name, version)
    assert (found, model.variants) == ("1", ("one",))


@pytest.mark.parametrize(("name", "version"), [("m@x", "1"), ("m@1", "2"), ("m@", "1")])
def test_a_model_is_found_by_its_stem_and_no_other_is_told_of(name: str, version: str) -> None:
    # A tenant of `m` alone passes with any of these names.
    with pytest.raises(UnknownModelError, match="give one of the two") as caught:
        pair().find(name, version)
    assert "use one of" not in str(caught.value)
    model, found = pair().find("m@1", "1")
    assert (found, model.variants) == ("1", ("one",))


def test_a_name_with_one_version_keeps_its_name_with_the_router() -> None:
    model, version = pair().find("n")
    assert model.application(version) == "n"


def test_what_is_not_loaded_is_known_but_not_served() -> None:
    models = pair()
    withdrawn = Unavailability(UnavailableCause.WITHDRAWN, "of its own will")
    models.set_unavailable({"m@2": UNLOADED, "m@1": withdrawn})
    with pytest.raises(UnloadedModelError, match="version 2 is not served: it is not loaded"):
        models.find("m")
    with pytest.raises(UnloadedModelError, match="of its own will"):
        models.find("m@1")
    assert models.known("m")[1] == "2"
    with pytest.raises(UnknownModelError, match="has no version '3': use one of 1, 2"):
        models.find("m@3")


def test_two_of_one_version_are_refused() -> None:
    applications = [entry("m", 1, "one"), entry("m", 1, "two")]
    with pytest.raises(ConfigError, match="two applications are named 'm@1'"):
        read_config({"applications": applications})


def test_a_model_to_be_asked_for_needs_an_open_repository() -> None:
    given = {**entry("m", 1, "one"), "load": "asked"}
    with pytest.raises(ConfigError, match="load=asked of m needs repository: open"):
        read_config({"applications": [given]})
    assert read_config({"applications": [given], "repository": "open"})


def opened() -> tuple[Repository, list[Place]]:
    asked: list[Place] = []
    return Repository(pair(), True, asked.append), asked


def test_loading_waits_until_the_router_says_that_it_is_there() -> None:
    async def go() -> None:
        repository, asked = opened()
        repository.on_unavailable(Unavailable({"m@2": failed("an old story")}))
        task = asyncio.ensure_future(repository.place("m@2", load=True))
        await asyncio.sleep(0)
        assert asked == [Place("m@2", True)]
        assert not task.done()
        repository.on_unavailable(Unavailable({}))
        await task

    asyncio.run(go())


def test_every_version_of_a_name_goes_at_once() -> None:
    async def go() -> None:
        repository, asked = opened()
        task = asyncio.ensure_future(repository.place("m", load=False))
        await asyncio.sleep(0)
        assert asked == [Place("m@1", False), Place("m@2", False)]
        repository.on_unavailable(Unavailable({"m@1": UNLOADED}))
        await asyncio.sleep(0)
        assert not task.done()
        repository.on_unavailable(Unavailable({"m@1": UNLOADED, "m@2": UNLOADED}))
        await task

    asyncio.run(go())


def test_why_a_model_cannot_be_loaded_is_told() -> None:
    async def go() -> None:
        repository, _ = opened()
        repository.on_unavailable(Unavailable({"m@2": UNLOADED}))
        task = asyncio.ensure_future(repository.place("m@2", load=True))
        await asyncio.sleep(0)
        repository.on_unavailable(Unavailable({"m@2": failed("no such file")}))
        with pytest.raises(LoadFailedError, match="no such file"):
            await task

    asyncio.run(go())


def test_only_a_failed_load_ends_the_wait_for_one() -> None:
    async def go() -> None:
        repository, _ = opened()
        task = asyncio.ensure_future(repository.place("m@2", load=True))
        reads_so = Unavailability(UnavailableCause.QUARANTINED, "it could not be loaded: crash")
        repository.on_unavailable(Unavailable({"m@2": reads_so}))
        await asyncio.sleep(0)
        assert not task.done()
        repository.on_unavailable(Unavailable({"m@2": failed("")}))
        with pytest.raises(LoadFailedError, match="it could not be loaded"):
            await task

    asyncio.run(go())


def test_a_fixed_repository_says_how_to_open_it() -> None:
    repository = Repository(pair(), False, lambda place: None)
    with pytest.raises(FixedRepositoryError, match="set repository: open"):
        asyncio.run(repository.place("m", load=False))
    with pytest.raises(UnknownModelError):
        asyncio.run(repository.place("x", load=False))
