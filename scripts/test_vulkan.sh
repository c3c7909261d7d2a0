#!/bin/bash
# Builds pydflash2 with llama.cpp's Vulkan back end and runs the tests of numbers on a Vulkan device: drafts against the
# reference's, texts against the target's own, a head beside its target, away from it, and on two devices.
#
#     scripts/test_vulkan.sh [pytest's arguments]
#
# Takes the GPUs that GGML_VK_VISIBLE_DEVICES names; where it is not set, Mesa's software device, so that no GPU is needed. 0,0 is one device
# twice over, for the tests of two; Mesa 22.3 has crashed on those now and then.
# On Debian as root it installs what is missing: Vulkan's loader and headers, glslc, SPIRV's headers, Mesa's drivers.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$root/build/test-vulkan
mkdir -p "$work"
export PIP_DISABLE_PIP_VERSION_CHECK=1

missing=()
command -v glslc > /dev/null || missing+=(glslc)
for file in vulkan/vulkan.hpp:libvulkan-dev spirv/unified1/spirv.hpp:spirv-headers; do
    [ -e "/usr/include/${file%:*}" ] || missing+=("${file#*:}")
done
if [ -z "${GGML_VK_VISIBLE_DEVICES-}" ] && ! ls /usr/share/vulkan/icd.d/lvp_icd.* > /dev/null 2>&1; then
    missing+=(mesa-vulkan-drivers)
fi
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        echo "scripts/test_vulkan.sh: missing: ${missing[*]} (Debian's names). Install them and run again." >&2
        exit 1
    fi
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y "${missing[@]}"
fi
if [ -z "${GGML_VK_VISIBLE_DEVICES-}" ]; then
    VK_ICD_FILENAMES=$(ls /usr/share/vulkan/icd.d/lvp_icd.*)
    export VK_ICD_FILENAMES GGML_VK_VISIBLE_DEVICES=0 # ggml takes no software device that isn't asked for
    export GGML_VK_DISABLE_INTEGER_DOT_PRODUCT=1      # Mesa 22.3 crashes on ggml's integer products of matrices
fi

python3 -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
CMAKE_ARGS="-DGGML_VULKAN=ON -DPYDFLASH2_WERROR=ON" python -m pip install -q '.[test]'

# Where no device is found everything would run on the CPU, and pass.
(cd "$work" && python - << 'END'
from pydflash2 import native

found = [device for device in native.devices() if device["backend"] == "Vulkan"]
for device in found:
    print(f"{device['name']}: {device['description']}")
raise SystemExit(None if found else "scripts/test_vulkan.sh: Vulkan finds no device here (see vulkaninfo)")
END
)

export OMP_NUM_THREADS=1
tests=(python -m pytest -q -p no:cacheprovider) # no function: in the background $! is to be pytest itself

# Two runs at once, since a software device compiles its shaders for minutes, on one core, in each process.
# Our graph's numbers against the reference's, with the target on the CPU: products of ggml's Vulkan back end round F32 to F16 unless
# told not to, and angles of the target's rope are less exact on a software device; a mistake of ours must not hide behind that.
GGML_VK_DISABLE_F16=1 PYDFLASH2_TEST_DRAFT_DEVICE=vulkan:0 "${tests[@]}" tests/test_parity.py "$@" > "$work/parity.log" 2>&1 &
parity=$!
trap 'kill "$parity" 2> /dev/null || true' EXIT
# Targets on the device, their texts with drafts and without; heads beside them and away from them.
"${tests[@]}" tests/test_devices.py "$@" && status=0 || status=$?
wait "$parity" || status=$?
cat "$work/parity.log"
exit "$status"
