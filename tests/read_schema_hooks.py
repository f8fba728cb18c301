"""Serializers that schemathesis does not have: bodies sent unchanged."""

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/ndjson", "application/jsonl")
def lines(ctx, value):
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""


@schemathesis.serializer("application/x-protobuf")
def message(ctx, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
