"""Settings of all tests."""

import pytest
from hypothesis import settings
from native_limits import FILES, TESTS

from fermata.foundation import native

# How long an example takes says more about the machine than about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

collect_ignore = list(FILES) if native.installed() else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if native.installed() else ():
        reason = TESTS.get(item.name.partition("[")[0])
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
