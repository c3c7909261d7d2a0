#!/usr/bin/env python3
"""Write the C source of pydflash2._native from the text between the cdef marks of csrc/pydflash2.h.

python cmake/generate_ffi.py csrc/pydflash2.h OUTPUT.c
"""

import argparse
from pathlib import Path

import cffi

BEGIN, END = "/* cdef: begin */", "/* cdef: end */"


def cdef_of(header: str) -> str:
    """The declarations cffi reads; everything else in the header serves the C compiler alone."""
    before, begin, rest = header.partition(BEGIN)
    text, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in before:
        raise SystemExit(f"the header must hold '{BEGIN}' and then '{END}', once each")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("header", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()

    builder = cffi.FFI()
    builder.cdef(cdef_of(args.header.read_text(encoding="utf-8")))
    builder.set_source("pydflash2._native", f'#include "{args.header.name}"')
    builder.emit_c_code(str(args.output))


if __name__ == "__main__":
    main()
