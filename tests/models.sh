#!/usr/bin/env bash
# Models end to end, in small: types and tests of bench/models, and a run of all of its ways on emulated drives without a GPU, every prediction compared.
# It needs the environment that tests/python.sh has made, with torch.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
python=$target/python/bin/python
if ! "$python" -c 'import torch, warprow' 2>/dev/null; then
    echo "skipped: models end to end need $python with torch and the package (bash tests/python.sh makes it)"
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1
# Types of torch are read and not checked.
(cd bench && MYPY_CACHE_DIR=$target/mypy-models "$python" -m mypy --config-file= --strict --ignore-missing-imports --follow-imports silent -p models)
"$python" -m pytest -q -p no:cacheprovider bench/models/tests
"$python" bench/models/run.py --small --json "$target/models.json"
