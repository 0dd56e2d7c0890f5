"""Training at reduced size; `benchmarks/rl.py` measures it in full."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.workloads import edge, eq12
from fermata.commands.main import app
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, ms
from fermata.router.policies.rl.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fermata.router.policies.rl.network import PolicyNetwork, softmax
from fermata.router.policies.rl.observation import Scales, width
from fermata.simulator.learning.environment import Environment
from fermata.simulator.learning.system import read_system
from fermata.simulator.learning.teacher import Teacher
from fermata.simulator.learning.trained_scenario import served_by
from fermata.simulator.reports.phase_report import report_phases
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import load_scenario

BURSTS = Path(__file__).parents[2] / "simulator/samples/bursts.yaml"
SYSTEM = read_system(edge(arrivals=eq12("table")))


def test_the_teacher_fills_the_best_instances_first() -> None:
    teacher = Teacher(SYSTEM, SECOND, batching=False)
    lengths = np.array([[0.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    assert teacher.shares(10.0, lengths)[:, :2].sum(axis=1) == pytest.approx(1.0, abs=0.01)
    # In a burst each heavy one takes 0.75 x 23.3 of 180 requests, less what it has.
    empty, filled = teacher.shares(180.0, lengths)
    assert empty == pytest.approx([0.0971, 0.0971, 0.4029, 0.4029], abs=1e-3)
    assert filled == pytest.approx([0.0471, 0.0971, 0.4279, 0.4279], abs=1e-3)
    # One rule for calm, one for bursts.
    assert teacher.candidates(lengths).shape == (2, 2, 4)


def test_a_preview_leaves_the_slot_as_it_was() -> None:
    one, other = (
        Environment(SYSTEM, 50, SECOND, np.random.default_rng(5), even=even)
        for even in (True, True)
    )
    even = np.full((50, 4), 0.25)
    for _ in range(5):
        expected = one.preview(even)
        one.preview(np.tile([0.7, 0.1, 0.1, 0.1], (50, 1)))
        assert one.step(even).rewards == pytest.approx(expected)
        assert other.step(even).rewards == pytest.approx(expected)


def test_slots_count_as_often_as_the_workload_brings_them() -> None:
    env = Environment(SYSTEM, 400, SECOND, np.random.default_rng(5))
    even = np.full((400, 4), 0.25)
    steps = [env.step(even) for _ in range(60)]
    weights = np.concatenate([step.weights for step in steps])
    states = np.concatenate([step.states for step in steps])
    arrivals = np.concatenate([step.arrivals for step in steps])
    assert weights.mean() == pytest.approx(1.0, abs=0.05)
    assert weights[states == 0].sum() / weights.sum() == pytest.approx(1 / 19, rel=0.1)
    # Half of the requests come in bursts.
    assert (weights * arrivals)[states == 0].sum() / (weights * arrivals).sum() == pytest.approx(
        0.5, abs=0.03
    )


def test_the_exported_network_is_the_trained_one() -> None:
    torch = pytest.importorskip("torch", reason="training needs the extra torch")
    from fermata.simulator.learning.actor_critic import Actor

    torch.manual_seed(1)
    actor = Actor(inputs=7, instances=4, batching_tiers=2, hidden=(8, 8))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.normal_()
        seen = torch.randn(5, 7)
        scores, log_limits = actor(seen)
    values = actor.export()(seen.double().numpy())
    assert values[:, :4] == pytest.approx(scores.numpy(), abs=1e-4)
    limits = np.log(softmax(values[:, 4:].reshape(5, 2, 6)))
    assert limits == pytest.approx(log_limits.numpy(), abs=1e-4)


@pytest.mark.parametrize("batching", [False, pytest.param(True, marks=pytest.mark.long)])
def test_training_makes_a_policy_that_serves_bursts(batching: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra torch")
    from benchmarks.rl import slots
    from fermata.simulator.learning.ppo import Settings
    from fermata.simulator.learning.training import Lesson, train

    settings = Settings(copies=128, horizon=8, updates=3, imitation_rounds=4)
    lesson = Lesson(seed=1, with_arrivals=True, batching=batching, settings=settings)
    path = tmp_path / "policy.json"
    trained = train(slots(), lesson, path=path)
    again = train(slots(), replace(lesson))
    assert trained.curve == again.curve
    assert trained.curve[-1].slots == 4 * 8 * 128 + 3 * 8 * 128
    served = served_by(slots("text", duration_s=600, seed=77), path)
    burst, normal = report_phases(served, simulate(served)).states
    assert burst.violations < 0.1
    assert burst.first_variant < 0.4 < normal.first_variant


def test_batches_are_trained_where_tables_are_short() -> None:
    pytest.importorskip("torch", reason="training needs the extra torch")
    from fermata.simulator.learning.ppo import Settings
    from fermata.simulator.learning.training import Lesson, train

    settings = Settings(copies=32, horizon=4, updates=1, imitation_rounds=1)
    trained = train(load_scenario(BURSTS), Lesson(batching=True, settings=settings))
    assert trained.checkpoint.batching


def test_training_that_is_interrupted_leaves_a_policy(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra torch")
    from fermata.simulator.learning.ppo import Figures, Settings
    from fermata.simulator.learning.training import Lesson, Stopped, train

    path = tmp_path / "policy.json"
    lesson = Lesson(settings=Settings(copies=64, horizon=4, updates=9, imitation_rounds=2))

    def interrupt(done: float, figures: Figures) -> None:
        if done > 0.2:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match="holds the policy of 1,536 slots"):
        train(edge(arrivals=eq12("table")), lesson, interrupt, path)
    assert load_checkpoint(path).training["slots"] == 2 * 8 * 64 + 2 * 4 * 64


def test_a_checkpoint_is_evaluated_on_the_instances_it_was_trained_for(tmp_path: Path) -> None:
    inputs = width(2, Scales(15, ms(300)))
    nothing = PolicyNetwork((np.zeros((inputs, 2)),), (np.zeros(2),))
    empty = np.zeros(inputs)
    path = tmp_path / "policy.json"
    save_checkpoint(Checkpoint(nothing, (0, 1), Scales(15, ms(300)), SECOND, empty, empty), path)
    scenario = "simulator/samples/bursts.yaml"
    with pytest.raises(ConfigError, match=r"heavy, light, .* has heavy, heavy, light, light"):
        CliRunner().invoke(
            app, ["policy", "rl", "evaluate", str(path), scenario], catch_exceptions=False
        )


@pytest.mark.parametrize(("out", "words"), [("none/policy.json", "no folder"), ("", "a folder")])
def test_where_a_checkpoint_cannot_go_is_said_first(out: str, words: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra torch")
    train = ["policy", "rl", "train", "simulator/samples/bursts.yaml", "--out"]
    with pytest.raises(ConfigError, match=words):
        CliRunner().invoke(app, [*train, str(tmp_path / out)], catch_exceptions=False)


def test_the_command_line_trains_and_evaluates(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra torch")
    scenario = "simulator/samples/bursts.yaml"
    path, curve = tmp_path / "policy.json", tmp_path / "curve.png"
    short = tmp_path / "short.yaml"
    short.write_text(Path(scenario).read_text().replace("2000", "60"))
    train = ["policy", "rl", "train", str(short), "--out", str(path), "--updates", "1", "--json"]
    result = CliRunner().invoke(app, [*train, "--arrivals", "--plot", str(curve)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["slots"] > 0
    assert curve.stat().st_size > 1000
    both = ["policy", "rl", "curves", str(path), str(path), "--out", str(tmp_path / "both.png")]
    result = CliRunner().invoke(app, both)
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(
        app, ["policy", "rl", "evaluate", str(path), str(short), "--seed", "5", "--json"]
    )
    assert result.exit_code == 0, result.output
    compared = json.loads(result.stdout)
    assert compared["routing"]["violations"] <= 0.001
    assert 0.5 < compared["rl"]["goodput"] < 0.83
