"""Feeds hostile bytes to all parsers and codecs: `python -m fermata.fault_simulator.fuzzing`.

Led by coverage: by Atheris where it is installed, and by the lines that inputs reach where it is
not. With Atheris, each parser has a process of its own. One ends by its time, or by an input that
breaks a promise, takes longer than 10 s or more than 2 GB. The input is then kept, and
`--replay FILE` plays it again.
"""

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fermata.fault_simulator.fuzzing.line_coverage import Lines, reached_lines

KEPT = Path("build/fuzz")
INPUT_S = 10
MEMORY_MB = 2048
INPUT_BYTES = 8192


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fermata.fault_simulator.fuzzing", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for all together")
    parser.add_argument("--only", action="append", help="a parser, may be repeated")
    parser.add_argument("--chance", action="store_true", help="led by lines, not by Atheris")
    parser.add_argument("--replay", type=Path, help="one input, to the parser named by --only")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        return by_coverage(given.inside, given.seconds)
    from fermata.fault_simulator.fuzzing.targets import TARGETS

    names = given.only or list(TARGETS)
    if strange := set(names) - set(TARGETS):
        parser.error(f"no parser {min(strange)}: there are {', '.join(TARGETS)}")
    if given.replay:
        TARGETS[names[0]].read(given.replay.read_bytes())
        print(f"{names[0]} takes {given.replay}, or refuses it by name")
        return 0
    led = not given.chance and importlib.util.find_spec("atheris") is not None
    if not led:
        print("led by the lines that inputs reach: Atheris is not installed, or not wanted")
    each_s = given.seconds / len(names)
    if led:
        broken = [name for name in names if not guided(name, each_s)]
    else:
        with reached_lines() as reached:
            broken = [name for name in names if not by_lines(name, each_s, reached)]
    print(f"{len(names)} parsers and codecs, {len(broken)} broken", *broken)
    return 1 if broken else 0


def guided(name: str, seconds: float) -> bool:
    """Whether a parser has stood its time, in a process of its own: Atheris ends its own."""
    command = [
        sys.executable,
        "-m",
        "fermata.fault_simulator.fuzzing",
        "--inside",
        name,
        "--seconds",
        str(seconds),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "DONE" in line or "Done " in line]
    print(f"{name}: {' '.join(told[-1:]) or 'broken'}", flush=True)
    if done.returncode:
        # libFuzzer says where the input is, Atheris what it raised.
        print("\n".join(done.stdout.splitlines()[-20:] + done.stderr.splitlines()[-4:]))
        print(
            f"replay with: python -m fermata.fault_simulator.fuzzing --only {name} --replay FILE",
            flush=True,
        )
    return done.returncode == 0


def by_coverage(name: str, seconds: float) -> int:
    """Does not return: libFuzzer ends the process."""
    import atheris

    # Only what is imported here is led by its coverage, and only ours: a library's own is not.
    with atheris.instrument_imports(include=["fermata"], enable_loader_override=False):
        from fermata.fault_simulator.fuzzing.targets import TARGETS
    kept = KEPT / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(TARGETS[name].seeds()):
            Path(corpus, str(number)).write_bytes(seed)
        options = [
            f"-max_total_time={max(1, round(seconds))}",
            f"-timeout={INPUT_S}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-max_len={INPUT_BYTES}",
            f"-artifact_prefix={kept}/",
        ]
        atheris.Setup([sys.argv[0], *options, corpus], TARGETS[name].read)
        atheris.Fuzz()
    return 0


def by_lines(name: str, seconds: float, reached: Lines, seed: int = 0) -> bool:
    """The same without Atheris: inputs that reach a new line of ours are changed further."""
    from fermata.fault_simulator.fuzzing.targets import TARGETS

    rng, target = random.Random(seed), TARGETS[name]
    corpus = target.seeds()
    begin, until_s = len(corpus), time.monotonic() + seconds
    tried = known = 0
    while time.monotonic() < until_s:
        # Seeds as they are come first: what they reach is nothing new.
        data = corpus[tried] if tried < begin else mutated(rng, corpus)
        # The first input also starts the server that reads it.
        if target.native:
            _keep(name, "last", data)
        if not _stands(name, target.read, data, f"{seed}-{tried}", timed=tried > 0):
            return False
        if len(reached) > known and tried >= begin:
            corpus.append(data)
        known = len(reached)
        tried += 1
    print(f"{name}: {tried} inputs, {len(corpus)} kept, {known} lines", flush=True)
    return True


def _stands(
    name: str, read: Callable[[bytes], None], data: bytes, label: str, timed: bool = True
) -> bool:
    """Whether a parser takes an input as it has promised; one that it does not is kept."""
    started_s = time.monotonic()
    try:
        read(data)
        took_s = time.monotonic() - started_s
        assert took_s < INPUT_S or not timed, f"it took {took_s:.1f} s"
    except Exception as error:
        kept = _keep(name, f"chance-{label}", data)
        print(f"{name}: {type(error).__name__}: {error}")
        print(
            f"replay with: python -m fermata.fault_simulator.fuzzing --only {name} --replay {kept}"
        )
        return False
    return True


def _keep(name: str, label: str, data: bytes) -> Path:
    kept = KEPT / name / label
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(data)
    return kept


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    """One of the seeds with a few changes, or two of them in one."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(0, 6)):
        at = rng.randint(0, len(data))
        kind = rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 2:
            del data[at : at + rng.randint(1, 16)]
        elif kind == 3:
            other = rng.choice(seeds)
            start = rng.randint(0, len(other))
            data[at:] = other[start:]
        else:
            part = data[at : at + rng.randint(1, 32)]
            data[at:at] = part * rng.randint(1, 4)
    return bytes(data[:INPUT_BYTES])


if __name__ == "__main__":
    sys.exit(main())
