"""On a GPU box: the default policy with three ResNets, against Jellyfish and each of them alone.

Utility is the sum of accuracy over answers in time, over all requests. Random weights serve: the
accuracies are those that torchvision publishes, and run times do not depend on weights.
"""

from collections.abc import Iterator, Sequence

from benchmarks.figures import Figure, run_parts

PARTS = {"resnets": "ResNet-18, ResNet-50 and ResNet-152 on one GPU"}


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    # Not above: processes of a load import this module anew, and those imports take seconds.
    from benchmarks.gpu_default_figures import resnets
    from benchmarks.gpu_models import need_gpu

    need_gpu()
    yield from resnets(quick)


if __name__ == "__main__":
    run_parts("The default on one GPU", measure, PARTS)
