#!/usr/bin/env bash
# Builds the fleet page from its sources: web/build.sh writes src/admin/page.html, web/build.sh --check only compares.
# Needs node 18 or later with npm; what it is built with comes from the npm registry as package-lock.json pins it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# `npm ci` costs seconds; what is there and fits the lock file is used as it is.
if ! cmp -s package-lock.json node_modules/.built-from; then
    # npm ends now and then in the middle of it; what it has got stays in its cache. Exit code 3: it could not get them.
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
cmp "$fresh" ../src/admin/page.html || {
    echo "src/admin/page.html is not what its sources in web/ give; run web/build.sh and commit the result" >&2
    exit 1
}
