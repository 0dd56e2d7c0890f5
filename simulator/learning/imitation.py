"""A warm start: the actor learns from a teacher that knows the state of the workload."""

import numpy as np
import torch

from simulator.learning.actor_critic import Actor
from simulator.learning.environment import Environment
from simulator.learning.ppo import Learner
from simulator.learning.teacher import Teacher

SLOTS = 8
"""Played by each copy in a round."""
STEPS = 60
"""Of gradient descent after each round."""
LEARNING_RATE = 1e-2
LOSS = 10.0
"""A request lost for want of capacity costs that many that a lesser variant answered."""


def imitate(learner: Learner, teacher: Teacher, rounds: int) -> None:
    """Fit the actor's shares to the teacher's where the actor itself gets to: the first round is
    played by the teacher, the others by the actor (DAgger). A slot counts by its requests and by
    what a wrong share of them would cost, so that where calm and burst look alike the actor
    leans to the side that errs at less cost."""
    env, actor = learner.env, learner.actor
    optimiser = torch.optim.Adam(actor.parameters(), lr=LEARNING_RATE)
    seen: list[torch.Tensor] = []
    taught: list[torch.Tensor] = []
    counts: list[torch.Tensor] = []
    for turn in range(rounds):
        for _ in range(SLOTS):
            observation, shares, weights = _play(env, actor, teacher, by_teacher=turn == 0)
            learner.saw(observation)
            seen.append(torch.from_numpy(observation).float())
            taught.append(torch.from_numpy(shares).float())
            counts.append(torch.from_numpy(weights).float())
        learner.slots += SLOTS * env.copies
        _fit(actor, optimiser, torch.cat(seen), torch.cat(taught), torch.cat(counts), teacher)


def _play(
    env: Environment, actor: Actor, teacher: Teacher, by_teacher: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    observation = env.observe()
    lengths = observation[:, : env.instances] * env.system.buffer
    shares = teacher.shares(env.state, lengths)
    played, choices = shares, teacher.choices(env.copies)
    if not by_teacher:
        log_shares, drawn, _ = actor.act(torch.from_numpy(observation).float(), sigma=0.1)
        played = log_shares.exp().double().numpy()
        choices = drawn.numpy() if actor.batching_tiers else choices
    rates = np.array(env.system.rates_rps)[env.state]
    cost = np.where(rates > teacher.best_rps, LOSS, 1.0)
    step = env.step(played, choices)
    return observation, shares, step.weights * rates * cost


def _fit(
    actor: Actor,
    optimiser: torch.optim.Optimizer,
    seen: torch.Tensor,
    taught: torch.Tensor,
    counts: torch.Tensor,
    teacher: Teacher,
) -> None:
    counts = counts / counts.mean()
    for _ in range(STEPS):
        part = torch.randint(len(seen), (4096,))
        scores, log_limits = actor(seen[part])
        log_shares = torch.log_softmax(scores, dim=-1)
        loss = -(counts[part] * (taught[part] * log_shares).sum(-1)).mean()
        if actor.batching_tiers:
            loss = loss - log_limits[..., teacher.limits].mean()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
