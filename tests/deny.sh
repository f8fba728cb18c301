#!/usr/bin/env bash
# Checks licences, bans, sources and advisories of all dependencies, by deny.toml. First installs cargo-deny, compiled
# once (some minutes), into HOURBUCKET_TOOLS. Exit code 0: everything is allowed. `tests/deny.sh --offline` skips the
# advisories, whose list is a git repository on github.com.
set -euo pipefail

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/tools/setup.sh"
trap setup_cleanup EXIT

VERSION=0.20.2
WHAT=(advisories licenses bans sources)
case ${1:-} in
--offline) WHAT=(licenses bans sources) ;;
'') ;;
*) fail "unknown option $1; the only option is --offline" ;;
esac

ensure_build_tools
deny=${HOURBUCKET_CARGO_DENY:-$TOOLS/cargo-deny-$VERSION/bin/cargo-deny}
if [[ ! -x $deny ]]; then
    lock_tools
    if [[ ! -x $deny ]]; then
        step "compiling cargo-deny $VERSION into $TOOLS"
        CARGO_PROFILE_DEV_DEBUG=0 nice cargo install cargo-deny --version "=$VERSION" --locked --debug \
            --root "$TOOLS/partial/deny" --target-dir "$TOOLS/partial/target" ||
            fail "cargo-deny could not be compiled (above)"
        mv "$TOOLS/partial/deny" "$TOOLS/cargo-deny-$VERSION"
    fi
    unlock_tools
fi

cd "$REPO"
# Crates of other platforms are checked too, and no build has fetched them.
cargo fetch --locked --quiet
for what in "${WHAT[@]}"; do
    step "cargo deny: $what"
    if [[ $what == advisories ]]; then
        "$deny" --locked check "$what" ||
            fail "an advisory, or their list could not be fetched (above); tests/deny.sh --offline checks all else"
    else
        "$deny" --locked --offline check "$what"
    fi
done
