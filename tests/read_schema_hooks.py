"""What schemathesis does not know by itself: bodies that are text, as they are."""

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/ndjson", "application/jsonl")
def lines(ctx, value):
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""
