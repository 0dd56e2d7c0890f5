"""Code of the version before, whose links speak the protocol before ours.

It lies here as an archive: a clone may have no history. `git archive e5b1465` made it, of all that
a server needs. It is replaced whenever the protocol is raised.
"""

import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("protocol-8.tar.xz")


def unpack(folder: Path) -> Path:
    """The old source tree, in this folder; it is what `PYTHONPATH` takes."""
    code = folder / "old"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(code, filter="data")
    return code
