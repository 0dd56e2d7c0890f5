"""Processes that are none of ours: they connect to whoever listens, or listen where a router did.

They know everything but the deployment's secret, what others have said on links included.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial

from fermata.fault_simulator.environment.world import VirtualLoop, World, new_process
from fermata.foundation.units import ms
from fermata.router.links.closing import CloseCode
from fermata.router.links.handshake import NONCE_BYTES, ROLES
from fermata.router.links.messages import (
    PROTOCOL,
    Challenge,
    Goodbye,
    Hello,
    Message,
    Proof,
    TakesLead,
)
from fermata.router.links.session import encode

CROWD = (1, 12)
"""How many come at once."""
PAUSE_NS = ms(200)
"""Between two of its words, at most."""
NUMBERS = 1 << 6
"""That processes of this world may have."""
TERMS = (0, 1, 2**62, 2**63 - 1)


class Stranger:
    """One of them, with all that it is going to say on its next connection."""

    def __init__(self, world: World, rng: random.Random, name: str) -> None:
        self.world = world
        self.rng = rng
        self.loop = new_process(world, name)
        # Connections of strangers are refused in every way there is.
        self.loop.may_fail = (OSError,)

    async def knock(self, port: int) -> None:
        await self.loop.create_connection(self.talk, "world", port)

    def talk(self) -> asyncio.Protocol:
        return Talk(self.loop, self.rng, self.words())

    def words(self) -> list[bytes]:
        """Nothing, noise, the truth in the wrong mouth, or a lie."""
        kind = self.rng.choice(("silence", "noise", "replay", "lie", "lie", "lie"))
        if kind == "silence":
            return []
        if kind == "noise":
            return [self.rng.randbytes(self.rng.randrange(1, 200))]
        heard = self.world.network.overheard()
        if kind == "replay" and heard:
            return list(self.rng.choice(heard))
        frames = [encode([each])[0] for each in self.lies()]
        if self.rng.random() < 0.3:
            # Byte by byte, or not to its end.
            said = b"".join(frames)[: self.rng.randrange(1, 60)]
            return [said[place : place + 1] for place in range(len(said))]
        return frames

    def lies(self) -> list[Message]:
        rng = self.rng
        hello = Hello(
            rng.choice((PROTOCOL, PROTOCOL, PROTOCOL, 5)),
            rng.choice(sorted(ROLES)),
            rng.randrange(NUMBERS),
            rng.choice(TERMS),
            "world:1",
            "world",
            rng.randbytes(NONCE_BYTES),
        )
        challenge, proof = Challenge(rng.randbytes(NONCE_BYTES)), Proof(rng.randbytes(32))
        goodbye = Goodbye("router term 1 is stale", rng.choice(list(CloseCode)))
        stories: tuple[list[Message], ...] = (
            [hello],
            [hello, proof, TakesLead(TERMS[-1])],
            [hello, goodbye],
            [goodbye],
            [challenge, hello, proof],
            [challenge, hello, proof, TakesLead(TERMS[-1])],
        )
        return rng.choice(stories)


class Talk(asyncio.Protocol):
    """Says its words one after the other, whatever it hears, and stays."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, words: list[bytes]) -> None:
        self.loop = loop
        self.rng = rng
        self.words = words

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        at_ns = 0
        for word in self.words:
            at_ns += self.rng.randrange(PAUSE_NS // len(self.words))
            self.loop.call_later(at_ns / 1e9, partial(transport.write, word))


def crowd(world: World, rng: random.Random, left: list[int]) -> Callable[[], None]:
    """Send some of them to whoever listens; one may listen on a port that somebody has left.
    Returns what ends them."""
    network = world.network
    those = [
        Stranger(world, rng, f"stranger-{world.sequence}-{place}")
        for place in range(rng.randint(*CROWD))
    ]
    taken = [port for port in left if port not in network.listeners][-1:]
    for port in taken:
        network.listeners[port] = (those[0].loop, those[0].talk)
    for each in those:
        each.loop.start(partial(each.knock, rng.choice(sorted(network.listeners))))

    def end() -> None:
        for each in those:
            each.loop.die()

    return end
