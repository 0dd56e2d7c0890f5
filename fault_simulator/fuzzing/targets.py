"""All that a fuzzer may be pointed at: parsers by themselves, and whole codecs."""

from collections.abc import Mapping

from fermata.fault_simulator.fuzzing import codec_seeds, codecs
from fermata.fault_simulator.fuzzing.parsers import PARSERS, Parser

TARGETS: Mapping[str, Parser] = {
    **PARSERS,
    "http2": Parser(codecs.http2, codec_seeds.frames),
    "grpc": Parser(codecs.grpc_calls, codec_seeds.calls),
    "http1": Parser(codecs.http1, codec_seeds.requests),
}
