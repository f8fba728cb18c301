#!/usr/bin/env bash
# Builds the fleet page from its sources: web/build.sh writes src/query/src/admin/page.html, web/build.sh --check only compares.
# Requires node 18 or later with npm. The build tools come from the npm registry; package-lock.json pins them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# `npm ci` takes seconds; skipped if the installed modules match the lock file.
if ! cmp -s package-lock.json node_modules/.built-from; then
    # npm sometimes aborts; its cache keeps the downloads for the next try. Exit code 3: the download failed.
    for try in 1 2 3; do
        timeout --kill-after=10 120 npm ci --no-audit --no-fund --loglevel=error && break
        ((try < 3)) || exit 3
    done
    cp package-lock.json node_modules/.built-from
fi
[[ ${1:-} == --check ]] || exec node build.mjs

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
node build.mjs "$fresh" >/dev/null
cmp "$fresh" ../src/query/src/admin/page.html || {
    echo "src/query/src/admin/page.html does not match its sources in web/; run web/build.sh and commit the result" >&2
    exit 1
}
