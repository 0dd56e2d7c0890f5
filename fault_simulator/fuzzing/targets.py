"""All that a fuzzer may be pointed at: parsers by themselves, and whole codecs."""

from collections.abc import Mapping
from functools import partial

from fermata.deployments.frontend.edge.build import EDGE
from fermata.fault_simulator.fuzzing import codec_seeds, codecs
from fermata.fault_simulator.fuzzing.parsers import PARSERS, Parser

NATIVE: Mapping[str, Parser] = {
    "native-http2": Parser(partial(codecs.http2, edge="native"), codec_seeds.frames, native=True),
    "native-grpc": Parser(
        partial(codecs.grpc_calls, edge="native"), codec_seeds.calls, native=True
    ),
}
"""Where the native edge is built."""

TARGETS: Mapping[str, Parser] = {
    **PARSERS,
    "http2": Parser(codecs.http2, codec_seeds.frames),
    "grpc": Parser(codecs.grpc_calls, codec_seeds.calls),
    "http1": Parser(codecs.http1, codec_seeds.requests),
    **(NATIVE if EDGE.path().exists() else {}),
}
