#!/bin/sh
# Installs requirements into a virtual environment, from files whose hashes are in
# constraints-hashes.txt alone: k8s/install.sh VENV REQUIREMENT...
set -eu
venv=$1
shift
work=$(mktemp -d)
only_hashed() { "$venv/bin/pip" install --quiet --no-cache-dir --require-hashes --no-deps --requirement "$1"; }
# What builds our own package, and says what that needs.
python3 k8s/hashes.py --names setuptools > "$work/build.txt"
only_hashed "$work/build.txt"
"$venv/bin/pip" install --quiet --dry-run --no-build-isolation --report "$work/report.json" \
    --constraint constraints.txt "$@"
python3 k8s/hashes.py --report "$work/report.json" > "$work/locked.txt"
only_hashed "$work/locked.txt"
rm -r "$work"
