"""Fermata: SLO-first inference serving. Each folder here is a link to one at the top level."""

import os

# Before any module that may be native is imported: a process has each in one kind alone.
if os.environ.get("FERMATA_COMPILED"):
    from fermata.foundation import native

    native.install()
