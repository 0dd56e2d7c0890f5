"""How a scene with a pipeline and a peer's knobs become what its processes are told."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peer_servers.fan_out import crop_count
from benchmarks.peer_servers.measurements import Measurements
from benchmarks.peer_servers.pipeline_knobs import (
    BEST,
    BLS,
    ENSEMBLE,
    FIRST,
    SERVE,
    PipelineKnobs,
    steps_of,
)
from benchmarks.peer_servers.pipeline_scene import gpus_of, pipeline_scene, setup_of
from benchmarks.peer_servers.pipeline_triton import stage_config
from benchmarks.pipelines_peers import best_known

PAIRS = [(scene, peer) for scene, peers in FIRST.items() for peer in peers]


def test_scenes_are_those_that_are_served_live() -> None:
    scene = pipeline_scene("A")
    assert (scene.gpus, scene.slo_ms, scene.crops_mean) == (4, 600.0, 5.0)
    assert scene.stages == (("stage-0", 16.0, 40.0), ("stage-1", pytest.approx(3.2), 20.0))
    assert pipeline_scene("C").crops_mean == 0.0


def test_frames_have_as_many_crops_on_average() -> None:
    random.seed(1)
    counts = [crop_count(5.0) for _ in range(20_000)]
    assert min(counts) == 0
    assert sum(counts) / len(counts) == pytest.approx(5.0, rel=0.05)
    assert crop_count(0.0) == 1


def test_stages_have_all_gpus_or_some_of_their_own() -> None:
    scene = pipeline_scene("A")
    assert gpus_of(scene, PipelineKnobs((8, 8))) == ((0, 1, 2, 3), (0, 1, 2, 3))
    assert gpus_of(scene, PipelineKnobs((8, 8), (1, 3))) == ((0,), (1, 2, 3))


def test_times_are_shares_of_the_slo(tmp_path: Path) -> None:
    knobs = PipelineKnobs((8, 32), waits=(0.02, 0.05), queues=(0.5, 0.0), deadlines=(0.6, 0.9))
    setup = setup_of(pipeline_scene("A"), knobs, str(tmp_path))
    assert [each.wait_ms for each in setup.models] == [12.0, 30.0]
    assert [each.queue_ms for each in setup.models] == [300.0, 0.0]
    assert [each.batch_size_max for each in setup.models] == [8, 32]
    assert (setup.options["slo_ms"], setup.options["deadlines"]) == (600.0, (0.6, 0.9))


def test_triton_is_told_of_every_knob(tmp_path: Path) -> None:
    knobs = PipelineKnobs((8, 32), (3, 1), (0.0, 0.1), (0.0, 0.5), preferred=(0, 16), limiter=True)
    setup = setup_of(pipeline_scene("A"), knobs, str(tmp_path))
    first, second = (stage_config(each, i, knobs, "") for i, each in enumerate(setup.models))
    assert [f'name: "gpu{gpu}" count: 1' in first for gpu in range(4)] == [True, True, True, False]
    assert "preferred" not in first
    for told in (
        "max_batch_size: 32",
        "max_queue_delay_microseconds: 60000",
        "default_timeout_microseconds: 300000",
        "preferred_batch_size: [16]",
        'name: "gpu3" count: 1',
        "priority: 1",
    ):
        assert told in second


@pytest.mark.parametrize(("scene", "peer"), PAIRS)
def test_every_setting_of_a_sweep_can_be_told(scene: str, peer: str, tmp_path: Path) -> None:
    tried = [
        replace(FIRST[scene][peer], **{name: value})
        for name, values in steps_of(scene, peer)
        for value in values
    ]
    names = {str(knobs) for knobs in (FIRST[scene][peer], *tried)}
    assert len(names) == len(tried) + 1
    for knobs in (*tried, BEST[scene][peer]):
        setup = setup_of(pipeline_scene(scene), knobs, str(tmp_path))
        assert all(each.gpus for each in setup.models)


def test_an_ensemble_has_no_fan_out_that_varies() -> None:
    assert ENSEMBLE not in FIRST["A"]
    assert set(FIRST["A"]) == {BLS, SERVE}


def test_the_best_of_a_sweep_is_found_again(tmp_path: Path) -> None:
    scene, found = pipeline_scene("C"), Measurements(tmp_path / "found.json")
    first = FIRST["C"][ENSEMBLE]
    assert best_known(scene, ENSEMBLE, found) == BEST["C"][ENSEMBLE]
    shared = replace(first, gpus=(0, 0))
    small = replace(shared, batches=(10, 10))
    sweep = {str(first): 50.0, str(shared): 60.0, str(small): 70.0}
    found.enter(scene, ENSEMBLE, sweep=sweep)
    assert best_known(scene, ENSEMBLE, Measurements(tmp_path / "found.json")) == small
