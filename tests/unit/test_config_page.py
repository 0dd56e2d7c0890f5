"""The page of every option is printed from the model that reads them."""

from pathlib import Path

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.reference_page import page, rows, sections

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == page(), (
        "python -m fermata.deployments.config.reference_page > docs/configuration.md"
    )


def test_every_option_says_what_it_means() -> None:
    for section, where in sections():
        for row in rows(section):
            assert row.meaning.rpartition("only*: ")[2], f"{where}.{row.key}"


def test_every_section_is_found() -> None:
    found = {where for _, where in sections()}
    assert {"", "frontend", "applications[].variants[]", "autoscaler", "links"} <= found
    assert {"applications[].clients[]", "applications[].input", "tenants[]"} <= found
    assert sections()[0] == (DeploymentConfig, "")
