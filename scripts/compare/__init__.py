"""Parts of scripts/compare_llama_cpp.py: builds, contenders, figures."""
