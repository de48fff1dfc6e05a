"""Far vectors and frames from Python. Argument: a node."""

import sys
import threading

import farmem
from farmem import col

address = sys.argv[1]
heap = farmem.Heap(nodes=[address], local="1M")


def refused(kind, text, act):
    try:
        act()
    except kind as e:
        assert text in str(e), str(e)
    else:
        raise AssertionError(f"{text} was to be refused")


def vectors():
    try:
        import numpy
    except ImportError:
        print("skipped: no numpy for /usr/bin/python3: install python3-numpy")
        return
    near = numpy.arange(500_000, dtype="f8") * 0.5
    far = farmem.Vec(heap, "f8")
    far.append(near[:300_000])
    far.append(near[300_000:])
    assert len(far) == 500_000 and far[123_456] == near[123_456] and far[-1] == near[-1]
    assert (far[1000:90_000] == near[1000:90_000]).all() and (numpy.asarray(far) == near).all()
    far[7] = -1.0
    far[1000:1003] = [1, 2, 3]
    assert far[7] == -1.0 and list(far[999:1004]) == [499.5, 1, 2, 3, 501.5]
    refused(IndexError, "index 500000 of a far vector", lambda: far[500_000])
    refused(ValueError, "does not shift", lambda: far.__setitem__(slice(0, 3), [1, 2]))
    for no_number in ("O", "S", "(2,)f8"):
        refused(TypeError, "a far vector has numbers", lambda: farmem.Vec(heap, no_number))
    # Any thread may use it.
    said = []
    thread = threading.Thread(target=lambda: said.append(far[499_999]))
    thread.start()
    thread.join()
    assert said == [near[-1]]
    # … and append to it: no element is lost, and each is whole. A thread is interrupted between any two steps.
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    many = farmem.Vec(heap, "u8")
    threads = [threading.Thread(target=lambda by=by: [many.append([by, by]) for _ in range(500)]) for by in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert len(many) == 4000 and all((many[:] == by).sum() == 1000 for by in range(4))
    assert (many[0::1].reshape(-1, 2)[:, 0] == many[:].reshape(-1, 2)[:, 1]).all()


def frames():
    try:
        import pyarrow as pa
    except ImportError as e:
        print(f"skipped: no pyarrow for /usr/bin/python3 ({e}): pip install 'pyarrow<19'")
        return
    rows = 100_000
    table = pa.table({
        "day": pa.array([n * 7 % 365 for n in range(rows)], pa.int32()),
        "fare": pa.array([n * 0.25 for n in range(rows)], pa.float64()),
        "tip": pa.array([None if n % 9 == 0 else n % 50 for n in range(rows)], pa.int64()),
        "card": pa.array([None if n % 11 == 0 else n % 3 == 0 for n in range(rows)]),
        "zone": pa.array([None if n % 13 == 0 else f"zone é{n % 40}" for n in range(rows)]),
        "id": pa.array(range(rows), pa.uint64()),
    })
    wanted = table.set_column(4, "zone", table["zone"].cast(pa.large_string()))
    trips = farmem.Frame.from_arrow(table, heap)
    assert len(trips) == rows
    assert trips.to_arrow() == wanted and trips.to_arrow()["tip"].null_count == table["tip"].null_count
    assert trips.rows(12_345, 12_400) == wanted.slice(12_345, 55).combine_chunks()
    # Sliced and chunked tables have offsets.
    parts = pa.concat_tables([table.slice(5, 4000), table.slice(70_001, 9)])
    assert farmem.Frame.from_arrow(parts, heap).to_arrow().to_pylist() == parts.to_pylist()
    reader = pa.RecordBatchReader.from_batches(table.schema, iter(table.to_batches(max_chunksize=9999)))
    assert farmem.Frame.from_arrow(reader, heap).to_arrow() == wanted
    if hasattr(pa.RecordBatchReader, "__arrow_c_stream__"):
        assert pa.table(trips) == wanted

    fares = [fare for day, fare in zip(table["day"].to_pylist(), table["fare"].to_pylist()) if day < 90]
    early = trips.filter(col("day") < 90)
    assert (early.count(), early.sum("fare"), early.max("fare")) == (len(fares), sum(fares), max(fares))
    some = trips.filter((col("tip") >= 40) & ~(col("zone") == "zone é3") | col("card").is_null()).collect()
    keep = [row for row in wanted.to_pylist() if (
        row["card"] is None or row["tip"] is not None and row["tip"] >= 40 and row["zone"] not in (None, "zone é3"))]
    assert some.to_arrow().to_pylist() == keep
    groups = trips.group("day").agg(("sum", "fare"), "rows").to_pylist()
    by_day = {}
    for day, fare in zip(table["day"].to_pylist(), table["fare"].to_pylist()):
        by_day.setdefault(day, []).append(fare)
    assert [(g["day"], g["fare_sum"], g["rows"]) for g in groups] == [(d, sum(f), len(f)) for d, f in by_day.items()]
    assert trips.sort("day", descending=True).head(1)["day"][0].as_py() == 364
    assert trips.take([9, 3]).to_arrow()["id"].to_pylist() == [9, 3]
    names = farmem.Frame.from_arrow(pa.table({"day": pa.array([3, 5], pa.int32()), "name": ["three", "five"]}), heap)
    joined = trips.join(names, "day").to_arrow()
    assert set(zip(joined["day"].to_pylist(), joined["name"].to_pylist())) == {(3, "three"), (5, "five")}

    # Narrow types and dictionaries are widened; others are refused by name.
    narrow = pa.table({"a": pa.array([1, -2], pa.int8()), "b": pa.array(["x", "y"]).dictionary_encode()})
    assert farmem.Frame.from_arrow(narrow, heap).to_arrow().to_pylist() == narrow.to_pylist()
    odd = pa.table({"list": [[1], [2]]})
    refused(ValueError, 'column "list" has Arrow\'s type', lambda: farmem.Frame.from_arrow(odd, heap))
    refused(ValueError, 'there is no column "fares"', lambda: trips.sum("fares"))
    refused(ValueError, 'column "zone" is text', lambda: trips.sum("zone"))
    with_others(table.slice(0, 3000))


def with_others(table):
    """DataFrames go in, and come out as they went in."""
    wanted = table.to_pylist()
    try:
        import pandas
    except ImportError as e:
        print(f"skipped: no pandas for /usr/bin/python3 ({e}): pip install pandas")
    else:
        # An index of its own does not come along.
        there = table.select(["day", "fare", "id"]).to_pandas().set_index(pandas.Index(range(3000, 0, -1)))
        back = farmem.Frame.from_arrow(there, heap).to_arrow().to_pandas()
        assert (back.to_numpy() == there.to_numpy()).all() and list(back.columns) == ["day", "fare", "id"]
    try:
        import polars
    except ImportError as e:
        print(f"skipped: no polars for /usr/bin/python3 ({e}): pip install polars")
    else:
        there = polars.from_arrow(table)
        far = farmem.Frame.from_arrow(there, heap)
        assert far.to_arrow().to_pylist() == wanted and polars.from_arrow(far.to_arrow()).equals(there)
        assert polars.DataFrame(far).equals(there)


vectors()
frames()
refused(farmem.Error, "", lambda: farmem.Heap(nodes=[address], local=4096))
print("all of it")
