#!/usr/bin/env python3
"""Generates dashboards/hourbucket.json: `build.py` writes it, `build.py --check` fails if the file differs.

The dashboard is maintained here, one call per panel, because the JSON's positions, ids and two hundred keys per panel
are hard to edit by hand. After a change in Grafana's editor, transfer it to this file and compare the two JSON files.
"""

import json
import pathlib
import sys

FILE = pathlib.Path(__file__).parent / "dashboards" / "hourbucket.json"
# Address of the runbooks; the same in deploy/prometheus/rules/hourbucket.yml. docs/monitoring.md describes how to change both.
RUNBOOKS = "https://hourbucket.example/docs/runbooks.md"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
S = '{instance=~"$instance"}'
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"


def only(matcher):
    """The selected instances, with one more matcher."""
    return '{instance=~"$instance",' + matcher + "}"


# Rejects of what senders sent; those of the store concern readings that were accepted before.
SENT = only('source!="store"')
# Every exporter has process_* metrics, so these need the job.
OWN = only('job="hourbucket"')


def rate(metric, by="", where=S):
    """A sum of rates per instance and per value of `by`."""
    return f"sum by (instance{', ' + by if by else ''}) (rate({metric}{where}[$__rate_interval]))"


def quantile(q, metric, by="", where=S):
    return (
        f"histogram_quantile({q}, sum by (instance{', ' + by if by else ''}, le) "
        f"(rate({metric}_bucket{where}[$__rate_interval])))"
    )


class Board:
    """Places panels from left to right and from top to bottom, in titled rows."""

    def __init__(self):
        self.panels, self.id, self.x, self.y, self.height = [], 0, 0, 0, 0

    def row(self, title):
        self.y, self.x, self.height = self.y + self.height, 0, 0
        self.add({"type": "row", "title": title, "collapsed": False, "panels": []}, WIDTH, 1)

    def add(self, panel, width, height):
        if self.x + width > WIDTH:
            self.y, self.x, self.height = self.y + self.height, 0, 0
        self.id += 1
        place = {"h": height, "w": width, "x": self.x, "y": self.y}
        self.panels.append({"id": self.id, **panel, "gridPos": place})
        self.x, self.height = self.x + width, max(self.height, height)

    def panel(self, kind, title, description, queries, unit, width, height, **more):
        targets = []
        for i, query in enumerate(queries):
            expr, legend, *form = query
            target = {"refId": chr(ord("A") + i), "datasource": SOURCE, "editorMode": "code", "expr": expr}
            target |= {"legendFormat": legend, "range": kind not in ("stat", "table")}
            target |= {"instant": kind in ("stat", "table")}
            targets.append(target | {"format": form[0] if form else "time_series"})
        steps = [{"color": GREEN, "value": None}] + [{"color": c, "value": v} for v, c in more.get("steps", [])]
        defaults = {
            "unit": unit,
            "color": {"mode": "thresholds" if kind == "stat" else "palette-classic"},
            "thresholds": {"mode": "absolute", "steps": more.get("all_steps", steps)},
            "mappings": more.get("mappings", []),
        }
        defaults |= {key: more[key] for key in ("min", "max", "decimals") if key in more}
        if kind == "timeseries":
            defaults["custom"] = {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 10,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if more.get("stack") else "none", "group": "A"},
                "thresholdsStyle": {"mode": "dashed" if "steps" in more else "off"},
                "scaleDistribution": {"type": "linear"},
            }
        panel = {
            "type": kind,
            "title": title,
            "description": description,
            "datasource": SOURCE,
            "targets": targets,
            "fieldConfig": {"defaults": defaults, "overrides": more.get("overrides", [])},
            "options": OPTIONS[kind],
            "links": [
                {"title": f"Runbook: {alert}", "url": f"{RUNBOOKS}#{alert.lower()}", "targetBlank": True}
                for alert in more.get("alerts", [])
            ],
        }
        if "transformations" in more:
            panel["transformations"] = more["transformations"]
        self.add(panel, width, height)

    def stat(self, title, description, expr, unit, legend="{{instance}}", width=4, **more):
        self.panel("stat", title, description, [(expr, legend)], unit, width, 4, **more)

    def graph(self, title, description, queries, unit, width=8, **more):
        self.panel("timeseries", title, description, queries, unit, width, 8, **more)

    def heatmap(self, title, description, metric, where=S, width=12, **more):
        expr = f"sum by (le) (increase({metric}_bucket{where}[$__rate_interval]))"
        self.panel("heatmap", title, description, [(expr, "{{le}}", "heatmap")], "s", width, 8, **more)


OPTIONS = {
    "stat": {
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange"},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
    },
    "table": {"cellHeight": "sm", "showHeader": True, "footer": {"show": False, "reducer": ["sum"], "countRows": False}},
}

YES_NO = [{"type": "value", "options": {"0": {"text": "no", "color": RED}, "1": {"text": "yes", "color": GREEN}}}]
BAD_BELOW_ONE = [{"color": RED, "value": None}, {"color": GREEN, "value": 1}]


def now(board):
    board.row("Now")
    board.stat(
        "Ready", "Whether readings sent now would be accepted; otherwise /readyz of the admin port has the reason.",
        f"hourbucket_ready{S}", "bool_yes_no", mappings=YES_NO, all_steps=BAD_BELOW_ONE,
        alerts=["HourbucketNotReady", "HourbucketDown", "HourbucketBroken"], width=3,
    )
    board.stat(
        "MongoDB answers", "Whether the last request to MongoDB succeeded. While MongoDB is unavailable the journal keeps the readings.",
        f"hourbucket_store_up{S}", "bool_yes_no", mappings=YES_NO, all_steps=BAD_BELOW_ONE,
        alerts=["HourbucketStoreUnreachable"], width=3,
    )
    board.stat(
        "Brokers connected", "Whether the service is connected to the broker and subscribed.",
        f"hourbucket_mqtt_connected{S}", "bool_yes_no", legend="{{instance}} {{broker}}", mappings=YES_NO,
        all_steps=BAD_BELOW_ONE, alerts=["HourbucketMqttDisconnected"], width=3,
    )
    board.stat(
        "Oldest unstored", "Age of the oldest accepted reading that MongoDB has not stored. Normally at most about the present flush age.",
        f"hourbucket_oldest_unstored_seconds{S}", "s", steps=[(60, YELLOW), (120, RED)], alerts=["HourbucketNotFresh"], width=3,
    )
    board.stat(
        "Journal in use", "Unstored bytes of the journal relative to journal.max_bytes. Empty with ingest.ack = \"stored\".",
        f"hourbucket_journal_unstored_bytes{S} / hourbucket_journal_max_bytes{S}", "percentunit", min=0, max=1,
        steps=[(0.5, YELLOW), (0.8, RED)], alerts=["HourbucketJournalNearlyFull", "HourbucketJournalFilling"], width=3,
    )
    board.stat(
        "Accepted", "Readings accepted per second, all sources, those replayed from the journal after a start included.",
        rate("hourbucket_readings_accepted_total"), "cps", all_steps=[{"color": BLUE, "value": None}], width=3,
    )
    board.stat(
        "Rejected share", "Share of the readings received in the last minutes that was rejected.",
        f'{rate("hourbucket_readings_rejected_total", where=SENT)} / ({rate("hourbucket_readings_received_total")} > 0)',
        "percentunit",
        min=0, max=1, steps=[(0.01, YELLOW), (0.05, RED)], alerts=["HourbucketRejectedHigh"], width=3,
    )
    board.stat(
        "Alerts firing", "Number of hourbucket alerts that fire in this Prometheus.",
        'count(ALERTS{alertname=~"Hourbucket.*",alertstate="firing"}) or vector(0)', "none", legend="firing",
        steps=[(1, RED)], width=3,
    )
    hide = {"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True, "__name__": True, "job": True}}}
    board.panel(
        "table", "Build and storage mode",
        "The version of each instance, and whether it stores readings in pages (bucket) or in a native time-series "
        "collection (timeseries). One job should not have both for long.",
        [(f"hourbucket_build_info{S} * on (instance) group_left (mode) (hourbucket_store_mode{S} == 1)", "", "table")],
        "none", 12, 5, transformations=[hide],
    )
    board.panel(
        "table", "Firing and pending alerts", "The hourbucket alerts that fire or are pending.",
        [('ALERTS{alertname=~"Hourbucket.*"}', "", "table")], "none", 12, 5, transformations=[hide],
    )


def traffic(board):
    board.row("Traffic")
    board.graph(
        "Received by source", "Readings that arrived, good or bad.",
        [(rate("hourbucket_readings_received_total", "source"), "{{instance}} {{source}}")], "cps", stack=True,
    )
    board.graph(
        "Accepted by source", "Readings accepted. \"replay\": readings replayed from the journal after a start.",
        [(rate("hourbucket_readings_accepted_total", "source"), "{{instance}} {{source}}")], "cps", stack=True,
    )
    board.graph(
        "Rejected by reason", "Readings and messages rejected. Source \"store\": acknowledged readings kept as dead letters.",
        [(rate("hourbucket_readings_rejected_total", "source, reason") + " > 0", "{{instance}} {{source}} {{reason}}")], "cps",
        alerts=[
            "HourbucketRejectedHigh", "HourbucketStoreRejected", "HourbucketStoreDeadLetters", "HourbucketSensorClocks",
            "HourbucketQos0Dropped",
        ],
    )
    board.graph(
        "Stored and duplicate",
        "The accepted readings by result: newly stored, or stored before. At rest the two add up to the accepted readings, "
        "but for those that MongoDB rejected.",
        [
            (rate("hourbucket_readings_stored_total", "mode"), "{{instance}} stored ({{mode}})"),
            (rate("hourbucket_readings_duplicate_total"), "{{instance}} duplicate"),
        ],
        "cps", stack=True, alerts=["HourbucketDuplicatesHigh"],
    )
    board.graph(
        "Stored otherwise than sent",
        "Readings with the time of receipt in place of their own, members that are not stored, values outside of a range, and "
        "messages without a payload.",
        [
            (rate("hourbucket_readings_retimed_total", "source"), "{{instance}} {{source}} retimed"),
            (rate("hourbucket_values_left_out_total", "source"), "{{instance}} {{source}} left out"),
            (rate("hourbucket_values_out_of_range_total", "fields, action"), "{{instance}} {{fields}} out of range, {{action}}"),
            (rate("hourbucket_names_renamed_total", "source"), "{{instance}} {{source}} names changed"),
            (rate("hourbucket_messages_empty_total", "source"), "{{instance}} {{source}} empty"),
        ],
        "cps",
    )
    board.graph(
        "Idempotency keys",
        "Requests over HTTP that were recognised as repeats, keys that were forgotten before their time, and keys remembered.",
        [
            (rate("hourbucket_idempotency_repeats_total"), "{{instance}} repeats/s"),
            (rate("hourbucket_idempotency_keys_forgotten_total"), "{{instance}} forgotten/s"),
            (f"hourbucket_idempotency_keys{S}", "{{instance}} remembered"),
        ],
        "short",
    )
    board.graph(
        "Dead letters by reason",
        "Messages and readings added to dead_letters within an hour; postponed: waiting in the journal, because they come too fast.",
        [
            (f"sum by (instance, reason) (increase(hourbucket_dead_letters_total{S}[1h])) > 0", "{{instance}} {{reason}}"),
            (f"hourbucket_dead_letters_postponed{S}", "{{instance}} postponed"),
        ],
        "short",
        alerts=["HourbucketDeadLetters"], min=0,
    )
    board.graph(
        "HTTP requests by route and status",
        "429 and 503: overload, a full journal or a stopping service. 400 to 415: errors of the sender.",
        [(rate("hourbucket_http_requests_total", "route, status"), "{{instance}} {{route}} {{status}}")], "reqps",
        alerts=["HourbucketHttpFailing"],
    )
    board.graph(
        "HTTP connections", "Open connections of the HTTP ports, idle ones included.",
        [(f"hourbucket_http_connections{S}", "{{instance}} {{port}}")], "short", width=6, min=0,
    )
    board.graph(
        "HTTP connections refused and ended",
        "Refused: the port or one address has too many, or the address is paused. Ended: idle for keep_alive or to make room "
        "(evicted), an incomplete head, or a peer that takes nothing of a response.",
        [
            (rate("hourbucket_http_connections_refused_total", "port, reason"), "{{instance}} {{port}} refused: {{reason}}"),
            (rate("hourbucket_http_connections_closed_total", "port, reason"), "{{instance}} {{port}} ended: {{reason}}"),
        ],
        "cps", width=12, min=0, alerts=["HourbucketConnectionsRefused"],
    )
    board.graph(
        "Failed authentications", "Requests and MQTT connections whose token was missing or wrong.",
        [(rate("hourbucket_auth_failures_total", "port, reason"), "{{instance}} {{port}} {{reason}}")], "cps", width=6, min=0,
        alerts=["HourbucketAuthFailures"],
    )
    board.graph(
        "Audit events", "Events of the audit log, and lines that audit.file does not have: beyond its rate (limit), or lost.",
        [
            (rate("hourbucket_audit_events_total", "event"), "{{instance}} {{event}}"),
            (rate("hourbucket_audit_dropped_total", "reason"), "{{instance}} not in the file: {{reason}}"),
        ],
        "cps", min=0, alerts=["HourbucketAuditDropped"],
    )


def senders(board):
    board.row("Acknowledgements")
    board.heatmap(
        "Acknowledgement latency", "Time from decoding to acknowledgement, for requests and groups of messages of all sources.",
        "hourbucket_ack_seconds", alerts=["HourbucketAcksSlow"],
    )
    board.heatmap(
        "HTTP latency", "Time from the head of a request to its answer, all routes.", "hourbucket_http_request_seconds",
    )
    board.graph(
        "Acknowledgement latency by source", "Median and 99th percentile.",
        [
            (quantile(0.5, "hourbucket_ack_seconds", "source"), "{{instance}} {{source}} p50"),
            (quantile(0.99, "hourbucket_ack_seconds", "source"), "{{instance}} {{source}} p99"),
        ],
        "s", steps=[(1, RED)], alerts=["HourbucketAcksSlow"],
    )
    board.graph(
        "Waiting for acknowledgement", "Messages and requests by source.",
        [(f"hourbucket_acks_pending{S}", "{{instance}} {{source}}")], "short", min=0,
    )
    board.graph(
        "HTTP latency by route", "99th percentile.",
        [(quantile(0.99, "hourbucket_http_request_seconds", "route"), "{{instance}} {{route}}")], "s",
    )


def backlog(board):
    board.row("Freshness and backlog")
    board.graph(
        "Oldest unstored reading",
        "Age of the oldest accepted reading that is not in MongoDB, and the present age at which readings are written.",
        [
            (f"hourbucket_oldest_unstored_seconds{S}", "{{instance}}"),
            (f"hourbucket_flush_age_seconds{S}", "{{instance}} flush age"),
        ],
        "s", min=0, steps=[(120, RED)],
        alerts=["HourbucketNotFresh"],
    )
    board.graph(
        "No progress", "Time for which the oldest unstored reading has been the same although MongoDB answers.",
        [(f"hourbucket_stalled_seconds{S}", "{{instance}}")], "s", min=0, steps=[(30, RED)],
        alerts=["HourbucketStalled"],
    )
    board.graph(
        "Quarantined buckets", "Buckets that keep failing in MongoDB while others succeed.",
        [(f"hourbucket_quarantined_buckets{S}", "{{instance}}")], "short", min=0, steps=[(1, RED)],
        alerts=["HourbucketBucketQuarantined"],
    )
    board.graph(
        "Oldest message without PUBACK", "Age of the message, per broker.",
        [(f"hourbucket_mqtt_oldest_unacked_seconds{S}", "{{instance}} {{broker}}")], "s", min=0, steps=[(30, RED)],
        alerts=["HourbucketAcksOld"],
    )
    board.graph(
        "Intake closed", "1 while nothing is accepted for this reason.",
        [(f"hourbucket_intake_closed{S}", "{{instance}} {{reason}}")], "short", min=0, max=1,
        alerts=["HourbucketJournalFull", "HourbucketBroken"],
    )
    board.graph(
        "Journal", "Its size on disk, and journal.max_bytes. The size includes up to four empty segments kept for reuse.",
        [
            (f"hourbucket_journal_bytes{S}", "{{instance}}"),
            (f"hourbucket_journal_unstored_bytes{S}", "{{instance}} unstored"),
            (f"hourbucket_journal_max_bytes{S}", "{{instance}} limit"),
        ],
        "bytes", min=0, alerts=["HourbucketJournalFilling", "HourbucketJournalNearlyFull"],
    )
    board.graph(
        "Journal lasts for", "Time until it is full if nothing were stored, at the rate of the last ten minutes.",
        [(f"(hourbucket_journal_max_bytes{S} - hourbucket_journal_unstored_bytes{S}) "
          f"/ rate(hourbucket_journal_written_bytes_total{S}[10m])", "{{instance}}")],
        "s", min=0, alerts=["HourbucketJournalFilling"],
    )
    board.graph(
        "Unstored journal entries", "One entry is one request or one group of messages.",
        [(f"hourbucket_journal_unstored_entries{S}", "{{instance}}")], "short", min=0,
    )
    board.graph(
        "Readings in flight", "Readings in memory that are not stored. Readings that exist only in the journal do not count.",
        [(f"hourbucket_readings_in_flight{S}", "{{instance}}")], "short", min=0,
    )
    board.graph(
        "Journal, present group", "Time for which the journal has been writing and syncing it. If it grows, the disk does not answer.",
        [(f"hourbucket_journal_commit_age_seconds{S}", "{{instance}}")], "s", min=0, steps=[(5, RED)],
        alerts=["HourbucketJournalSlow"],
    )
    board.heatmap(
        "Journal fdatasync", "Time of one fdatasync. Every acknowledgement waits for one.", "hourbucket_journal_sync_seconds",
        alerts=["HourbucketJournalSlow"],
    )
    board.graph(
        "Journal fdatasync, 99th percentile", "If it rises, the disk of journal.dir is busy or failing.",
        [(quantile(0.99, "hourbucket_journal_sync_seconds"), "{{instance}}")], "s", width=12, steps=[(0.1, RED)],
        alerts=["HourbucketJournalSlow"],
    )


def store(board):
    board.row("MongoDB")

    def statements(kinds):
        return rate("hourbucket_store_statements_total", where=only(kinds))

    stored = rate("hourbucket_readings_stored_total")
    measurements = statements('kind="measurement"')
    pages = statements('kind=~"insert|update"')
    board.graph(
        "Readings per statement",
        "Readings in each statement that holds readings: measurement in time-series mode, otherwise insert and update. More is "
        "cheaper; it grows with flush.max_age and the load.",
        [(f"{stored} / ({measurements} > 0 or {pages})", "{{instance}}")],
        "short", min=0,
    )
    every = statements('kind!="read"')
    board.graph(
        "Statements per reading",
        "All statements but those of queries, loads included, per stored reading: the server's work for one reading.",
        [(f"{every} / {stored}", "{{instance}}")], "short", min=0,
    )
    writes = only('kind=~"insert|update|measurement"')
    commands = rate("hourbucket_store_write_seconds_count", "kind", writes)
    board.graph(
        "Statements per command", "Average size of the commands that write readings; up to flush.command_max_statements.",
        [(f'{rate("hourbucket_store_statements_total", "kind", writes)} / {commands}', "{{instance}} {{kind}}")],
        "short", min=0,
    )
    board.graph(
        "Statements by kind",
        "insert: a new page; update: more readings for a page; load: a bucket looked up; measurement: native "
        "time-series; recount: a summary recomputed from stored measurements; latest, catalog, dead_letter: documents of "
        "these collections; read: queries.",
        [(rate("hourbucket_store_statements_total", "kind"), "{{instance}} {{kind}}")], "ops", stack=True,
    )
    board.graph(
        "Latency by kind", "99th percentile of one command; for load, catalog, dead_letter and read, of a request of one or more.",
        [(quantile(0.99, "hourbucket_store_write_seconds", "kind"), "{{instance}} {{kind}}")], "s",
    )
    board.heatmap(
        "Write latency", "Time of one command that writes readings.", "hourbucket_store_write_seconds", where=writes, width=8,
    )
    board.graph(
        "Errors by kind",
        "Commands and statements that failed. Each is retried, after a lookup of the stored page if necessary; refused: a dead "
        "letter that MongoDB does not take.",
        [(rate("hourbucket_store_errors_total", "kind"), "{{instance}} {{kind}}")], "ops",
        alerts=["HourbucketStoreErrors", "HourbucketStoreUnreachable"], min=0,
    )
    board.graph(
        "Conflicts and retries", "Conflicts: statements that found another version of their page. Retries: commands sent again.",
        [
            (rate("hourbucket_store_conflicts_total"), "{{instance}} conflicts"),
            (rate("hourbucket_store_retries_total"), "{{instance}} retries"),
        ],
        "ops", alerts=["HourbucketConflictsHigh"], min=0,
    )
    board.graph(
        "Open buckets",
        "Buckets (one hour of one sensor each) that are held in memory. Forgotten in an hour: those that left it too early, "
        "because it was full.",
        [
            (f"hourbucket_open_buckets{S}", "{{instance}}"),
            (f"increase(hourbucket_buckets_forgotten_total{S}[1h])", "{{instance}} forgotten in an hour"),
        ],
        "short", min=0,
    )


def mqtt(board):
    board.row("MQTT")
    board.graph(
        "Connected", "1 while connected to the broker and subscribed.",
        [(f"hourbucket_mqtt_connected{S}", "{{instance}} {{broker}}")], "short", min=0, max=1,
        alerts=["HourbucketMqttDisconnected"],
    )
    board.graph(
        "Reconnects", "Connections to the broker after the first, within five minutes.",
        [(f"sum by (instance, broker) (increase(hourbucket_mqtt_reconnects_total{S}[5m]))", "{{instance}} {{broker}}")], "short",
        min=0, alerts=["HourbucketMqttFlapping"],
    )
    board.graph(
        "Waiting for PUBACK", "Messages of the broker; up to mqtt.window.",
        [(f"hourbucket_mqtt_unacked{S}", "{{instance}} {{broker}}")], "short", min=0,
    )
    board.graph(
        "Window full", "Share of the time during which mqtt.window was full (MQTT 5) and the broker held messages back.",
        [(rate("hourbucket_mqtt_window_full_seconds_total", "broker"), "{{instance}} {{broker}}")], "percentunit", min=0, max=1,
        steps=[(0.5, RED)], alerts=["HourbucketMqttWindowFull"],
    )
    board.graph(
        "Retained skipped, rebirths requested", "Retained messages that were skipped, and rebirth requests to Sparkplug B nodes.",
        [
            (rate("hourbucket_mqtt_left_out_total", "broker"), "{{instance}} {{broker}} skipped"),
            (rate("hourbucket_sparkplug_rebirths_total", "broker"), "{{instance}} {{broker}} rebirths"),
        ],
        "cps", min=0,
    )
    board.graph(
        "Devices connected", "Devices connected to the service's MQTT port ([listen.mqtt]).",
        [(f"hourbucket_mqtt_direct_connections{S}", "{{instance}}")], "short", min=0,
    )
    board.graph(
        "Devices: connection attempts", "By result. \"accepted\" means success.",
        [(rate("hourbucket_mqtt_direct_connects_total", "result"), "{{instance}} {{result}}")], "cps", width=12, min=0,
    )
    board.graph(
        "Devices: ended connections",
        "By reason. \"left\": the device sent DISCONNECT. \"lost\": the connection broke. The service ended all others.",
        [(rate("hourbucket_mqtt_direct_disconnects_total", "reason"), "{{instance}} {{reason}}")], "cps", width=12, min=0,
        alerts=["HourbucketDevicesDisconnected"],
    )


def process(board):
    board.row("Memory and process")
    board.graph(
        "Memory of the shards",
        "Open buckets, sensors and what is known of them, relative to accumulate.max_bytes. Near the limit, buckets are "
        "written early.",
        [
            (f"hourbucket_accumulate_bytes{S}", "{{instance}}"),
            (f"hourbucket_accumulate_max_bytes{S}", "{{instance}} limit"),
        ],
        "bytes", min=0, alerts=["HourbucketMemoryNearLimit"],
    )
    board.graph(
        "Memory of the process", "Resident: counts against a container's limit. Virtual: address space, mostly unused.",
        [
            (f"process_resident_memory_bytes{OWN}", "{{instance}} resident"),
            (f"process_virtual_memory_bytes{OWN}", "{{instance}} virtual"),
        ],
        "bytes", min=0,
        overrides=[
            {
                "matcher": {"id": "byRegexp", "options": ".* virtual"},
                "properties": [{"id": "custom.hideFrom", "value": {"legend": False, "tooltip": False, "viz": True}}],
            }
        ],
    )
    board.graph(
        "CPU", "Cores in use.", [(f"rate(process_cpu_seconds_total{OWN}[$__rate_interval])", "{{instance}}")], "short", min=0,
    )
    board.graph(
        "File descriptors", "Files and connections, and the limit (ulimit -n).",
        [(f"process_open_fds{OWN}", "{{instance}}"), (f"process_max_fds{OWN}", "{{instance}} limit")], "short", min=0,
        alerts=["HourbucketFewDescriptors"],
    )
    board.graph(
        "Clock", "How far the machine's clock is behind Prometheus' clock.",
        [(f"timestamp(hourbucket_clock_seconds{S}) - hourbucket_clock_seconds{S}", "{{instance}}")], "s",
        alerts=["HourbucketClockOff"],
    )
    board.graph(
        "Uptime", "Time since the process was started.",
        [(f"time() - process_start_time_seconds{OWN}", "{{instance}}")], "s", min=0, alerts=["HourbucketRestarting"],
    )
    board.graph(
        "Certificates",
        "Time until a port's certificate expires, and until its revocation list is to be replaced. The service reads the"
        " files again when they change.",
        [
            (f"hourbucket_tls_not_after_seconds{S} - time()", "{{instance}} {{port}}"),
            (f"hourbucket_tls_crl_next_update_seconds{S} - time() < +Inf", "{{instance}} {{port}} revocation list"),
        ],
        "s", width=6, min=0, alerts=["HourbucketCertificateExpires", "HourbucketRevocationListOutdated"],
    )
    board.graph(
        "Certificate files", "0 while the files of a port are unusable and an older certificate is in use; and failed reads.",
        [
            (f"hourbucket_tls_files_ok{S}", "{{instance}} {{port}} usable"),
            (rate("hourbucket_tls_reads_total", "port", only('result="failed"')), "{{instance}} {{port}} failed"),
        ],
        "short", width=6, min=0, alerts=["HourbucketTlsFilesUnusable"],
    )
    board.graph(
        "TLS handshakes", "Handshakes on the HTTP ports, by result.",
        [(rate("hourbucket_tls_handshakes_total", "port, result"), "{{instance}} {{port}} {{result}}")], "cps", width=6, min=0,
    )
    board.graph(
        "Settings", "Reloads (SIGHUP) by result, the age of the settings in effect, and how many ranges they have.",
        [
            (f"hourbucket_config_reloads_total{S}", "{{instance}} {{result}}"),
            (f"time() - hourbucket_config_last_reload_success_timestamp_seconds{S}", "{{instance}} age in s"),
            (f"hourbucket_ranges_active{S}", "{{instance}} ranges"),
        ],
        "short", width=6, min=0, alerts=["HourbucketSettingsRefused"],
    )
    board.graph(
        "PromQL queries running", "Queries below /prometheus that are evaluated now; promql.queries_max is the limit.",
        [(f"hourbucket_promql_queries_running{S}", "{{instance}}")], "short", min=0, width=6,
    )


def side(board):
    board.row("Forwarding (if enabled)")
    board.graph(
        "Oldest reading not forwarded", "Age of the oldest reading that the centre has not acknowledged.",
        [(f"hourbucket_forward_oldest_seconds{S}", "{{instance}}")], "s", min=0, width=6, steps=[(600, RED)],
        alerts=["HourbucketForwardBehind"],
    )
    board.graph(
        "Forwarded readings, and rejects", "Readings that the centre has acknowledged, and those that it rejects.",
        [
            (rate("hourbucket_forward_readings_total"), "{{instance}} acknowledged"),
            (rate("hourbucket_forward_rejected_total"), "{{instance}} rejected"),
        ],
        "ops", min=0, width=6,
    )
    board.graph(
        "Requests to the centre", "By result. \"failed\": without an answer; \"busy\": 429 or 503; \"unauthorized\": the token.",
        [(rate("hourbucket_forward_requests_total", "result"), "{{instance}} {{result}}")], "reqps", min=0, width=6,
    )
    board.graph(
        "Bytes on the uplink", "Bodies after compression, sent again or not.",
        [(rate("hourbucket_forward_bytes_total"), "{{instance}}")], "Bps", min=0, width=6,
    )
    board.row("Daily rollup (if enabled)")
    board.graph(
        "Daily rollup overdue", "How long the most overdue day has been due to be computed.",
        [(f"hourbucket_rollup_overdue_seconds{S}", "{{instance}}")], "s", min=0, width=6, steps=[(900, RED)],
        alerts=["HourbucketRollupBehind"],
    )
    board.graph(
        "Days computed", "By result. \"failed\": tried again; \"refused\": by MongoDB; \"expired\": hours may be missing.",
        [(rate("hourbucket_rollup_computed_total", "result"), "{{instance}} {{result}}")], "ops", min=0, width=6,
    )
    board.graph(
        "Days with changes", "Open days, and days that are to be computed again.",
        [(f"hourbucket_rollup_pending{S}", "{{instance}}")], "short", min=0, width=6,
    )
    board.graph(
        "Memory for days with changes",
        "Relative to rollup.max_bytes.", [(f"hourbucket_rollup_bytes{S}", "{{instance}}")], "bytes", min=0, width=6,
    )
    board.row("Removal of old readings (if enabled)")
    board.graph(
        "Oldest readings to be removed", "For how long the oldest page with readings has been due to lose them.",
        [(f"hourbucket_readings_removal_lag_seconds{S}", "{{instance}}")], "s", min=0, width=12, steps=[(86400, RED)],
        alerts=["HourbucketReadingsNotRemoved"],
    )
    board.graph(
        "Pages without readings, and failures", "Pages whose readings were removed, and commands that failed.",
        [
            (rate("hourbucket_readings_removed_pages_total"), "{{instance}} pages"),
            (rate("hourbucket_readings_removal_errors_total"), "{{instance}} failures"),
        ],
        "ops", min=0, width=12,
    )
    board.row("Catalogue; latest state and registry (if enabled)")
    board.graph(
        "Silent sensors", "Sensors of which nothing has arrived for sensors.silent_after. All instances show the same.",
        [(f"hourbucket_sensors_silent{S}", "{{instance}}")], "short", min=0, width=12, alerts=["HourbucketSensorsSilent"],
    )
    board.graph(
        "Known sensors", "Sensors in sensor_catalog.",
        [(f"hourbucket_sensors_known{S}", "{{instance}}")], "short", min=0, width=12,
    )
    board.graph(
        "Updates of sensor_catalog and sensor_latest",
        "By result. \"written\" includes those that changed nothing. \"refused\": MongoDB rejects them because of their content.",
        [
            (rate("hourbucket_catalog_updates_total", "result"), "{{instance}} catalog {{result}}"),
            (rate("hourbucket_latest_updates_total", "result"), "{{instance}} latest {{result}}"),
        ],
        "ops", min=0, width=6,
    )
    board.graph(
        "Sensors with a pending update", "Sensors whose document in sensor_latest is to be updated.",
        [(f"hourbucket_latest_sensors{S}", "{{instance}}")], "short", min=0, width=6,
    )
    board.graph(
        "Memory for pending updates",
        "Relative to latest.max_bytes.", [(f"hourbucket_latest_bytes{S}", "{{instance}}")], "bytes", min=0, width=6,
    )
    board.graph(
        "Sensors of the registry", "Loaded, and skipped because of enrich.max_sensors.",
        [
            (f"hourbucket_registry_sensors{S}", "{{instance}} loaded"),
            (f"hourbucket_registry_left_out{S}", "{{instance}} skipped"),
        ],
        "short", min=0, width=6,
    )
    board.graph(
        "Full registry loads", "By result. The registry is loaded at the start, and after its change stream ends.",
        [(rate("hourbucket_registry_loads_total", "result"), "{{instance}} {{result}}")], "ops", min=0, width=12,
    )
    board.graph(
        "Changes of the registry", "Applied from its change stream.",
        [(rate("hourbucket_registry_changes_total"), "{{instance}}")], "ops", min=0, width=12,
    )


def dashboard():
    board = Board()
    for part in (now, traffic, senders, backlog, store, mqtt, process, side):
        part(board)
    instances = "label_values(hourbucket_build_info, instance)"
    return {
        "uid": "hourbucket",
        "title": "hourbucket",
        "description": "Sensor readings over MQTT and HTTP into MongoDB as hourly buckets. Generated by deploy/grafana/build.py.",
        "tags": ["hourbucket", "mongodb", "mqtt", "iot"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "version": 1,
        "annotations": {
            "list": [
                {
                    "builtIn": 1,
                    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
                    "enable": True,
                    "hide": True,
                    "iconColor": "rgba(0, 211, 255, 1)",
                    "name": "Annotations & Alerts",
                    "type": "dashboard",
                },
                {
                    "datasource": SOURCE,
                    "enable": True,
                    "expr": f"changes(process_start_time_seconds{OWN}[2m]) > 0",
                    "iconColor": "purple",
                    "name": "Starts",
                    "step": "60s",
                    "titleFormat": "{{instance}} was started",
                },
            ]
        },
        "links": [
            {"title": "Runbooks", "type": "link", "icon": "doc", "url": RUNBOOKS, "targetBlank": True, "asDropdown": False,
             "includeVars": False, "keepTime": False, "tags": [], "tooltip": "Meaning of each alert and what to do"},
        ],
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "regex": "",
                 "current": {}, "hide": 0, "includeAll": False, "multi": False, "options": [], "refresh": 1},
                {"name": "instance", "label": "Instance", "type": "query", "datasource": SOURCE, "definition": instances,
                 "query": {"qryType": 1, "query": instances, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
                 "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "hide": 0, "includeAll": True,
                 "multi": True, "options": [], "refresh": 2, "regex": "", "sort": 1},
            ]
        },
        "panels": board.panels,
    }


def main():
    text = json.dumps(dashboard(), indent=2) + "\n"
    if sys.argv[1:] == ["--check"]:
        if not FILE.exists() or FILE.read_text(encoding="utf-8") != text:
            sys.exit(f"{FILE} is not what build.py generates; run deploy/grafana/build.py")
    elif sys.argv[1:]:
        sys.exit("usage: build.py [--check]")
    else:
        FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
