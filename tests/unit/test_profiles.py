"""Profiles: latency by batch size, files and their refusals, the zoo, the H200 import."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.foundation.errors import ConfigError, ServingError
from fermata.profiles.h200 import Raised, import_file, main
from fermata.profiles.monotone import Change, monotone
from fermata.profiles.profile import Profile, from_table_ms, linear, ms
from fermata.profiles.store import (
    BYTES_PER_MB,
    Table,
    find,
    load_file,
    load_table,
    save_file,
    tables,
)

LINE = {"name": "line", "alpha_ms": 1.0, "beta_ms": 5.0}
MEASURED = {"name": "t", "batches": [1, 2, 4], "p50_ms": [3.0, 4.0, 6.0], "p99_ms": [3.5, 4, 9]}


def write(path: Path, *rows: Any, **top: Any) -> Path:
    head = {"schema": 1, "table": path.stem, "device": "d", "source": "s"}
    path.write_text(json.dumps({**head, "profiles": list(rows), **top}))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_line_is_alpha_times_size_plus_beta() -> None:
    profile = linear("ResNet50", 1.053, 5.072, slo_ms=25)
    assert profile.latency_ns(16) == 1_053_000 * 16 + 5_072_000
    assert profile.latency_ns_p99(16) == profile.latency_ns(16)
    assert profile.table_ns(3) == [6_125_000, 7_178_000, 8_231_000]
    assert profile.batch_size_max is None
    assert profile.slo_ns == 25_000_000


def test_sizes_between_measured_ones_are_interpolated() -> None:
    profile = from_table_ms("m", [3, 4, 6], batches=[1, 2, 6], p99_ms=[3, 5, 9])
    assert profile.latency_ns(2) == ms(4)
    assert profile.latency_ns(3) == ms(4.5)
    assert profile.latency_ns_p99(5) == ms(8)
    assert profile.table_ns_p99(4) == [ms(3), ms(5), ms(6), ms(7)]


def test_interpolation_rounds_to_the_nearest_nanosecond() -> None:
    profile = Profile("m", batches=(1, 4), p50_ns=(10, 12), p99_ns=(10, 12))
    assert profile.table_ns(4) == [10, 11, 11, 12]  # 10.67 and 11.33 between


def test_table_of_consecutive_sizes_ends_where_it_was_measured() -> None:
    profile = from_table_ms("m", [3, 4, 6])
    assert profile.batches == (1, 2, 3)
    assert profile.batch_size_max == 3
    assert profile.table_ns(100) == [ms(3), ms(4), ms(6)]
    with pytest.raises(ConfigError, match="batch size 4 is beyond the profile's end, 3; lower"):
        profile.latency_ns(4)


@pytest.mark.parametrize("profile", [linear("m", 1, 5), from_table_ms("m", [3, 4])])
def test_sizes_below_one_are_refused(profile: Profile) -> None:
    for ask in (profile.latency_ns, profile.latency_ns_p99, profile.dynamic_bytes_at):
        with pytest.raises(ConfigError, match="batch size 0 is below 1"):
            ask(0)
    with pytest.raises(ConfigError, match="batch size 0 is below 1"):
        profile.table_ns(0)


def test_dynamic_memory_is_one_number_or_a_column() -> None:
    profile = from_table_ms("m", [3, 4], batches=[1, 3])
    assert profile.dynamic_bytes_at(2) == 0
    assert replace(profile, dynamic_bytes=(100,)).dynamic_bytes_at(2) == 100
    assert replace(profile, dynamic_bytes=(100, 300)).dynamic_bytes_at(2) == 200
    with pytest.raises(ConfigError, match=r"dynamic_bytes=\[1, 2, 3\]: must hold one value"):
        replace(profile, dynamic_bytes=(1, 2, 3))


def test_input_size_is_the_side_or_the_length() -> None:
    profile = linear("m", 1, 5)
    assert profile.input_size is None
    assert replace(profile, input="3x224").input_size == 224
    assert replace(profile, input="tokens 128").input_size == 128


def test_profiles_built_in_code_obey_the_same_rules() -> None:
    with pytest.raises(ConfigError, match=r"profile 'm': p50_ms\[1\]=2: must be at least 3, the"):
        from_table_ms("m", [3, 2])
    with pytest.raises(ConfigError, match="profile 'm': alpha_ms=0: must be a finite number above"):
        linear("m", 0, 5)
    with pytest.raises(ConfigError, match=r"profile 'm': batches=\[\]: must list at least one"):
        Profile("m")
    with pytest.raises(ConfigError, match=r"profile 'm': accuracy=76\.1: must be a fraction"):
        linear("m", 1, 5, accuracy=76.1)
    with pytest.raises(ConfigError, match="must be empty where linear_ns is given"):
        replace(from_table_ms("m", [3]), linear_ns=(1, 1))


def test_config_errors_carry_a_grpc_status() -> None:
    assert ServingError.grpc_status == "INTERNAL"
    assert issubclass(ConfigError, ServingError)
    assert ConfigError("x").grpc_status == "INVALID_ARGUMENT"


columns = st.lists(
    st.tuples(st.integers(1, 7), st.integers(0, 9**9), st.integers(0, 9**9)), min_size=1, max_size=8
)


@settings(max_examples=50, deadline=None)
@given(columns)
def test_tables_never_fall_and_agree_with_single_sizes(steps: list[tuple[int, int, int]]) -> None:
    batches, p50, p99 = [1], [1 + steps[0][1]], [1 + steps[0][1] + steps[0][2]]
    for gap, rise, tail in steps[1:]:
        batches.append(batches[-1] + gap)
        p50.append(p50[-1] + rise)
        p99.append(max(p99[-1], p50[-1] + tail))
    profile = Profile("m", tuple(batches), tuple(p50), tuple(p99))
    end = batches[-1]
    table, tails = profile.table_ns(end + 5), profile.table_ns_p99(end + 5)
    assert len(table) == len(tails) == end
    assert table == sorted(table) == [profile.latency_ns(size) for size in range(1, end + 1)]
    assert tails == sorted(tails) == [profile.latency_ns_p99(size) for size in range(1, end + 1)]
    assert all(tail >= typical for typical, tail in zip(table, tails, strict=True))
    assert [table[size - 1] for size in batches] == p50


def test_running_maximum_reports_what_it_raised() -> None:
    assert monotone([3, 5, 4, 6]) == ((3, 5, 5, 6), (Change(2, 4, 5),))
    assert monotone([3, 4]) == ((3, 4), ())
    assert monotone([2, 9, 5], floor=[3, 4, 6]) == ((3, 9, 9), (Change(0, 2, 3), Change(2, 5, 9)))


def test_file_gives_typed_profiles(tmp_path: Path) -> None:
    rich = MEASURED | {"static_mb": 49.5, "dynamic_mb": [1, 2, 4], "load_ms": 20.3}
    rich |= {"swap_in_ms": 17.2, "accuracy": 0.76, "recall": [0.5, 1], "input": "3x224"}
    table = load_file(write(tmp_path / "mine.json", LINE | {"slo_ms": 27}, rich))
    assert (table.name, table.device, table.source) == ("mine", "d", "s")
    line, measured = table.profiles
    assert (line.linear_ns, line.slo_ns, line.device) == ((ms(1), ms(5)), ms(27), "d")
    assert measured.p99_ns == (3_500_000, 4_000_000, 9_000_000)
    assert measured.static_bytes == 49 * BYTES_PER_MB + BYTES_PER_MB // 2
    assert measured.dynamic_bytes_at(3) == 3 * BYTES_PER_MB
    assert (measured.load_ns, measured.swap_in_ns) == (20_300_000, 17_200_000)
    assert (measured.accuracy, measured.recall, measured.input_size) == (0.76, (0.5, 1), 224)


def test_p99_is_p50_where_only_one_column_is_known(tmp_path: Path) -> None:
    row = {key: value for key, value in MEASURED.items() if key != "p99_ms"}
    (profile,) = load_file(write(tmp_path / "mine.json", row)).profiles
    assert profile.p99_ns == profile.p50_ns == (ms(3), ms(4), ms(6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": [], "p50_ms": [], "p99_ms": []}, "batches=[]: must list at least one"),
        ({"batches": [2, 3, 4]}, "batches[0]=2: must be 1"),
        ({"batches": [1, 4, 4]}, "batches[2]=4: must be above the size before it, 4"),
        ({"batches": [1, 2.0, 4]}, "batches[1]=2.0: must be a whole number"),
        ({"batches": 3}, "batches=3: must be a list"),
        ({"p50_ms": [3, 4]}, "p50_ms=[3, 4]: has 2 values for 3 batch sizes"),
        ({"p50_ms": [0, 4, 6]}, "p50_ms[0]=0: must be a finite number above 0"),
        ({"p50_ms": [3, 4, 3.9]}, "p50_ms[2]=3.9: must be at least 4, the latency at batch 2"),
        ({"p50_ms": [3, 4, float("nan")]}, "p50_ms[2]=nan: must be a finite number above 0"),
        ({"p50_ms": [3, 4, float("inf")]}, "p50_ms[2]=inf: must be a finite number above 0"),
        ({"p50_ms": [3, "4", 6]}, "p50_ms[1]='4': must be a number"),
        ({"p50_ms": [3, True, 6]}, "p50_ms[1]=True: must be a number"),
        ({"p99_ms": [3.5, 3.6, 9]}, "p99_ms[1]=3.6: must be at least its p50, 4.0"),
        ({"p99_ms": [5, 4.5, 9]}, "p99_ms[1]=4.5: must be at least 5, the latency at batch 1"),
        ({"alpha_ms": 1}, "batches=[1, 2, 4]: give a table or alpha_ms and beta_ms, not both"),
        ({"dynamic_mb": [1, 2]}, "dynamic_mb=[1, 2]: has 2 values for 3 batch sizes"),
        ({"dynamic_mb": [1, 2, -1]}, "dynamic_mb[2]=-1: must be a finite number of at least 0"),
        ({"static_mb": -1}, "static_mb=-1: must be a finite number of at least 0"),
        ({"load_ms": None}, "load_ms=None: must be a number"),
        ({"accuracy": 76.1}, "accuracy=76.1: must be a fraction from 0 to 1; divide a percentage"),
        ({"recall": [0.5, 1.2]}, "recall[1]=1.2: must be a fraction from 0 to 1"),
        ({"slo_ms": 0}, "slo_ms=0: must be a finite number above 0"),
        ({"name": "a/b"}, "name='a/b': must not hold '/'"),
        ({"name": ""}, "name='': must be a string that is not empty"),
        ({"p95_ms": 1}, "p95_ms=1: unknown key; allowed: name, alpha_ms, beta_ms, batches, p50_ms"),
    ],
)
def test_bad_field_is_refused_by_name(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = write(tmp_path / "mine.json", LINE, MEASURED | change)
    assert refusal(path).startswith(f"profiles[1].{message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha_ms": 0}, "alpha_ms=0: must be a finite number above 0"),
        ({"alpha_ms": 10**400}, "alpha_ms=1000"),
        ({"beta_ms": -0.1}, "beta_ms=-0.1: must be a finite number of at least 0"),
        ({"beta_ms": None}, "beta_ms=None: must be a number"),
    ],
)
def test_bad_line_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    assert refusal(write(tmp_path / "x.json", LINE | change)).startswith(f"profiles[0].{message}")


def test_values_that_nanoseconds_cannot_hold_are_refused(tmp_path: Path) -> None:
    row = {"name": "m", "batches": [1], "p50_ms": [1e-9]}
    message = refusal(write(tmp_path / "x.json", row))
    assert message.startswith("profiles[0]: profile 'm': p50_ns[0]=0: must be a finite number")
    message = refusal(write(tmp_path / "x.json", LINE | {"load_ms": 1e10}))
    assert message.startswith("profiles[0]: profile 'line': load_ns=10000000000000000: must be")


def test_bad_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert refusal(path) == "cannot be read (No such file or directory); give a JSON file"
    assert refusal(tmp_path) == "cannot be read (Is a directory); give a JSON file"
    path.write_text("{")
    assert refusal(path).startswith("is not JSON (Expecting property name")
    path.write_bytes(b"\xff\xfe\xff")
    assert refusal(path).startswith("is not JSON (")
    path.write_text("[]")
    assert refusal(path) == "file=[]: must be an object with named fields"
    assert refusal(write(path)) == "profiles=[]: must hold at least one profile"
    assert refusal(write(path, 7)) == "profiles[0]=7: must be an object with named fields"
    assert refusal(write(path, LINE, schema=2)).startswith("schema=2: must be 1")
    assert refusal(write(path, LINE, device=None)).startswith("device=None: must be a string")
    assert refusal(write(path, LINE, gpu=1)).startswith("gpu=1: unknown key; allowed: schema,")
    assert refusal(write(path, LINE, LINE)).startswith("profiles[1].name='line': is used twice")


def test_saved_table_reads_back_as_it_was(tmp_path: Path) -> None:
    full = replace(
        from_table_ms("t", [3.0004, 4], p99_ms=[3.1, 4], accuracy=0.0, recall=[0.25], slo_ms=20),
        static_bytes=5_138_022,
        dynamic_bytes=(1, BYTES_PER_MB),
        load_ns=1,
        input="3x224",
    )
    profiles = tuple(replace(one, device="d") for one in (full, linear("line", 1, 0)))
    table = Table("mine", "d", "s", profiles)
    save_file(tmp_path / "mine.json", table)
    assert load_file(tmp_path / "mine.json") == table
    assert '"static_mb": 4.9,' in (tmp_path / "mine.json").read_text()


def test_find_takes_a_name_or_a_table_and_a_name(tmp_path: Path) -> None:
    write(tmp_path / "one.json", LINE, MEASURED | {"name": "resnet50"})
    write(tmp_path / "two.json", LINE | {"alpha_ms": 2})
    assert tables(tmp_path) == ["one", "two"]
    assert find("resnet50", tmp_path).batches == (1, 2, 4)
    assert find("two/line", tmp_path).linear_ns == (ms(2), ms(5))
    with pytest.raises(ConfigError, match="'line' is in 2 tables; say one/line or two/line"):
        find("line", tmp_path)
    with pytest.raises(ConfigError, match=r"no profile 'ResNet5' in .*; close: resnet50"):
        find("ResNet5", tmp_path)
    with pytest.raises(ConfigError, match="no profile 'resnet50' in two; known: line"):
        find("two/resnet50", tmp_path)
    with pytest.raises(ConfigError, match=r"no table 'on' in .*; close: one"):
        find("on/line", tmp_path)


def test_table_is_named_like_its_file(tmp_path: Path) -> None:
    write(tmp_path / "one.json", LINE, table="other")
    with pytest.raises(ConfigError, match=r"one\.json: table='other': must be 'one'"):
        load_table("one", tmp_path)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("symphony-1080ti", 35),
        ("symphony-a100", 37),
        ("symphony-table1", 6),
        ("symphony-table4", 2),
        ("h200-eager", 38),
        ("h200-graph", 33),
    ],
)
def test_zoo_tables_hold_their_rows(name: str, count: int) -> None:
    assert name in tables()
    assert len(load_table(name).profiles) == count


@pytest.mark.parametrize("name", ["symphony-1080ti", "symphony-a100"])
def test_paper_slo_leaves_room_for_two_batches_of_four(name: str) -> None:
    # Symphony, appendix B: each SLO allows batches of 4; the printed values are twice the latency
    # of such a batch, at least 20 ms, to within 1 ms.
    for profile in load_table(name).profiles:
        assert profile.slo_ns is not None
        assert abs(profile.slo_ns - max(ms(20), 2 * profile.latency_ns(4))) < ms(1), profile.name


def test_zoo_keeps_the_papers_numbers() -> None:
    assert find("symphony-1080ti/ResNet50").linear_ns == (2_050_000, 5_378_000)
    assert find("symphony-a100/InceptionResNetV2").linear_ns == (1_112_000, 15_270_000)
    vgg = find("symphony-table1/VGG16")
    assert vgg.file_bytes == 528 * BYTES_PER_MB
    assert vgg.static_bytes == 822 * BYTES_PER_MB
    assert vgg.dynamic_bytes_at(8) == 6200 * BYTES_PER_MB
    # Symphony, Table 4: staggered execution on 8 GPUs runs ResNet50 in batches of 16.
    resnet = find("symphony-table4/ResNet50")
    assert resnet.slo_ns == ms(25)
    assert resnet.latency_ns(16) <= resnet.slo_ns * 8 // 9 < resnet.latency_ns(17)


RAW = {
    "device": "NVIDIA H200",
    "torch": "2",
    "torchvision": "0",
    "dtype": "float16",
    "layout": "channels_last",
    "measured": "today",
    "profiles": [
        {
            "model": "m",
            "input": "3x224",
            "static_mb": 4.9,
            "load_ms": 24.7,
            "swap_in_ms": 8.1,
            "batches": [1, 2, 4],
            "eager_p50_ms": [3, 5, 4],
            "eager_p99_ms": [4, 4.5, 6],
            "graph_p50_ms": [None, None, None],
            "graph_p99_ms": [None, None, None],
            "dynamic_mb": [1, 2, 4],
        }
    ],
}


def test_import_makes_columns_monotone_and_reports_it(tmp_path: Path) -> None:
    path = tmp_path / "raw.json"
    path.write_text(json.dumps(RAW))
    result = import_file(path)
    eager, graph = result.tables
    (profile,) = eager.profiles
    assert profile.p50_ns == (ms(3), ms(5), ms(5))
    assert profile.p99_ns == (ms(4), ms(5), ms(6))
    assert profile.dynamic_bytes_at(4) == 4 * BYTES_PER_MB
    assert result.raised == (
        Raised("h200-eager", "m", "p50", 4, 4, 5),
        Raised("h200-eager", "m", "p99", 2, 4.5, 5),
    )
    assert graph.profiles == ()
    assert result.unmeasured == ("h200-graph/m",)


def test_import_command_prints_each_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "raw.json"
    raw.write_text(json.dumps(RAW))
    assert main([str(raw), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "h200-eager/m p50 at batch 4: 4 -> 5 ms"
    assert "h200-graph/m: not measured, left out" in printed
    assert printed[3].startswith("h200-eager: 1 profiles, 2 of 6 values raised, the most by a")
    assert tables(tmp_path / "out") == ["h200-eager"]
    assert load_table("h200-eager", tmp_path / "out").find("m").input_size == 224


def test_import_command_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "none.json"), str(tmp_path)]) == 1
    assert "none.json: cannot be read" in capsys.readouterr().err
