// Devices by the names that users give them.
#pragma once

#include <string>
#include <vector>

#include "ggml-backend.h"

namespace pd2 {

bool is_gpu(ggml_backend_dev_t device);     // as ggml sees it: a remote one too
bool is_remote(ggml_backend_dev_t device);  // behind llama.cpp's RPC
bool is_split(ggml_backend_dev_t device);   // several, over which each tensor is spread

ggml_backend_dev_t cpu_device();

// Every device of the machine that is a GPU, in ggml's order.
std::vector<ggml_backend_dev_t> gpus();

// "cpu", "cuda:1", "vulkan" (all there are), "rpc:host:port", or ggml's own name, such as "CUDA1"; case does not matter. One at
// least. Throws PD2_ERROR_BACKEND for what is not there, PD2_ERROR_ARGUMENT for what is no such name.
std::vector<ggml_backend_dev_t> find_devices(const std::string & name);

std::string back_ends();                           // of this build, comma separated
std::string described(ggml_backend_dev_t device);  // "Vulkan0 (AMD Radeon ...)"

}  // namespace pd2
