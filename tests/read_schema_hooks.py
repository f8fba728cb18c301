"""Serializers that schemathesis does not have: text bodies, sent unchanged."""

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/ndjson", "application/jsonl")
def lines(ctx, value):
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""
