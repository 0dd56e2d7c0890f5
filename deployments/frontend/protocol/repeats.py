"""Requests like one before: a client's messages mostly differ in their id and data alone.

Only these are read from such a message, and the data are not copied: they are taken as they lie in
it. Whatever is not as simple as that is parsed as any other message.
"""

import math
from dataclasses import dataclass

from fermata.clients.wire import parameters as names
from fermata.clients.wire.errors import TEXT_MAX
from fermata.clients.wire.tensors import RawTensor, check_data
from fermata.deployments.frontend.inputs.reading import InputForm
from fermata.deployments.frontend.protocol.parsing import RequestHead
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.registry import Registry

ID_TAG, RAW_CONTENTS_TAG = 0x1A, 0x3A
"""Fields 3 and 7 of a ModelInferRequest, both with a length."""
WITH_LENGTH = 2
"""Wire type of protobuf; all fields of a request have it."""
FIELDS_MAX = 32
HEAD_BYTES_MAX = 4 << 10
HEADS_MAX = 8
"""Heads that are kept of one client."""


def split_message(raw: bytes) -> tuple[bytes, str, memoryview] | None:
    """The message without its id and data, and these; None where it is not as simple."""
    kept: list[bytes] = []
    request_id, data = "", None
    at, begin, end, fields = 0, 0, len(raw), 0
    try:
        while at < end:
            start, tag = at, raw[at]
            fields += 1
            if tag & 0x87 != WITH_LENGTH or fields > FIELDS_MAX:
                return None
            size = raw[at + 1]
            at += 2
            if size > 127:
                size &= 127
                for shift in (7, 14, 21, 28):
                    byte = raw[at]
                    at += 1
                    size |= (byte & 127) << shift
                    if byte < 128:
                        break
                else:
                    return None
            after = at + size
            if tag == RAW_CONTENTS_TAG:
                if data is not None:
                    return None
                data = memoryview(raw)[at:after]
            elif tag == ID_TAG:
                # Of several the last would count.
                if request_id:
                    return None
                request_id = raw[at:after].decode()
            else:
                at = after
                continue
            kept.append(raw[begin:start])
            at = begin = after
    except (IndexError, UnicodeDecodeError):
        return None
    if at != end or data is None or len(request_id) > TEXT_MAX:
        return None
    kept.append(raw[begin:])
    return b"".join(kept), request_id, data


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head, and the tensor that its messages carry."""

    changes: int
    """Of the registry when the head was read."""
    head: RequestHead
    form: InputForm
    name: str
    datatype: str
    shape: tuple[int, ...]
    count: int

    def request(self, request_id: str, data: memoryview) -> ParsedRequest:
        """The request with this id and these data. Raises BadRequestError."""
        check_data(self.name, self.datatype, self.shape, self.count, data)
        tensor = RawTensor(self.name, self.datatype, self.shape, data)
        return self.head.request(request_id, self.form.read(tensor))


class Repeats:
    """Heads of one client's requests."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.known: dict[bytes, KnownHead] = {}

    def find(self, raw: bytes) -> tuple[KnownHead, str, memoryview] | None:
        """The head of a message that is known, with its id and data; None of any other."""
        found = split_message(raw) if self.known else None
        if found is None:
            return None
        known = self.known.get(found[0])
        if known is None or known.changes != self.registry.changes:
            return None
        return known, found[1], found[2]

    def learn(self, raw: bytes, head: RequestHead, tensor: RawTensor) -> None:
        """Know this message's head from now on, if it has one input of at most one row."""
        form = head.form
        if form is None or form.rows > 1:
            return
        found = split_message(raw)
        # A client that reports is heard each time. Where a new version is tried out, chance
        # decides for each request.
        if found is None or names.FPS in head.given or self.registry.trials:
            return
        if len(found[0]) > HEAD_BYTES_MAX:
            return
        if len(self.known) >= HEADS_MAX:
            self.known.clear()
        # They would keep the whole message.
        head.given = {}
        self.known[found[0]] = KnownHead(
            self.registry.changes,
            head,
            form,
            tensor.name,
            tensor.datatype,
            tensor.shape,
            math.prod(tensor.shape),
        )
