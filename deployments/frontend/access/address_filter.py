"""Addresses that may not connect for a while, kept out by the kernel.

A connection that is cut once it was taken has cost a handshake, and the calls that came with it.
A classic BPF filter on the sockets that listen drops the first packet instead. Any process may set
one on its own sockets. Connections that are open stay as they are.
"""

import ctypes
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

ADDRESSES_MAX = 256
"""More are left to be cut: a filter has an end."""
ATTACH, DETACH = 26, 27
"""SO_ATTACH_FILTER and SO_DETACH_FILTER of Linux."""
INSTRUCTION = struct.Struct("=HBBI")
PROGRAM = struct.Struct("@HP")
LOAD_WORD, LOAD_BYTE, SHIFT_RIGHT, JUMP_EQUAL, RETURN = 0x20, 0x30, 0x74, 0x15, 0x06
NETWORK = 0xFFF00000
"""Offsets from here on count from the header of IP (SKF_NET_OFF)."""
SOURCE_4, SOURCE_6 = NETWORK + 12, NETWORK + 8
ACCEPT, DROP = INSTRUCTION.pack(RETURN, 0, 0, 0xFFFFFFFF), INSTRUCTION.pack(RETURN, 0, 0, 0)


class AddressFilter:
    """Keeps addresses from connecting to sockets that listen."""

    def __init__(self) -> None:
        self.kept_out: frozenset[str] = frozenset()

    def keep_out(self, addresses: Iterable[str], listeners: Iterable[int]) -> None:
        """Let all but these connect. Where the kernel has no such filter, nothing changes."""
        wanted = frozenset(addresses)
        if wanted == self.kept_out or sys.platform != "linux":
            return
        self.kept_out = wanted
        for fd in listeners:
            with suppress(OSError):
                _set(fd, program(wanted))


def program(addresses: Iterable[str]) -> bytes:
    """Instructions that drop packets from these addresses; empty where there are none."""
    known = [ipaddress.ip_address(each) for each in sorted(filter(_is_ip, addresses))]
    del known[ADDRESSES_MAX:]
    if not known:
        return b""
    four = [INSTRUCTION.pack(LOAD_WORD, 0, 0, SOURCE_4)]
    six: list[bytes] = []
    for each in known:
        if each.version == 4:
            four += [INSTRUCTION.pack(JUMP_EQUAL, 0, 1, int(each)), DROP]
        else:
            six += _six(struct.unpack(">4I", each.packed))
    head = [
        INSTRUCTION.pack(LOAD_BYTE, 0, 0, NETWORK),
        INSTRUCTION.pack(SHIFT_RIGHT, 0, 0, 4),
        # Behind the part for version 6 is the one for version 4, too far for a jump of its own.
        INSTRUCTION.pack(JUMP_EQUAL, 0, 1, 4),
        INSTRUCTION.pack(0x05, 0, 0, len(six) + 1),
    ]
    return b"".join([*head, *six, ACCEPT, *four, ACCEPT])


def _is_ip(address: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(address))
    return False


def _six(words: tuple[int, ...]) -> list[bytes]:
    """Drop packets from one address of version 6, and go on behind this otherwise."""
    parts: list[bytes] = []
    for at, word in enumerate(words):
        left = 2 * (len(words) - at) - 1
        parts += [
            INSTRUCTION.pack(LOAD_WORD, 0, 0, SOURCE_6 + 4 * at),
            INSTRUCTION.pack(JUMP_EQUAL, 0, left, word),
        ]
    return [*parts, DROP]


def _set(fd: int, code: bytes) -> None:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
    try:
        if not code:
            one.setsockopt(socket.SOL_SOCKET, DETACH, 0)
            return
        instructions = ctypes.create_string_buffer(code, len(code))
        count = len(code) // INSTRUCTION.size
        given = PROGRAM.pack(count, ctypes.addressof(instructions))
        one.setsockopt(socket.SOL_SOCKET, ATTACH, given)
    finally:
        # The descriptor is the server's own.
        one.detach()
