"""Proximal policy optimisation with generalised advantages (RL-edge Algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fermata.router.policies.rl.observation import Floats
from fermata.simulator.learning.actor_critic import Actor
from fermata.simulator.learning.environment import Environment, Step
from fermata.simulator.learning.lanes import Ints

STATES = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """How training goes. A full buffer drains in less than a slot, so a small discount loses
    nothing and spares the variance of rewards that an action has no part in."""

    copies: int = 512
    horizon: int = 16
    """Slots of each copy between two updates."""
    updates: int = 30
    epochs: int = 4
    minibatches: int = 4
    discount: float = 0.5
    trace: float = 0.9
    """Lambda of Eq. 11."""
    clip: float = 0.2
    learning_rate: float = 4e-4
    sigma: float = 0.15
    """Deviation of the noise on scores at the beginning of training."""
    sigma_end: float = 0.05
    hidden: tuple[int, ...] = (32, 32)
    imitation_rounds: int = 12


@dataclass(frozen=True, slots=True)
class Figures:
    """How the policy fared in a rollout, its noise included, as fractions of the requests."""

    slots: int
    goodput: float
    violations: float


class Rollout:
    """The copies' experience between two updates; the first axis is time."""

    def __init__(self, settings: Settings, env: Environment, width: int, tiers: int) -> None:
        size = (settings.horizon, env.copies)
        self.observations = torch.zeros(*size, width)
        self.insights = torch.zeros(*size, width + STATES + 1)
        self.log_shares = torch.zeros(*size, env.instances)
        self.choices = torch.zeros(*size, tiers, dtype=torch.long)
        self.densities = torch.zeros(size)
        self.rewards = torch.zeros(size)
        self.weights = torch.zeros(size)


class Learner:
    """An actor and its critic in training."""

    def __init__(self, env: Environment, actor: Actor, settings: Settings) -> None:
        self.env = env
        self.actor = actor
        self.settings = settings
        self.width = env.observe().shape[1]
        # The critic is not there when the policy serves, so it may see the state of the workload
        # and how much arrived: luck that no action has a part in.
        self.critic = nn.Sequential(
            nn.Linear(self.width + STATES + 1, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        parameters = [*actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate)
        self.low = np.full(self.width, np.inf)
        self.high = np.full(self.width, -np.inf)
        self.slots = 0

    def train(self) -> Iterator[Figures]:
        """Update by update; yields how the policy fared before each."""
        settings = self.settings
        for update in range(settings.updates):
            done = update / settings.updates
            sigma = settings.sigma + done * (settings.sigma_end - settings.sigma)
            for group in self.optimiser.param_groups:
                group["lr"] = settings.learning_rate * (1.0 - 0.9 * done)
            rollout, figures = self._collect(sigma)
            advantages, returns = self._advantages(rollout)
            self._update(rollout, advantages, returns, sigma)
            yield figures

    def _insight(self, observation: Floats, state: Ints, arrivals: Floats) -> Tensor:
        states = np.eye(STATES)[state]
        scaled = arrivals[:, None] / max(self.env.system.rates_rps)
        return torch.from_numpy(np.concatenate([observation, states, scaled], axis=1)).float()

    def _collect(self, sigma: float) -> tuple[Rollout, Figures]:
        env = self.env
        rollout = Rollout(self.settings, env, self.width, self.actor.batching_tiers)
        steps: list[Step] = []
        for time in range(self.settings.horizon):
            observation = env.observe()
            self.saw(observation)
            seen = torch.from_numpy(observation).float()
            log_shares, choices, density = self.actor.act(seen, sigma)
            step = env.step(log_shares.exp().double().numpy(), choices.numpy())
            steps.append(step)
            rollout.observations[time] = seen
            rollout.insights[time] = self._insight(
                observation, step.states, step.arrivals.astype(np.float64)
            )
            rollout.log_shares[time] = log_shares
            rollout.choices[time] = choices
            rollout.densities[time] = density
            rollout.rewards[time] = torch.from_numpy(step.rewards).float()
            rollout.weights[time] = torch.from_numpy(step.weights).float()
        self.slots += self.settings.horizon * env.copies
        return rollout, figures_of(self.slots, steps)

    def saw(self, observation: Floats) -> None:
        """Remember how far observations go: beyond, the policy is not to be trusted."""
        self.low = np.minimum(self.low, observation.min(axis=0))
        self.high = np.maximum(self.high, observation.max(axis=0))

    def _advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Eq. 11, with the discount that the paper's printed one lacks on the value of the next
        observation."""
        settings, env = self.settings, self.env
        rates = np.array(env.system.rates_rps)[env.state]
        with torch.no_grad():
            values = self.critic(rollout.insights)[..., 0]
            last = self.critic(self._insight(env.observe(), env.state, rates))[:, 0]
        advantages = torch.zeros_like(rollout.rewards)
        running = torch.zeros(env.copies)
        for time in reversed(range(settings.horizon)):
            following = last if time == settings.horizon - 1 else values[time + 1]
            error = rollout.rewards[time] + settings.discount * following - values[time]
            running = error + settings.discount * settings.trace * running
            advantages[time] = running
        return advantages, advantages + values

    def _update(self, rollout: Rollout, advantages: Tensor, returns: Tensor, sigma: float) -> None:
        settings = self.settings
        weights = rollout.weights.flatten()
        scale = (weights * advantages.flatten().square()).mean().sqrt() + 1e-6
        advantages = advantages.flatten() / scale
        returns = returns.flatten()
        observations = rollout.observations.flatten(0, 1)
        insights = rollout.insights.flatten(0, 1)
        log_shares = rollout.log_shares.flatten(0, 1)
        choices = rollout.choices.flatten(0, 1)
        densities = rollout.densities.flatten()
        for _ in range(settings.epochs):
            for part in torch.randperm(len(weights)).chunk(settings.minibatches):
                density = self.actor.density(
                    observations[part], log_shares[part], choices[part], sigma
                )
                ratio = (density - densities[part]).exp()
                clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
                gain = torch.minimum(ratio * advantages[part], clipped * advantages[part])
                error = (self.critic(insights[part])[..., 0] - returns[part]) / scale
                # The critic learns bursts and calm alike; only what the actor is paid for counts
                # as often as it comes.
                loss = -(weights[part] * gain).mean() + 0.5 * (
                    torch.nn.functional.smooth_l1_loss(error, torch.zeros_like(error))
                )
                self.optimiser.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(self.actor.parameters(), 1.0)
                self.optimiser.step()


def figures_of(slots: int, steps: list[Step]) -> Figures:
    """As the workload would have it: each slot counts as often as it comes there."""
    requests = sum(float((step.weights * step.arrivals).sum()) for step in steps)
    good = sum(float((step.weights * step.good).sum()) for step in steps)
    bad = sum(float((step.weights * step.bad).sum()) for step in steps)
    return Figures(slots, good / max(1.0, requests), bad / max(1.0, requests))
