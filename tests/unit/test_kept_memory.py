"""Freed memory is kept for the next message, and not handed to the system and back."""

import subprocess
import sys

import pytest

from fermata.foundation.process_memory import keep_freed_memory

FAULTS = """
import resource
from fermata.foundation.process_memory import keep_freed_memory
print(keep_freed_memory())
def messages(count):
    for _ in range(count):
        held = [bytearray(150_000) for _ in range(20)]
        del held
messages(5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
messages(50)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_messages_do_not_take_fresh_pages() -> None:
    ended = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True)
    kept, faults = ended.stdout.split()
    if kept != "True":
        pytest.skip("this C library has no such options")
    # A thousand messages of 37 pages each.
    assert int(faults) < 1000


def test_setting_it_twice_does_no_harm() -> None:
    assert keep_freed_memory() == keep_freed_memory()
