"""What a client shows to get in, and what it never shows."""

from pathlib import Path

import pytest

from fermata.clients.access import Access
from fermata.clients.wire.errors import BadRequestError
from fermata.commands.server_access import access_of
from fermata.foundation.errors import ConfigError


def test_a_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("first-token\nsecond\n")
    assert Access(token_file=str(path)).headers() == (("authorization", "Bearer first-token"),)
    monkeypatch.setenv("MY_TOKEN", "other")
    access = Access(token_env="MY_TOKEN")
    assert access.headers() == (("authorization", "Bearer other"),)
    assert "other" not in repr(access)
    assert Access().headers() == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"token_file": "/not/there"}, "cannot be read"),
        ({"token_env": "NOT_THERE"}, "the environment has no NOT_THERE"),
    ],
)
def test_a_missing_token_is_said_in_one_line(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        Access(**given).headers()


@pytest.mark.parametrize(
    "given",
    [{"certificate_file": "a"}, {"key_file": "a"}, {"certificate_file": "a", "key_file": "b"}],
)
def test_half_of_what_tls_needs_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(BadRequestError):
        Access(**given)


def test_commands_say_what_is_wrong_with_files_before_they_call(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for token_file, ca_file in (("/not/there", ""), ("", str(broken))):
        with pytest.raises(ConfigError, match=token_file or ca_file):
            access_of(token_file, "", ca_file, "", "", "")
