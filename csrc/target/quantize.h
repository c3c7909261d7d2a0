// Quantisation for the converter: ggml's own arithmetic, and llama-quantize's own choice of types.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "pydflash2.h"

namespace pd2 {

// Quantises finite floats [n_rows, n_per_row] to ggml's type of that name. Returns the bytes written, which are
// n_rows * ggml_row_size(type, n_per_row).
uint64_t quantize(const std::string & type, const float * source, void * destination, int64_t n_rows,
                  int64_t n_per_row);

struct PlannedTensor {
    std::string            name;
    std::array<int64_t, 4> shape;  // ggml's order, row length first
};

// The type llama-quantize gives each tensor of a head; nullptr where that tensor keeps the type it has.
// file_type: "q4_k_m" and the like.
std::vector<const char *> quantize_plan(const std::string & file_type, const pd2_quantize_geometry & geometry,
                                        const std::vector<PlannedTensor> & tensors);

}  // namespace pd2
