"""Feeds hostile bytes to all parsers: `python -m fermata.fault_simulator.fuzzing`.

Led by coverage where Atheris is installed, and by chance where it is not. Each parser has a process
of its own, which ends by its time, or by an input that breaks a promise, takes longer than 10 s or
more than 2 GB; the input is then kept, and `--replay FILE` plays it again.
"""

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KEPT = Path("build/fuzz")
INPUT_S = 10
MEMORY_MB = 2048
INPUT_BYTES = 8192


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fermata.fault_simulator.fuzzing", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for all parsers together")
    parser.add_argument("--only", action="append", help="a parser, may be repeated")
    parser.add_argument("--chance", action="store_true", help="not led by coverage")
    parser.add_argument("--replay", type=Path, help="one input, to the parser named by --only")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        return by_coverage(given.inside, given.seconds)
    from fermata.fault_simulator.fuzzing.parsers import PARSERS

    names = given.only or list(PARSERS)
    if strange := set(names) - set(PARSERS):
        parser.error(f"no parser {min(strange)}: there are {', '.join(PARSERS)}")
    if given.replay:
        PARSERS[names[0]].read(given.replay.read_bytes())
        print(f"{names[0]} takes {given.replay}, or refuses it by name")
        return 0
    led = not given.chance and importlib.util.find_spec("atheris") is not None
    if not led:
        print("not led by coverage: Atheris is not installed, or not wanted")
    each_s = given.seconds / len(names)
    broken = [name for name in names if not (guided if led else by_chance)(name, each_s)]
    print(f"{len(names)} parsers, {len(broken)} broken{': ' if broken else ''}{', '.join(broken)}")
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
    packages = ["clients", "deployments", "faults", "profiles", "router"]
    with atheris.instrument_imports(include=packages, enable_loader_override=False):
        from fermata.fault_simulator.fuzzing.parsers import PARSERS
    kept = KEPT / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(PARSERS[name].seeds()):
            Path(corpus, str(number)).write_bytes(seed)
        options = [
            f"-max_total_time={max(1, round(seconds))}",
            f"-timeout={INPUT_S}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-max_len={INPUT_BYTES}",
            f"-artifact_prefix={kept}/",
        ]
        atheris.Setup([sys.argv[0], *options, corpus], PARSERS[name].read)
        atheris.Fuzz()
    return 0


def by_chance(name: str, seconds: float, seed: int = 0) -> bool:
    """The same without coverage: seeds, changed here and there."""
    from fermata.fault_simulator.fuzzing.parsers import PARSERS

    rng, parser = random.Random(seed), PARSERS[name]
    seeds = parser.seeds()
    until_s = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < until_s:
        data = mutated(rng, seeds)
        started_s = time.monotonic()
        try:
            parser.read(data)
            took_s = time.monotonic() - started_s
            assert took_s < INPUT_S, f"it took {took_s:.1f} s"
        except Exception as error:
            kept = KEPT / name / f"chance-{seed}-{tried}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)
            print(f"{name}: {type(error).__name__}: {error}")
            print(
                "replay with: python -m fermata.fault_simulator.fuzzing"
                f" --only {name} --replay {kept}"
            )
            return False
        tried += 1
    print(f"{name}: {tried} inputs", flush=True)
    return True


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
