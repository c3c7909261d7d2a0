#include "devices.h"

#include <algorithm>
#include <cctype>

#include "assertions.h"
#include "error.h"

namespace pd2 {
namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

// A back end's name as users give it, whichever of its names that is: ggml's for two of them are others than their switches'.
std::string back_end_name(const std::string & name) {
    const std::string plain = lower(name);
    return plain == "mtl" ? "metal" : plain == "hip" ? "rocm" : plain;
}

ggml_backend_reg_t back_end_of(const std::string & name) {
    for (size_t i = 0; i < ggml_backend_reg_count(); ++i) {
        if (back_end_name(ggml_backend_reg_name(ggml_backend_reg_get(i))) == back_end_name(name)) {
            return ggml_backend_reg_get(i);
        }
    }
    return nullptr;
}

std::string names_of(const std::vector<ggml_backend_dev_t> & devices) {
    std::string names;
    for (ggml_backend_dev_t device : devices) {
        names += (names.empty() ? "" : ", ") + described(device);
    }
    return names;
}

// llama.cpp's RPC ends the process where it cannot connect, and where what answers is no server of its version.
std::vector<ggml_backend_dev_t> remote_devices(const std::string & name) {
    using AddServer             = ggml_backend_reg_t (*)(const char *);
    ggml_backend_reg_t back_end = back_end_of("rpc");
    auto               add =
        back_end
                          ? reinterpret_cast<AddServer>(ggml_backend_reg_get_proc_address(back_end, "ggml_backend_rpc_add_server"))
                          : nullptr;
    if (!add) {
        fail(PD2_ERROR_BACKEND,
             "'%s' was asked for, but this build cannot reach other machines (back ends: %s): it was built with "
             "GGML_RPC=OFF, build it without that",
             name.c_str(), back_ends().c_str());
    }
    const std::string  endpoint = name.substr(4);
    ggml_backend_reg_t server   = nullptr;
    std::string        reason   = "it offers no device";
    try {
        const AssertionGuard guard;
        server = add(endpoint.c_str());
    } catch (const std::exception & error) {
        reason = AssertionGuard::failed().empty() ? error.what() : AssertionGuard::failed();
    }
    if (!server) {
        fail(PD2_ERROR_BACKEND,
             "no devices at '%s': %s. Start llama.cpp's rpc-server there, of the llama.cpp this build has, and give "
             "rpc:HOST:PORT",
             name.c_str(), reason.c_str());
    }
    std::vector<ggml_backend_dev_t> devices;
    for (size_t i = 0; i < ggml_backend_reg_dev_count(server); ++i) {
        devices.push_back(ggml_backend_reg_dev_get(server, i));
    }
    return devices;
}

}  // namespace

bool is_gpu(ggml_backend_dev_t device) {
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

bool is_remote(ggml_backend_dev_t device) {
    ggml_backend_reg_t back_end = ggml_backend_dev_backend_reg(device);
    return back_end && std::string(ggml_backend_reg_name(back_end)).rfind("RPC", 0) == 0;
}

bool is_split(ggml_backend_dev_t device) {
    return ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_META;
}

ggml_backend_dev_t cpu_device() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

std::vector<ggml_backend_dev_t> gpus() {
    std::vector<ggml_backend_dev_t> devices;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (is_gpu(ggml_backend_dev_get(i))) {
            devices.push_back(ggml_backend_dev_get(i));
        }
    }
    return devices;
}

std::vector<ggml_backend_dev_t> find_devices(const std::string & name) {
    const std::string wanted = lower(name);
    if (wanted.rfind("rpc:", 0) == 0) {
        return remote_devices(name);
    }
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (lower(ggml_backend_dev_name(ggml_backend_dev_get(i))) == wanted) {
            return {ggml_backend_dev_get(i)};
        }
    }
    const size_t      colon = wanted.find(':');
    const std::string kind  = wanted.substr(0, colon);
    const std::string index = colon == std::string::npos ? "" : wanted.substr(colon + 1);
    const bool        whole = colon == std::string::npos;
    if (kind.empty() ||
        (!whole && (index.empty() || index.size() > 3 ||
                    !std::all_of(index.begin(), index.end(), [](unsigned char c) { return std::isdigit(c); })))) {
        fail(PD2_ERROR_ARGUMENT,
             "device is '%.80s': give auto, cpu, a back end (cuda, metal, vulkan), one device of it (cuda:0) or "
             "rpc:HOST:PORT",
             name.c_str());
    }
    ggml_backend_reg_t back_end = back_end_of(kind);
    if (!back_end) {
        const char * advice = kind == "cuda"     ? "pip install 'pydflash2[cuda12]' (or [cuda13])"
                              : kind == "vulkan" ? "pip install 'pydflash2[vulkan]'"
                                                 : "build it with llama.cpp's switch for that";
        fail(PD2_ERROR_BACKEND,
             "the device '%.80s' was asked for, but this build has no such back end (it has %s): %s, or give another "
             "device",
             name.c_str(), back_ends().c_str(), advice);
    }
    std::vector<ggml_backend_dev_t> devices;
    for (size_t i = 0; i < ggml_backend_reg_dev_count(back_end); ++i) {
        devices.push_back(ggml_backend_reg_dev_get(back_end, i));
    }
    if (devices.empty()) {
        fail(PD2_ERROR_BACKEND,
             "the device '%.80s' was asked for, but the back end %s finds none here: check the driver, or give another "
             "device",
             name.c_str(), ggml_backend_reg_name(back_end));
    }
    if (ggml_backend_dev_type(devices.front()) == GGML_BACKEND_DEVICE_TYPE_ACCEL) {
        fail(PD2_ERROR_ARGUMENT, "%s helps the CPU and holds no model: give device cpu",
             ggml_backend_reg_name(back_end));
    }
    if (whole) {
        return devices;
    }
    const auto at = static_cast<size_t>(std::stoi(index));
    if (at >= devices.size()) {
        fail(PD2_ERROR_BACKEND, "the device '%.80s' was asked for, but %s has %zu, counted from 0: %s", name.c_str(),
             ggml_backend_reg_name(back_end), devices.size(), names_of(devices).c_str());
    }
    return {devices[at]};
}

std::string back_ends() {
    std::string names;
    for (size_t i = 0; i < ggml_backend_reg_count(); ++i) {
        names += (i > 0 ? ", " : "") + std::string(ggml_backend_reg_name(ggml_backend_reg_get(i)));
    }
    return names;
}

std::string described(ggml_backend_dev_t device) {
    return std::string(ggml_backend_dev_name(device)) + " (" + ggml_backend_dev_description(device) + ")";
}

}  // namespace pd2
