"""Addresses of processes, as they tell one another: host:port."""

from fermata.router.links.session import LinkError


def join_address(host: str, port: int) -> str:
    """`host:port`; IPv6 hosts stand in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of `host:port`; IPv6 hosts stand in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise LinkError(f"{address!r} is no address; write host:port")
    return host.strip("[]"), int(port)
