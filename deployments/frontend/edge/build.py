"""Builds the native edge: `python -m fermata.deployments.frontend.edge.build`.

It needs a C compiler, the headers of Python, and nghttp2 with its header.
"""

from pathlib import Path

from fermata.deployments.extensions import Extension, Library

EDGE = Extension(
    "fermata_edge",
    Path(__file__).parent,
    ("call.c", "session.c", "connection.c", "server.c", "module.c"),
    ("edge.h",),
    Library("nghttp2", "nghttp2/nghttp2.h", "libnghttp2-dev"),
)

if __name__ == "__main__":
    EDGE.build_and_say("native edge", "gRPC's own server serves")
