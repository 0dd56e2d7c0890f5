"""Shared memory of clients on this machine (Triton's system shared memory extension).

A region is read and written by `pread` and `pwrite`, not mapped: a client that truncates its file
would kill a process that has it mapped. Nothing here is open unless the configuration says so, and
then only to callers of this machine: whoever names a region has this process read and write it.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError, shown
from fermata.clients.wire.parameters import integer, text
from fermata.deployments.frontend.memory.arena import FOLDER, PREFIX

REGION, SIZE, OFFSET = (
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
)
"""Parameters of a tensor that lies in a region."""
KEYS = re.compile(r"/?[A-Za-z0-9_.-]{1,200}")
OWN = (PREFIX, "sem.", "ray", "plasma", ".")
"""Beginnings of names that are not clients' own."""
REGIONS_MAX = 1024
NAME_MAX = 200
LOCAL = ("127.", "::1", "unix")


class ClosedMemoryError(BadRequestError):
    """Shared memory of clients is off, or its caller is elsewhere."""

    grpc_status = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a file under /dev/shm."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: int

    def check(self, offset: int, size: int) -> None:
        """Refuse bytes beyond the region."""
        if offset < 0 or size < 0 or offset + size > self.byte_size:
            raise BadRequestError(
                f"region {self.name!r} has {self.byte_size} bytes: {size} from {offset} on do not "
                "fit"
            )


@dataclass(frozen=True, slots=True)
class RegionOutput:
    """An output that its client wants in a region."""

    name: str
    region: Region
    offset: int
    size: int


class ClientMemory:
    """Regions that clients have registered with this process, by tenant and name."""

    def __init__(self, is_open: bool = False) -> None:
        self.is_open = is_open
        self.regions: dict[tuple[str, str], Region] = {}

    def register(
        self, tenant: str, peer: str, name: str, key: str, offset: int, byte_size: int
    ) -> None:
        """Take a region; `peer` is the address of its caller. Raises BadRequestError."""
        self._check_open(peer)
        if not name or len(name) > NAME_MAX:
            raise BadRequestError(f"a region needs a name of 1 to {NAME_MAX} characters")
        if (tenant, name) in self.regions:
            raise BadRequestError(f"region {shown(name)} is registered: unregister it first")
        if len(self.regions) >= REGIONS_MAX:
            raise BadRequestError(f"{REGIONS_MAX} regions are registered: unregister some")
        file = _open(key)
        try:
            held = os.fstat(file).st_size
            if offset < 0 or byte_size <= 0 or offset + byte_size > held:
                raise BadRequestError(
                    f"{shown(key)} has {held} bytes: {byte_size} from {offset} on do not fit"
                )
        except BaseException:
            os.close(file)
            raise
        self.regions[tenant, name] = Region(name, key, offset, byte_size, file)

    def _check_open(self, peer: str) -> None:
        if not self.is_open:
            raise ClosedMemoryError(
                "shared memory of clients is off: set frontend.client_memory to true"
            )
        if not peer.startswith(LOCAL):
            raise ClosedMemoryError(f"{peer} is another machine: send tensors in messages")

    def unregister(self, tenant: str, name: str = "") -> None:
        """Forget a region, or all of a tenant's; those that are not there are no mistake."""
        for own, each in list(self.regions):
            if own == tenant and name in ("", each):
                os.close(self.regions.pop((own, each)).file)

    def status(self, tenant: str, name: str = "") -> list[Region]:
        """A region, or all of a tenant's. Raises BadRequestError for one that is not there."""
        found = [each for (own, _), each in self.regions.items() if own == tenant]
        if not name:
            return found
        return [self._find(tenant, name)]

    def _find(self, tenant: str, name: str) -> Region:
        region = self.regions.get((tenant, name))
        if region is None:
            raise BadRequestError(f"region {shown(name)} is not registered: register it first")
        return region

    # Requests

    def fill(self, tenant: str, request: pb.ModelInferRequest) -> list[RegionOutput]:
        """Put the data of inputs in regions into a request; returns outputs for regions."""
        if any(REGION in each.parameters for each in request.inputs):
            self._fill_inputs(tenant, request)
        wanted: list[RegionOutput] = []
        for output in request.outputs:
            if REGION in output.parameters:
                region, offset, size = self._place(tenant, output.parameters)
                wanted.append(RegionOutput(output.name, region, offset, size))
                for name in (REGION, SIZE, OFFSET):
                    output.parameters.pop(name, None)
        return wanted

    def _fill_inputs(self, tenant: str, request: pb.ModelInferRequest) -> None:
        raw, given = list(request.raw_input_contents), iter(list(request.raw_input_contents))
        elsewhere = sum(REGION not in each.parameters for each in request.inputs)
        if len(raw) != elsewhere:
            raise BadRequestError(
                f"{elsewhere} inputs are not in shared memory, and {len(raw)} came raw: send these "
                "as raw_input_contents"
            )
        found: list[bytes] = []
        for tensor in request.inputs:
            if REGION not in tensor.parameters:
                found.append(next(given))
                continue
            region, offset, size = self._place(tenant, tensor.parameters)
            data = os.pread(region.file, size, region.offset + offset)
            if len(data) != size:
                raise BadRequestError(
                    f"region {region.name!r} has been truncated: register it anew"
                )
            found.append(data)
            for name in (REGION, SIZE, OFFSET):
                tensor.parameters.pop(name, None)
        del request.raw_input_contents[:]
        request.raw_input_contents.extend(found)

    def _place(self, tenant: str, given: Any) -> tuple[Region, int, int]:
        region = self._find(tenant, text(given, REGION))
        offset, size = integer(given, OFFSET) or 0, integer(given, SIZE) or 0
        region.check(offset, size)
        return region, offset, size

    def deliver(self, wanted: list[RegionOutput], response: pb.ModelInferResponse) -> None:
        """Write outputs to their regions, and leave their data out of the response."""
        places = {each.name: place for place, each in enumerate(response.outputs)}
        for each in wanted:
            place = places[each.name]
            data = response.raw_output_contents[place]
            if len(data) > each.size:
                raise BadRequestError(
                    f"output {each.name!r} has {len(data)} bytes, its region {each.size}: give it "
                    "more"
                )
            os.pwrite(each.region.file, data, each.region.offset + each.offset)
            response.raw_output_contents[place] = b""
            told = response.outputs[place].parameters
            told[REGION].string_param = each.region.name
            told[SIZE].int64_param = len(data)
            if each.offset:
                told[OFFSET].int64_param = each.offset

    def close(self) -> None:
        """Forget every region."""
        for region in self.regions.values():
            os.close(region.file)
        self.regions.clear()


def _open(key: str) -> int:
    """A file under /dev/shm that a client may name."""
    name = key.removeprefix("/")
    if not KEYS.fullmatch(key) or name.startswith(OWN):
        raise BadRequestError(
            f"key={shown(key)}: use a name of your own of letters, digits, '_', '-' and '.'"
        )
    try:
        return os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BadRequestError(f"key={shown(key)} cannot be opened: {error.strerror}") from None
