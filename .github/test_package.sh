#!/usr/bin/env bash
# Install a wheel or an sdist into an environment of its own and run the library's tests, as the sdist has them,
# against it: .github/test_package.sh FILE
set -euo pipefail
package=$(realpath "$1")
sdist=$(realpath "$(dirname "$1")"/swad-*.tar.gz)
constraints=$(realpath "$(dirname "$0")/../constraints.txt")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q -c "$constraints" "$package" numpy scipy pillow safetensors pytest hypothesis

tar -xzf "$sdist" -C "$folder" --strip-components=1
rm -r "$folder/src"
cd "$folder"
where=$(venv/bin/python -c "import swad; print(swad.__file__, swad.__version__)")
echo "$where"
[[ $where == "$folder/venv/"* ]]
venv/bin/python -m pytest -m "not distributed" tests/averaging tests/tensors tests/util
