"""What a real browser has made of a page."""

import re
from html import unescape


def texts(document: str, name: str) -> list[str]:
    """What the elements of that class, or with that id, say."""
    found = re.findall(
        rf'<(\w+)[^>]*(?:class="[^"]*\b{name}\b[^"]*"|id="{name}")[^>]*>(.*?)</\1>',
        document,
        re.DOTALL,
    )
    return [unescape(re.sub(r"<[^>]+>", "", text)).strip() for _, text in found]
