"""Tokens, what they open, and how often."""

from pathlib import Path

import pytest

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.processes.frontend_options import tenants
from fermata.deployments.config.processes.token_reader import TokenReader
from fermata.deployments.config.security import TokenConfig
from fermata.deployments.control.access import ControlGate
from fermata.deployments.frontend.access.rate_limit import RateLimit
from fermata.deployments.frontend.access.tenants import (
    ForbiddenError,
    Tenants,
    UnauthenticatedError,
)
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.specs.frontend import TenantSpec
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds

CAMERAS, ROBOTS = "cameras-" + "c" * 32, "robots-" + "r" * 32
REGISTRY = Registry.of(
    ServedModel(name, TensorSpec("input", "FP32", (1,)), ms(100), ms(100))
    for name in ("faces", "faces@night", "plates")
)
KNOWN = Tenants(
    (
        TenantSpec("cameras", (CAMERAS, CAMERAS[::-1]), frozenset({"faces"}), rate_rps=10, burst=2),
        TenantSpec("robots", (ROBOTS,), operator=True),
    )
)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    limit = RateLimit(rate_rps=10, burst=3)
    assert [limit.take(0) for _ in range(4)] == [0, 0, 0, ms(100)]
    assert limit.take(ms(40)) == ms(60)
    # One each 100 ms, and after a rest no more than the burst.
    assert [limit.take(ms(100)), limit.take(ms(100))] == [0, ms(100)]
    assert [limit.take(seconds(60)) for _ in range(4)] == [0, 0, 0, ms(100)]


def test_a_clock_that_starts_anywhere_gives_the_same() -> None:
    limit = RateLimit(rate_rps=1000, burst=1)
    assert [limit.take(seconds(10**6)), limit.take(seconds(10**6))] == [0, ms(1)]


def test_a_token_says_who_somebody_is() -> None:
    assert KNOWN.find(f"Bearer {CAMERAS}").name == "cameras"
    assert KNOWN.find(f"bearer {CAMERAS[::-1]}").name == "cameras"
    assert KNOWN.find(f"Bearer {ROBOTS} ").name == "robots"


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", f"Basic {ROBOTS}", ROBOTS, "Bearer x", f"Bearer {ROBOTS}x", "\udcff"],
)
def test_nobody_else_gets_in(given: str) -> None:
    with pytest.raises(UnauthenticatedError):
        KNOWN.find(given)
    with pytest.raises(UnauthenticatedError):
        KNOWN.find("Bearer " + given[:-1])


def test_without_tenants_everybody_may_do_everything() -> None:
    somebody = Tenants().find("")
    somebody.check(REGISTRY, "plates")
    somebody.check_operator()
    assert somebody.admit(0) is None


def test_models_of_others_are_refused_by_any_name_and_not_told_of() -> None:
    cameras = KNOWN.find(f"Bearer {CAMERAS}")
    for name in ("faces", "faces@1"):
        cameras.check(REGISTRY, name)
    # The last is an application of its own, whatever its name looks like.
    for name in ("plates", "plates@1", "ghosts", "faces@night"):
        with pytest.raises(ForbiddenError, match="may not use") as caught:
            cameras.check(REGISTRY, name)
        assert "use one of" not in str(caught.value)
    with pytest.raises(ForbiddenError):
        cameras.check_operator()
    KNOWN.find(f"Bearer {ROBOTS}").check_operator()


def test_above_its_rate_a_tenant_is_told_when_to_come_again() -> None:
    cameras = KNOWN.find(f"Bearer {CAMERAS}")
    now_ns = seconds(5)
    assert [cameras.admit(now_ns), cameras.admit(now_ns)] == [None, None]
    refusal = cameras.admit(now_ns)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.reason) == ("RESOURCE_EXHAUSTED", "rate")
    assert refusal.retry_after_ns == ms(100)


def test_new_tokens_take_the_place_of_old_ones_and_rates_go_on() -> None:
    known = Tenants((TenantSpec("cameras", (CAMERAS,), rate_rps=10, burst=1),))
    assert known.find(f"Bearer {CAMERAS}").admit(0) is None
    known.renew({"cameras": (ROBOTS,)})
    with pytest.raises(UnauthenticatedError):
        known.find(f"Bearer {CAMERAS}")
    assert known.find(f"Bearer {ROBOTS}").admit(0) is not None


def test_nothing_that_is_printed_shows_a_token() -> None:
    spec = TenantSpec("robots", (ROBOTS,))
    known = Tenants((spec,))
    for each in (spec, known, known.find(f"Bearer {ROBOTS}"), vars(known)):
        assert ROBOTS not in repr(each)


def config(**tenant: object) -> dict[str, object]:
    variant = {"name": "one", "model": "emulated", "alpha_ms": 1, "beta_ms": 1}
    return {
        "applications": [{"name": "faces", "slo_ms": 50, "variants": [variant]}],
        "tenants": [{"name": "cameras", **tenant}],
    }


def test_tokens_come_from_files_and_the_environment(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/token"
    with open(path, "w") as file:
        file.write(f"{CAMERAS}\n\n{ROBOTS}\n")
    (found,) = tenants(read_config(config(token_file=path, applications=["faces"])))
    assert found.tokens == (CAMERAS, ROBOTS)
    monkeypatch.setenv("CAMERAS_TOKEN", CAMERAS)
    (found,) = tenants(read_config(config(token_env="CAMERAS_TOKEN")))
    assert found.tokens == (CAMERAS,)


def test_a_token_whose_file_is_gone_is_nobodys_and_others_are_renewed(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("cameras", "robots")}
    for name, path in files.items():
        path.write_text(f"{name}-{'1' * 16}")
    places = {name: TokenConfig(token_file=str(path)) for name, path in files.items()}
    known = Tenants([TenantSpec(name, place.tokens()) for name, place in places.items()])
    reader = TokenReader(places)
    files["robots"].write_text(f"robots-{'2' * 16}")
    for gone in (Path.unlink, lambda path: path.write_text("\n")):
        files["cameras"].write_text(f"cameras-{'1' * 16}")
        known.renew(reader.look())
        gone(files["cameras"])
        # Somebody may be writing it just now.
        known.renew(reader.look())
        assert known.find(f"Bearer cameras-{'1' * 16}").name == "cameras"
        assert known.find(f"Bearer robots-{'2' * 16}").name == "robots"
        known.renew(reader.look())
        for token in (f"cameras-{'1' * 16}", f"robots-{'1' * 16}"):
            with pytest.raises(UnauthenticatedError):
                known.find(f"Bearer {token}")
        assert known.find(f"Bearer robots-{'2' * 16}").name == "robots"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs token_file or token_env"),
        ({"token_file": "a", "token_env": "b"}, "one of token_file and token_env"),
        ({"token_file": "a", "applications": ["ghosts"]}, "'ghosts' is unknown"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_config(config(**given))


def test_a_token_in_the_configuration_itself_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"tenants\.0\.token=\.\.\.: Extra inputs") as caught:
        read_config(config(token=ROBOTS, token_file="a"))
    assert ROBOTS not in str(caught.value)


def test_a_bad_secret_is_refused_without_a_word_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="token_env=NOT_THERE holds no token"):
        TokenConfig(token_env="NOT_THERE").tokens()
    with pytest.raises(ConfigError, match="cannot be read"):
        TokenConfig(token_file="/not/there").tokens()
    monkeypatch.setenv("SHORT", "hunter2")
    with pytest.raises(ConfigError, match="below 16") as caught:
        TokenConfig(token_env="SHORT").tokens()
    assert "hunter2" not in str(caught.value)


def test_operators_look_freely_or_with_a_token_and_change_with_one_alone() -> None:
    closed = ControlGate((), reading_open=True)
    assert closed.refusal("GET", "") is None
    assert closed.refusal("POST", "") is not None
    for reading_open in (True, False):
        gate = ControlGate((ROBOTS,), reading_open)
        assert (gate.refusal("GET", "") is None) == reading_open
        assert gate.refusal("POST", "") is not None
        assert gate.refusal("POST", f"Bearer {CAMERAS}") == (401, "the token is nobody's")
        assert gate.refusal("POST", f"Bearer {ROBOTS}") is None
        # Its file is gone: that opens nothing.
        gate.renew(())
        assert (gate.refusal("GET", f"Bearer {ROBOTS}") is None) == reading_open
        assert gate.refusal("POST", f"Bearer {ROBOTS}") is not None


def test_a_browser_sends_the_token_as_a_password() -> None:
    gate = ControlGate(("open sesame, open",), reading_open=False)
    # base64 of "me:open sesame, open"
    assert gate.refusal("GET", "Basic bWU6b3BlbiBzZXNhbWUsIG9wZW4=") is None
    assert gate.refusal("GET", "Basic bWU6b3BlbiBzZXNhbWU=") is not None
    assert gate.refusal("GET", "Basic ***") is not None
