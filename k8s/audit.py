"""Known vulnerabilities of all pinned dependencies, as the index tells them: `python k8s/audit.py`.

It prints one line for each, and exits with 1 where there is any. Where the index does not tell of
vulnerabilities, or cannot be reached, it says so and exits with 2: nothing was audited then.
`--allow ID` leaves one out that does not concern us.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from typing import Any

from hashes import CONSTRAINTS, canonical, pins, pips_index

TIMEOUT_S = 30
FOUND, NOT_AUDITED = 1, 2


def advisories(index: str, name: str, version: str) -> list[dict[str, Any]]:
    """Advisories on one version; a LookupError where it tells nothing of the kind."""
    url = f"{index.removesuffix('/simple')}/pypi/{canonical(name)}/{version}/json"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            found = json.load(answer)
    except (OSError, ValueError) as error:
        raise LookupError(f"{name} {version}: {error}") from None
    if "vulnerabilities" not in found:
        raise LookupError(f"{name} {version}: the index tells of no vulnerabilities")
    given: list[dict[str, Any]] = found["vulnerabilities"]
    return [each for each in given if not each.get("withdrawn")]


def lines(index: str, text: str, allowed: Collection[str]) -> Iterator[str]:
    """One for each known vulnerability of the pinned packages."""
    for name, version in pins(text):
        for each in advisories(index, name, version):
            names = [each["id"], *each.get("aliases", ())]
            if not set(names) & set(allowed):
                fixed = ", ".join(each.get("fixed_in") or ()) or "no version"
                yield f"{name} {version}: {' '.join(names)}, mended in {fixed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allow", action="append", default=[], help="ID that is left out.")
    given = parser.parse_args()
    text = CONSTRAINTS.read_text()
    try:
        found = list(lines(pips_index(), text, given.allow))
    except LookupError as error:
        print(f"nothing was audited: {error}", file=sys.stderr)
        return NOT_AUDITED
    for line in found:
        print(line)
    print(f"{len(pins(text))} packages, {len(found)} known vulnerabilities")
    return FOUND if found else 0


if __name__ == "__main__":
    sys.exit(main())
