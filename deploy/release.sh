#!/usr/bin/env bash
# Builds the release binary from the lock file alone. The same commit and the same compiler should give the same file in
# any directory: the build removes paths, and the binary contains no time stamp.
#
#   deploy/release.sh [OUT]     builds and writes OUT/hourbucket, OUT/hourbucket.debug and OUT/hourbucket.sha256
#                               (default: target/dist)
#
# The binary is stripped. Next to it, where gdb, perf and addr2line find it, hourbucket.debug has the line numbers of
# its functions; keep it with the release, and nothing needs it to run.
#
# Environment: CARGO_TARGET_DIR as in cargo.
set -euo pipefail

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/tools/setup.sh"

ensure_build_tools
cd "$REPO"
target=${CARGO_TARGET_DIR:-$REPO/target}
out=${1:-$target/dist}
mkdir -p "$out"
[[ -z $(git status --porcelain 2>/dev/null) ]] || say "note: the tree has uncommitted changes"

# Remap paths in Rust's output and in that of the C compiler (zstd, ring, mimalloc): every part of a path that differs
# between machines.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)
# If two prefixes match, the last one wins, in rustc and in the C compiler.
prefixes=("$REPO=/hourbucket" "$target=/target" "$cargo_home=/cargo")
# Unlike RUSTFLAGS and plain CFLAGS, these two take paths with spaces.
CARGO_ENCODED_RUSTFLAGS=$(printf -- '--remap-path-prefix=%s\x1f' "${prefixes[@]}")--remap-path-prefix=$sysroot=/rust
CFLAGS=$(printf -- "'-ffile-prefix-map=%s' " "${prefixes[@]//\'/\'\\\'\'}")
export CARGO_ENCODED_RUSTFLAGS CFLAGS CC_SHELL_ESCAPED_FLAGS=1
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0 LC_ALL=C TZ=UTC

step "building from Cargo.lock with $(rustc --version)"
cargo build --locked --release --bin hourbucket
command -v objcopy >/dev/null || fail "objcopy is missing; install the package binutils"
objcopy --only-keep-debug "$target/release/hourbucket" "$out/hourbucket.debug"
install -m 755 "$target/release/hourbucket" "$out/hourbucket"
# The names of functions stay, for backtraces. The link holds the file's name and checksum.
(cd "$out" && objcopy --strip-debug --add-gnu-debuglink=hourbucket.debug hourbucket)
(cd "$out" && sha256sum hourbucket | tee hourbucket.sha256)
