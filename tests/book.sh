#!/usr/bin/env bash
# Runs the blocks of code of docs/book, in the environment that tests/python.sh made, with the command that was built; then makes the pages
# with mdBook, which is taken where it is installed and built otherwise, and follows every link in them. WARPROW_BINARY names another command.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
python=$target/python/bin/python
skip() { echo "skipped: $*"; }

if [ -x "$python" ]; then
    # Blocks that need it say so and are skipped where it cannot be had.
    "$python" -c 'import safetensors' 2>/dev/null ||
        "$python" -m pip --disable-pip-version-check --quiet install safetensors || true
    (cd python && "$python" -m pytest -p no:cacheprovider -rs tests/test_book.py)
else
    skip "the book's blocks of code: tests/python.sh makes the environment that they run in"
fi

# Of the version whose way with preprocessors docs/book/book.toml was tried with.
mdbook=mdbook
[[ $(mdbook --version 2>/dev/null) == "mdbook v0.5"* ]] || mdbook=$target/mdbook/bin/mdbook
if ! command -v "$mdbook" >/dev/null; then
    # Without optimisation, which takes most of the time and makes the same pages.
    export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off
    if ! CARGO_TARGET_DIR=$target/mdbook/build cargo install --locked --quiet --no-default-features --features search \
        --root "$target/mdbook" --version '^0.5' mdbook; then
        skip "the book's pages: mdBook is not installed and could not be"
        exit 0
    fi
    rm -rf "$target/mdbook/build"
fi
rm -rf "$target/book"
"$mdbook" build --dest-dir "$target/book" docs/book
python3 tests/book_links.py "$target/book"
