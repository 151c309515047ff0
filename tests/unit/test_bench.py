"""The bench's runner and its tables, with a stand-in for CuPy whose clock the test sets: no GPU is timed here."""

import json
import sys
import types

import pytest

from bench import harness, report, result_files, run


class _Event:
    def record(self):
        self.at = _FakeCupy.clock

    def synchronize(self):
        pass


class _Stream:
    ptr = 0

    def __init__(self, non_blocking=False):
        self.non_blocking = non_blocking

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def synchronize(self):
        pass


class _Buffer:
    def __init__(self, count):
        self.count = count

    def __ne__(self, other):
        return self

    __hash__ = None

    def any(self):
        return False


class _FakeCupy(types.ModuleType):
    clock = 0.0  # milliseconds; a run of the benchmark moves it

    def __init__(self):
        super().__init__("cupy")
        properties = {"name": b"Pretend GPU", "major": 9, "minor": 0, "l2CacheSize": 1000}
        runtime = types.SimpleNamespace(
            getDeviceProperties=lambda _: properties,
            runtimeGetVersion=lambda: 13000,
            driverGetVersion=lambda: 13010,
        )
        self.cuda = types.SimpleNamespace(
            runtime=runtime,
            Device=lambda: types.SimpleNamespace(id=0),
            Event=_Event,
            Stream=_Stream,
            get_elapsed_time=lambda start, stop: stop.at - start.at,
        )
        self.nan, self.float32 = float("nan"), "float32"
        self.random = types.SimpleNamespace(standard_normal=lambda count, dtype: _Buffer(count))

    def full_like(self, like, value):
        return _Buffer(like.count)

    def copyto(self, target, source):
        assert target.count == source.count
        _FakeCupy.clock += 1.0

    def get_default_memory_pool(self):
        return types.SimpleNamespace(free_all_blocks=lambda: None)


@pytest.fixture
def fake_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", _FakeCupy())
    monkeypatch.setattr(_FakeCupy, "clock", 0.0)


def _advance(milliseconds):
    _FakeCupy.clock += milliseconds


def _set_up(case):
    if case["size"] == 13:
        raise ValueError("no such transform")
    return harness.Setup(
        [
            harness.Contender("ours", lambda: _advance(1.25), lambda: 1e-7, 1e-6),
            harness.Contender("wrong", lambda: _advance(0.1), lambda: float("nan"), 1e-6),
            harness.Contender("broken", lambda: 1 / 0),
        ],
        moved_bytes=4096,
    )


def test_rows_are_checked_timed_and_merged(fake_cupy, tmp_path, capsys):
    cases = [{"size": 64}, {"size": 13}]
    failures = harness.run_benchmark("demo", cases, _set_up, folder=tmp_path, commit_name="abc")
    rows = result_files.load_rows("demo", tmp_path)
    by_name = {(row["case"]["size"], row["contender"]): row for row in rows}
    assert failures == 3
    assert by_name[64, "ours"]["times_copy"] == pytest.approx(1.25)
    assert by_name[64, "ours"]["ms"]["p20"] == pytest.approx(1.25)
    assert by_name[64, "ours"]["in_l2"] is False
    assert by_name[64, "copy"]["gb_per_s"] == pytest.approx(4096 / 1e6)
    assert "nan" in by_name[64, "wrong"]["failed"]
    assert "ms" not in by_name[64, "wrong"]
    assert "ZeroDivisionError" in by_name[64, "broken"]["failed"]
    assert "no such transform" in by_name[13, "(set-up)"]["failed"]
    for row in rows:
        assert {"gpu", "driver", "versions", "date", "commit"} <= set(row)
    assert "FAILED" in capsys.readouterr().out
    harness.run_benchmark("demo", [{"size": 64}], _set_up, folder=tmp_path, commit_name="def")
    again = result_files.load_rows("demo", tmp_path)
    assert len(again) == len(rows)
    assert {row["commit"] for row in again if row["case"]["size"] == 64} == {"def"}
    assert {row["commit"] for row in again if row["case"]["size"] == 13} == {"abc"}


def test_the_queue_is_filled_where_the_benchmark_says_so(fake_cupy, monkeypatch, tmp_path):
    held = []
    monkeypatch.setattr(harness, "_holder", lambda: lambda grid, block, arguments: held.append(int(arguments[0])))
    for effort in (harness.Effort(rounds=2), harness.Effort(rounds=2, held=True)):
        harness.run_benchmark("demo", [{"size": 64}], _set_up, effort=effort, folder=tmp_path, commit_name="abc")
        rows = [row for row in result_files.load_rows("demo", tmp_path) if "ms" in row]
        assert [row.get("held", False) for row in rows] == [effort.held] * 2
        assert rows[1]["times_copy"] == pytest.approx(1.25)
        assert len(held) == (4 if effort.held else 0)
    assert all(0 < wait <= harness._MOST_HELD for wait in held)


@pytest.mark.parametrize("with_torch", [False, True])
def test_torch_is_told_of_captures_where_it_is_there(fake_cupy, monkeypatch, with_torch):
    monkeypatch.setattr(harness.graphs, "with_cupy", lambda run, times: ("cupy", run, times))
    monkeypatch.setattr(harness.graphs, "with_torch", lambda run, times, cupy_too: ("torch", run, times, cupy_too))
    if with_torch:
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        assert harness._captured(len) == ("torch", len, harness.LAUNCHES, True)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        assert harness._captured(len) == ("cupy", len, harness.LAUNCHES)


def test_percentiles_interpolate():
    assert harness.percentiles([4.0, 1.0, 2.0, 3.0, 5.0]) == {"p20": 1.8, "p50": 3.0, "p80": pytest.approx(4.2)}
    assert harness.percentiles([7.0]) == {"p20": 7.0, "p50": 7.0, "p80": 7.0}


def test_tables_hold_what_was_measured(fake_cupy, tmp_path, monkeypatch):
    harness.run_benchmark("demo", [{"size": 128}, {"size": 64}], _set_up, folder=tmp_path, commit_name="abc")
    table = report.Table(rows=("size",), columns={"ours": "devkernels", "wrong": "wrong"}, metric="of_copy")
    monkeypatch.setattr(report, "tables_of", lambda name: {"main": table})
    text = "before\n<!-- bench:demo -->\nold\n<!-- /bench:demo -->\nafter\n"
    new = report.fill(text, tmp_path)
    assert "| 64 | 0.80 | failed |\n| 128 | 0.80 | failed |" in new
    assert "Pretend GPU" in new
    assert "old" not in new
    assert new.startswith("before\n<!-- bench:demo -->\n")
    assert new.endswith("<!-- /bench:demo -->\nafter\n")
    assert report.fill(new, tmp_path) == new


def test_two_gpus_do_not_share_a_table():
    rows = [{"gpu": "A", "date": "2030-01-02"}, {"gpu": "B", "date": "2030-01-03"}, {"gpu": "A", "date": "2030-01-01"}]
    assert report.latest(rows) == [rows[1]]


def test_select_keeps_cases_with_the_value():
    cases = [{"size": 64, "dtype": "complex64"}, {"size": 128, "dtype": "complex64"}, {"size": 64, "dtype": "float32"}]
    assert run.select(cases, ["size=64", "dtype=float32"]) == [cases[2]]
    assert run.select(cases, ["size=64", "size=128"]) == cases
    with pytest.raises(SystemExit, match="key=value"):
        run.select(cases, ["size"])


def test_all_benchmarks_can_be_listed_without_a_gpu(capsys):
    assert run.main(["--list"]) == 0
    printed = capsys.readouterr().out
    for name in run.available():
        assert name in printed


def test_committed_results_are_whole():
    """Every committed row says where it comes from; every table in the pages is made from them."""
    for path in sorted(result_files.RESULTS.glob("*.json")):
        document = json.loads(path.read_text())
        for row in document.get("rows", []):
            assert row["gpu"], path
            assert row["driver"], path
            assert row["versions"], path
            assert row["date"], path
            assert row["commit"], path
    assert report.main(["--check"]) == 0
