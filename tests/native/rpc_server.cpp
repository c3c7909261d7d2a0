// llama.cpp's RPC server with this machine's CPU, for tests: rpc_server HOST:PORT
#include <cstdio>

#include "ggml-backend.h"
#include "ggml-rpc.h"

int main(int argc, char ** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s HOST:PORT\n", argv[0]);
        return 2;
    }
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_rpc_start_server(argv[1], nullptr, 1, 1, &device);
    return 1;  // it returns where it can't serve
}
