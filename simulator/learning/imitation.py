"""A warm start: the actor learns from the rule that serves each observation best on average."""

from collections import deque

import numpy as np
import torch
from torch import Tensor

from fermata.simulator.learning.actor_critic import Actor, mlp
from fermata.simulator.learning.ppo import Learner
from fermata.simulator.learning.teacher import Teacher

SLOTS = 8
"""Played by each copy in a round."""
STEPS = 100
"""Steps of gradient descent after each round, and three times as many at the end."""
KEPT = 3
"""Rounds that are learnt from. What an observation tells of the workload depends on what has been
played, so what followed from a worse choice of rules is soon misleading."""
BATCH = 4096
LEARNING_RATE = 5e-3
HIDDEN = (32, 32)


def imitate(learner: Learner, teacher: Teacher, rounds: int) -> None:
    """Try every rule on the slot to come, learn which one pays where all that is known is the
    observation, and fit the actor to that. After the first round it is the rules so chosen that
    are played, so that they are learnt where they lead to (DAgger).

    No rule is told the state of the workload: which one pays on average, with calm and burst
    weighted as they come, is what there is to learn from an observation that fits both.
    """
    pupil = Pupil(learner, teacher)
    for turn in range(rounds):
        for _ in range(SLOTS):
            pupil.play(by_chance=turn == 0)
        learner.slots += SLOTS * learner.env.copies
        pupil.choose(STEPS if turn + 1 < rounds else 3 * STEPS)
    pupil.teach(learner.actor)


class Pupil:
    """Trials so far, and the rule that they recommend."""

    def __init__(self, learner: Learner, teacher: Teacher) -> None:
        self.learner = learner
        self.teacher = teacher
        self.seen: deque[Tensor] = deque(maxlen=KEPT * SLOTS)
        self.rules: deque[Tensor] = deque(maxlen=KEPT * SLOTS)
        self.gains: deque[Tensor] = deque(maxlen=KEPT * SLOTS)
        rules = len(teacher.candidates(np.zeros((1, learner.env.instances))))
        self.chooser = mlp(learner.width, HIDDEN, rules, gain=0.01)
        self.optimiser = torch.optim.Adam(self.chooser.parameters(), lr=LEARNING_RATE)

    def play(self, by_chance: bool) -> None:
        env = self.learner.env
        observation = env.observe()
        self.learner.saw(observation)
        rules = self.teacher.candidates(observation[:, : env.instances] * env.system.buffer)
        limits = self.teacher.choices(env.copies)
        rewards = np.stack([env.preview(shares, limits) for shares in rules], axis=1)
        seen = torch.from_numpy(observation).float()
        with torch.no_grad():
            chosen = self.chooser(seen).argmax(-1).numpy()
        if by_chance:
            chosen = env.rng.integers(0, len(rules), env.copies)
        step = env.step(rules[chosen, np.arange(env.copies)], limits)
        # Only how rules differ matters, as often as such a slot comes.
        gains = step.weights[:, None] * (rewards - rewards.mean(axis=1, keepdims=True))
        self.seen.append(seen)
        self.rules.append(torch.from_numpy(rules).float().transpose(0, 1))
        self.gains.append(torch.from_numpy(gains).float())

    def choose(self, steps: int) -> None:
        """Learn which rule pays: each slot votes for the rule that was best for it, with what was
        at stake. Where an observation fits both states, the votes of the many calm slots and the
        heavy ones of the few bursts add up."""
        seen, gains = torch.cat([*self.seen]), torch.cat([*self.gains])
        best = gains.argmax(-1)
        stakes = gains.max(-1).values - gains.min(-1).values
        stakes = stakes / stakes.mean()
        for _ in range(steps):
            part = torch.randint(len(seen), (BATCH,))
            log_odds = torch.log_softmax(self.chooser(seen[part]), dim=-1)
            votes = log_odds.gather(-1, best[part, None])[:, 0]
            self.optimiser.zero_grad()
            torch.autograd.backward(-(stakes[part] * votes).mean())
            self.optimiser.step()

    def teach(self, actor: Actor) -> None:
        """Fit the actor's shares to those of the chosen rules."""
        seen, rules = torch.cat([*self.seen]), torch.cat([*self.rules])
        with torch.no_grad():
            taught = rules[torch.arange(len(seen)), self.chooser(seen).argmax(-1)]
        optimiser = torch.optim.Adam(actor.parameters(), lr=LEARNING_RATE)
        for _ in range(3 * STEPS):
            part = torch.randint(len(seen), (BATCH,))
            scores, log_limits = actor(seen[part])
            unlike = -(taught[part] * torch.log_softmax(scores, dim=-1)).sum(-1).mean()
            if actor.batching_tiers:
                unlike = unlike - log_limits[..., self.teacher.limits].mean()
            optimiser.zero_grad()
            torch.autograd.backward(unlike)
            optimiser.step()
