#!/usr/bin/env bash
# Makes or refreshes the virtual environment that every make target runs in: ./.venv, or the folder in VENV.
#
# In: a CPython 3.11-3.13 (PYTHON=… to choose one) and a C compiler. Out: torch, the dependencies at the versions of
# constraints.txt, and graphlift itself, editable, with its C extensions built.
# When nothing changed since the last run it returns within a tenth of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
stamp=$venv/.graphlift
fail() { printf 'graphlift: %s\n' "$*" >&2; exit 1; }

# --- which interpreter ---------------------------------------------------------------------------------------------

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        supported "$PYTHON" || fail "PYTHON=$PYTHON is not a working CPython 3.11, 3.12 or 3.13"
        printf '%s' "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3; do
        if supported "$candidate"; then printf '%s' "$candidate"; return; fi
    done
    fail "no CPython 3.11, 3.12 or 3.13 found. Install one (Debian, Ubuntu: apt-get install python3.11-dev" \
        "python3.11-venv) or name it: make PYTHON=/path/to/python3.11 …"
}

# --- is everything as the last run left it? ------------------------------------------------------------------------

packages=$(cat pyproject.toml constraints.txt tools/venv.sh | cksum)
extensions=$(find src -name '*.[ch]' -print0 | sort -z | xargs -0 cat 2>/dev/null | cksum)
have_packages="" have_extensions=""
[ -x "$venv/bin/python" ] && [ -f "$stamp.packages" ] && have_packages=$(cat "$stamp.packages")
[ -f "$stamp.extensions" ] && have_extensions=$(cat "$stamp.extensions")

# The files that the build made, one a line, are all still there.
built() {
    local file
    [ -s "$stamp.built" ] || return 1
    while read -r file; do [ -f "$file" ] || return 1; done <"$stamp.built"
}

if [ "$packages" = "$have_packages" ] && [ "$extensions" = "$have_extensions" ] && built; then exit 0; fi

# --- the environment -----------------------------------------------------------------------------------------------

command -v "${CC:-cc}" >/dev/null || fail "no C compiler found. Install gcc or clang (Debian, Ubuntu: apt-get" \
    "install gcc; macOS: xcode-select --install), or name it: make CC=/path/to/compiler …"

if [ ! -x "$venv/bin/python" ]; then
    python=$(find_python)
    printf 'graphlift: making %s with %s\n' "$venv" "$("$python" --version)"
    "$python" -m venv "$venv" || fail "'$python -m venv' failed (Debian, Ubuntu: apt-get install python3.11-venv)"
fi
bin=$venv/bin
"$bin/python" - <<'PY' || fail "Python's C headers are missing (Debian, Ubuntu: apt-get install python3.11-dev)"
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())
PY

pip() { "$bin/python" -m pip --disable-pip-version-check install --quiet --constraint constraints.txt "$@"; }

# torch goes first and pinned: left to the resolver, Linux would get the CUDA build, which is several gigabytes.
install_torch() {
    local pin
    if [ -n "${TORCH:-}" ]; then "$bin/python" -m pip install --quiet "$TORCH"; return; fi
    pin=$(grep '^torch==' constraints.txt)
    if "$bin/python" -c "import sys; from importlib.metadata import version
sys.exit(version('torch').split('+')[0] != '${pin#torch==}')" 2>/dev/null; then return; fi
    if [ "$(uname -sm)" = "Linux x86_64" ]; then
        printf 'graphlift: installing %s, CPU build\n' "$pin"
        pip --no-deps "$pin+cpu" 2>/dev/null && pip "$pin+cpu" && return
        pip --retries 1 --timeout 20 --extra-index-url https://download.pytorch.org/whl/cpu "$pin+cpu" && return
        printf 'graphlift: no CPU build of %s found; installing the default build, a large download\n' "$pin"
    fi
    pip "$pin"
}

if [ "$packages" != "$have_packages" ]; then
    install_torch
    printf 'graphlift: installing the other dependencies\n'
    # Everything but graphlift itself, whose dependencies pip would otherwise resolve in a second environment.
    "$bin/python" - > "$stamp.requirements" <<'PY'
import pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
wanted += [row for rows in project["project"]["optional-dependencies"].values() for row in rows]
print("\n".join(row for row in dict.fromkeys(wanted) if not row.startswith("torch")))
PY
    pip --requirement "$stamp.requirements"
    printf '%s' "$packages" > "$stamp.packages"
fi

printf 'graphlift: building the C extensions\n'
pip --no-build-isolation --no-deps --editable . || fail "building graphlift failed; the compiler's messages are above"
"$bin/python" - >"$stamp.built" <<'PY'
import sysconfig, tomllib
modules = tomllib.load(open("pyproject.toml", "rb"))["tool"]["setuptools"]["ext-modules"]
for module in modules:
    print(f"src/{module['name'].replace('.', '/')}{sysconfig.get_config_var('EXT_SUFFIX')}")
PY
built || fail "the build left no C extension in src/graphlift; please report this with the output above"

printf '%s' "$extensions" > "$stamp.extensions"
printf 'graphlift: %s is ready\n' "$venv"
