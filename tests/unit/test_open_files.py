"""Files that the soak counts: all of a process but Ray's connections between its workers."""

import os
import socket

from benchmarks.open_files import own_files


def test_connections_to_who_listens_at_every_address_are_left_out() -> None:
    before = own_files(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("", 0)) as rays:
        # The listener itself is as Ray's are.
        assert own_files(os.getpid()) == before + 1
        to_ours = socket.create_connection(ours.getsockname())
        to_rays = socket.create_connection(("127.0.0.1", rays.getsockname()[1]))
        with to_ours, to_rays:
            assert own_files(os.getpid()) == before + 2
        assert own_files(os.getpid()) == before + 1
