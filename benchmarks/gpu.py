"""On a GPU box: rates that one GPU serves within 25 ms, and answers against offline inference.

Starts and stops servers of its own; clients are on the same box. docs/gpu.md says how to bring it
to a box without a package index.
"""

from benchmarks.figures import run_parts

PARTS = {
    "ways": "offline rates at batch 64 by way, compiled ones too",
    "compiling": "answers in time while a compiler works beside the server",
    "kernels": "offline rates of every way to run three models",
    "compiled": "networks are compiled for the parts below too, which takes two minutes more",
    "one": "ResNet-50",
    "three": "three models of different cost",
    "plain": "those three on plain Ray Serve",
    "triton": "ResNet-50 on Triton, whose package must be on the path",
    "triton-three": "those three on Triton",
}

if __name__ == "__main__":
    # Not above: processes of a load import this module anew, and those imports take seconds.
    from benchmarks.gpu_figures import measure

    asked = ["ways", "compiling", "compiled", "triton", "triton-three"]
    run_parts("One GPU", measure, PARTS, asked=asked)
