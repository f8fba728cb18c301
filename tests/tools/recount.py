"""Compares the stored data with the fleet's records: every reading exactly once, every summary recomputed."""

import math
from collections import Counter
from datetime import timezone

MISTAKES_MAX = 10  # shown; one is enough to fail


def recount(database, fleet):
    """Returns the numbers of stored readings, pages and sensors, and a list of the differences as text."""
    mistakes, timed, untimed = [], Counter(), {}
    pages, sensors = 0, set()
    for page in all_pages(database):
        pages += 1
        sensor = page["sensor_id"]
        sensors.add(sensor)
        mistakes += check_page(page)
        for reading in page["readings"]:
            values = {key: value for key, value in reading.items() if key != "ts"}
            if sensor.startswith("machine-"):
                for field, value in values.items():
                    untimed.setdefault((sensor, field), Counter())[value] += 1
            else:
                key = (sensor, to_ms(reading["ts"]))
                timed[key] += 1
                if fleet.timed.get(key) != values:
                    mistakes.append(f"{sensor} at {reading['ts']}: stored {values}, sent {fleet.timed.get(key)}")

    lost = [key for key in fleet.timed if timed[key] == 0]
    twice = [key for key, count in timed.items() if count > 1]
    mistakes += [f"{len(lost)} readings are not stored, for instance {lost[:3]}"] if lost else []
    mistakes += [f"{len(twice)} readings are stored more than once, for instance {twice[:3]}"] if twice else []
    for key in fleet.untimed.keys() | untimed.keys():
        if fleet.untimed.get(key) != untimed.get(key):
            sent, stored = (sum(side.get(key, Counter()).values()) for side in (fleet.untimed, untimed))
            mistakes.append(f"{key[0]}/{key[1]}: {sent} values were sent, {stored} are stored, or they differ")
    mistakes += check_view(database)

    stored = sum(timed.values()) + sum(sum(values.values()) for values in untimed.values())
    return stored, pages, len(sensors), mistakes


def all_pages(database):
    """Every bucket page with its readings: its own, or in time-series mode the measurements of its hour."""
    measured, known = {}, 0
    for row in database.sensor_readings.find({}):
        key = (row["meta"]["sensor_id"], row["ts"].replace(minute=0, second=0, microsecond=0))
        measured.setdefault(key, []).append({k: v for k, v in row.items() if k not in ("_id", "meta")})
        known += 1
    for page in database.sensor_buckets.find({}).sort([("sensor_id", 1), ("bucket_start", 1), ("page", 1)]):
        if page.get("storage") == "timeseries":
            page["readings"] = measured.get((page["sensor_id"], page["bucket_start"]), [])
            known -= len(page["readings"])
        yield page
    if known:
        raise ValueError(f"{known} measurements belong to no bucket")


def check_page(page):
    name = f"page {page['_id']}"
    readings = page["readings"]
    wrong = []
    if page["count"] != len(readings):
        wrong.append(f"{name}: count is {page['count']}, but it holds {len(readings)} readings")
    times = [reading["ts"] for reading in readings]
    if (page["first_ts"], page["last_ts"]) != (min(times), max(times)):
        wrong.append(f"{name}: first_ts or last_ts is not that of its readings")
    if min(times) < page["bucket_start"] or max(times) >= page["bucket_end"]:
        wrong.append(f"{name}: a reading of another hour")
    return wrong + compare(name, summarise(readings), page["summary"])


def check_view(database):
    """The view's rows against all readings of the sensor's hour, over its pages."""
    wrong, hours = [], {}
    for page in all_pages(database):
        hours.setdefault((page["sensor_id"], page["bucket_start"]), []).extend(page["readings"])
    rows = {(row["sensor_id"], row["bucket_start"]): row for row in database.sensor_summaries.find({})}
    if rows.keys() != hours.keys():
        wrong.append(f"sensor_summaries has {len(rows)} rows for {len(hours)} buckets")
    for key in rows.keys() & hours.keys():
        name = f"sensor_summaries of {key[0]} at {key[1]}"
        if rows[key]["count"] != len(hours[key]):
            wrong.append(f"{name}: count is {rows[key]['count']}, not {len(hours[key])}")
        wrong += compare(name, summarise(hours[key]), rows[key]["summary"])
    return wrong


def summarise(readings):
    fields = {}
    for reading in readings:
        for field, value in reading.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                fields.setdefault(field, []).append(value)
    return {field: {"min": min(all_), "max": max(all_), "sum": math.fsum(all_), "count": len(all_)}
            for field, all_ in fields.items()}


def compare(name, right, stored):
    if right.keys() != stored.keys():
        return [f"{name}: the summary has the fields {sorted(stored)}, the readings have {sorted(right)}"]
    wrong = []
    for field, numbers in right.items():
        for what, value in {**numbers, "avg": numbers["sum"] / numbers["count"]}.items():
            if what == "avg" and "avg" not in stored[field]:
                continue  # only the view has it
            if not math.isclose(stored[field].get(what, math.nan), value, rel_tol=1e-9, abs_tol=1e-9):
                wrong.append(f"{name}: {field}.{what} is {stored[field].get(what)}, not {value}")
    return wrong


def to_ms(ts):
    return round(ts.replace(tzinfo=timezone.utc).timestamp() * 1000)
