#!/usr/bin/env bash
# The binary that is shipped, from the lock file alone. The same commit and the same compiler should give the same file, in
# whatever directory it is built: paths are cut out of it, and nothing in it tells a time.
#
#   deploy/release.sh [OUT]     builds and writes OUT/hourbucket and OUT/hourbucket.sha256 (default: target/dist)
#
# Environment: CARGO_TARGET_DIR as cargo has it.
set -euo pipefail

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/tools/setup.sh"

ensure_build_tools
cd "$REPO"
target=${CARGO_TARGET_DIR:-$REPO/target}
out=${1:-$target/dist}
mkdir -p "$out"
[[ -z $(git status --porcelain 2>/dev/null) ]] || say "note: the tree has changes that are in no commit"

# Rust's paths by flags of its own, the C compiler's (zstd, ring, mimalloc) by its; each part of the path that is another
# one elsewhere.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)
remap="--remap-path-prefix=$REPO=/hourbucket --remap-path-prefix=$target=/target"
remap+=" --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$sysroot=/rust"
export RUSTFLAGS="$remap"
# Of two that fit the last counts, for rustc and the C compiler alike.
export CFLAGS="-ffile-prefix-map=$REPO=/hourbucket -ffile-prefix-map=$target=/target -ffile-prefix-map=$cargo_home=/cargo"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_STRIP=debuginfo LC_ALL=C TZ=UTC

step "building from Cargo.lock with $(rustc --version)"
cargo build --locked --release --bin hourbucket
install -m 755 "$target/release/hourbucket" "$out/hourbucket"
(cd "$out" && sha256sum hourbucket | tee hourbucket.sha256)
