#!/bin/bash
# Build pydflash2 for NVIDIA GPUs from its source distribution, and look at what came out.
#
#     scripts/build_cuda.sh [ARCHITECTURE]
#
# ARCHITECTURE, as CMAKE_CUDA_ARCHITECTURES has it: one is enough for a check. Without it the machine's own GPU (native),
# or 89-real (RTX 40) where there is none. Needs Python >= 3.10 with headers, a C++ compiler and nvcc; no GPU, no driver.
# What the CUDA toolkit at hand lacks is made up for: cuBLAS comes from its package on Python's index, and in the
# driver's place a library stands that says no to everything. Takes 46 minutes of CPU time for one architecture;
# CMAKE_BUILD_PARALLEL_LEVEL is the number of compilers at once. Everything lands in build/cuda, but llama.cpp's
# archives: those are kept in the user's cache, and a second run finds them there.
#
# With a GPU the parity tests run on it at the end. Exit status 0: everything that could be checked here holds.
set -euo pipefail

if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    [[ ${1:-} == -h || ${1:-} == --help ]]
    exit
fi
cd "$(dirname "$0")/.."
root=$PWD
work=$root/build/cuda
gpu=$(command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null || true)
architecture=${1:-$([ -n "$gpu" ] && echo native || echo 89-real)}
export PIP_DISABLE_PIP_VERSION_CHECK=1 CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2}

say() { printf '\n==== %s (%s s)\n' "$1" "$SECONDS"; }
give_up() { echo "$1" >&2 && exit 1; }

say "what is at hand"
for command in python3 c++ nvcc nm readelf size; do
    command -v $command > /dev/null || give_up "no $command, which this build needs: install it, or add its folder to PATH"
done
release=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
toolkit=$(nvcc --dryrun -x cu -c /dev/null -o /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
toolkit=$(cd "$toolkit" && pwd -P)
echo "CUDA $release in $toolkit; ${gpu:-no GPU}; architecture $architecture"

rm -rf "$work"
mkdir -p "$work"
python3 -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
python -m pip install -q build cffi cmake ninja scikit-build-core

# Whether a program that calls `function` links with the library as nvcc and CMake would find it.
links() { # function, library
    echo "extern \"C\" int $1(); int main() { return $1(); }" > "$work/probe.cpp"
    c++ -o "$work/probe" "$work/probe.cpp" -L"$toolkit/lib64" -L"$toolkit/lib64/stubs" \
        -L"$toolkit/targets/x86_64-linux/lib/stubs" -l"$2" 2> /dev/null
}

if ! links cublasCreate_v2 cublas; then
    package=nvidia-cublas$([ "${release%%.*}" -lt 13 ] && echo "-cu${release%%.*}" || true)
    echo "no cuBLAS in the toolkit: taking the package $package $release"
    python -m pip download -q --no-deps "$package==$release.*" -d "$work/cublas"
    python -m zipfile -e "$work"/cublas/*.whl "$work/cublas"
    library=$(find "$work/cublas" -name 'libcublas.so.*')
    ln -s "$(basename "$library")" "${library%.so.*}.so"
    export CMAKE_LIBRARY_PATH=$(dirname "$library")${CMAKE_LIBRARY_PATH:+:$CMAKE_LIBRARY_PATH}
    export CPATH=$(dirname "$(find "$work/cublas" -name cublas_v2.h)")${CPATH:+:$CPATH}
fi

say "source distribution"
python scripts/make_sdist.py -o "$work/dist" > "$work/sdist.log" 2>&1 || { cat "$work/sdist.log"; exit 1; }
ls -l "$work"/dist/*.tar.gz
tar -xzf "$work"/dist/*.tar.gz -C "$work"
source=$(ls -d "$work"/pydflash2-*/)

# The functions of the driver that ggml calls, each answering CUDA_ERROR_STUB_LIBRARY: enough to link with, and to load.
# Linked with and loaded from different folders, under one name each: the module must not find it by itself.
mkdir -p "$work/driver/link" "$work/driver/load"
grep -rhoE '\bcu[A-Z][A-Za-z0-9]*\(' "$source/third_party/llama.cpp/ggml/src/ggml-cuda" | tr -d '(' | sort -u |
    while read -r name; do
        if grep -qE "CUDAAPI $name\(" "$toolkit/include/cuda.h"; then echo "int $name(void) { return 34; }"; fi
    done > "$work/driver/driver.c"
cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/driver/load/libcuda.so.1" "$work/driver/driver.c"
if ! links cuDeviceGet cuda; then
    echo "no driver and no stub of it in the toolkit: linking with one of $(wc -l < "$work/driver/driver.c") functions"
    cp "$work/driver/load/libcuda.so.1" "$work/driver/link/libcuda.so"
    export CMAKE_LIBRARY_PATH=$work/driver/link${CMAKE_LIBRARY_PATH:+:$CMAKE_LIBRARY_PATH}
fi

say "wheel: llama.cpp with GGML_CUDA, then csrc with warnings as errors"
export CMAKE_ARGS="-DPYDFLASH2_WERROR=ON -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$architecture ${CMAKE_ARGS:-}"
TIMEFORMAT='built in %R s; the compilers took %U s of CPU time, %S s in the system'
time python -m pip wheel -v --no-deps --no-index --no-build-isolation -w "$work/dist" "$source" \
    > "$work/build.log" 2>&1 || { tail -n 60 "$work/build.log"; exit 1; }
grep -E 'llama.cpp: |llama.cpp (is being|has been) built' "$work/build.log" | sed 's/^ */    /'
archives=$(sed -nE 's/.*llama.cpp (is being|has been) built.* into (.*)/\2/p' "$work/build.log" | tail -n 1)
grep -F "CMAKE_CUDA_ARCHITECTURES [==[$architecture]==]" "$archives/settings.cmake" ||
    give_up "llama.cpp was not built for the architecture $architecture alone: see $archives/settings.cmake"
ls -l "$work"/dist/*.whl

say "what was built"
python -m pip install -q "$(echo "$work"/dist/*.whl)"
cd "$work" # away from the source folder, which lacks the compiled part
module=$(find "$work/venv" -path '*/pydflash2/_native*.so')
exported=$(nm -D --defined-only "$module" | awk '{ print $NF }')
echo "exports: $exported"
[ "$exported" = PyInit__native ] || give_up "more than the module's entry is exported: a second ggml in the process would meet ours"
echo "needs: $(readelf -d "$module" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')"
code=$(size -A "$module" | awk '$1 == ".nv_fatbin" { print $2 }')
[ -n "$code" ] || give_up "the module has no section .nv_fatbin: no GPU code in it"
echo "GPU code: $code bytes"

devices='from pydflash2 import native
print("devices:", ", ".join(device["name"] for device in native.devices()))
print(native.llama_cpp_pin())'
if python -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2> /dev/null; then
    python -c "$devices"
else
    says=$(python -c 'import pydflash2' 2>&1 | tail -n 1 || true)
    echo "without the driver: $says"
    [[ $says == *"driver is missing"* ]] || give_up "that sentence does not say that the driver is missing"
    LD_LIBRARY_PATH=$work/driver/load${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} python -c "$devices"
fi

if [ -n "$gpu" ]; then
    say "parity on the GPU"
    python -c "from pydflash2 import native; assert any(d['backend'] == 'CUDA' for d in native.devices())"
    python -m pip install -q "$(echo "$work"/dist/*.whl)[test]"
    cd "$root"
    PYDFLASH2_TEST_DRAFT_DEVICE=cuda:0 python -m pytest -q -p no:cacheprovider tests/test_parity*.py
fi
say "done"
