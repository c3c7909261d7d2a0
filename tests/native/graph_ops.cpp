// The operations of the drafter's graphs, and what a device says to an operation; for tests/test_operations.py.
//
//     graph_ops list HEAD [option]...      the graphs of a head on a device that takes everything and keeps nothing, as JSON
//         --kv TYPE                        of the drafter's cache: f16
//         --context N                      512
//         --attention whole|steps          as one operation or as its parts: whole
//         --output TYPE ROWS               what the target lends to a head without an output of its own
//         --output-scale, --output-bias    those too
//         --draft-ids                      the rows are those of a draft vocabulary
//         --inject N                       rows; repeat it
//         --round WIDTH N_INJECT END       see RoundGraph; repeat it
//     graph_ops ask DEVICE                 reads operations, one a line, and writes 1 where the device takes it, else 0
//         OPERATION, its 16 parameters, how many tensors follow, result first; each: TYPE, four ne, four nb, the offset of
//         a view; a source that is not there is -
//
// Views, which compute nothing, are left out. Exit status 3: there is no such device.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "drafter/graph.h"
#include "error.h"
#include "ggml-backend-impl.h"

namespace {

constexpr int kParams = GGML_MAX_OP_PARAMS / sizeof(int32_t);

// ---- a device of paper: real heads' sizes are computed with, and nothing lies anywhere -----------------------------

ggml_backend_buffer_type_t paper_type();

const char * paper_name(ggml_backend_dev_t) {
    return "paper";
}

void paper_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = *total = size_t{1} << 50;
}

enum ggml_backend_dev_type paper_kind(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

bool takes_everything(ggml_backend_dev_t, const ggml_tensor *) {
    return true;
}

ggml_backend_dev_t paper_device() {
    static ggml_backend_device device = [] {
        ggml_backend_device made   = {};
        made.iface.get_name        = paper_name;
        made.iface.get_description = paper_name;
        made.iface.get_memory      = paper_memory;
        made.iface.get_type        = paper_kind;
        made.iface.get_buffer_type = [](ggml_backend_dev_t) { return paper_type(); };
        made.iface.supports_op     = takes_everything;
        made.iface.supports_buft   = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
            return type == paper_type();
        };
        return made;
    }();
    return &device;
}

ggml_backend_buffer_t paper_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_i calls = {};
    calls.get_base              = [](ggml_backend_buffer_t) { return reinterpret_cast<void *>(uintptr_t{1} << 40); };
    calls.memset_tensor         = [](ggml_backend_buffer_t, ggml_tensor *, uint8_t, size_t, size_t) {};
    calls.set_tensor            = [](ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) {};
    calls.get_tensor            = [](ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t) {};
    calls.clear                 = [](ggml_backend_buffer_t, uint8_t) {};
    return ggml_backend_buffer_init(type, calls, nullptr, size);
}

ggml_backend_buffer_type_t paper_type() {
    static ggml_backend_buffer_type type = [] {
        ggml_backend_buffer_type made = {};
        made.iface.get_name           = [](ggml_backend_buffer_type_t) { return "paper"; };
        made.iface.alloc_buffer       = paper_buffer;
        made.iface.get_alignment      = [](ggml_backend_buffer_type_t) { return size_t{128}; };
        made.device                   = paper_device();
        return made;
    }();
    return &type;
}

// ---- list ----------------------------------------------------------------------------------------------------------

struct Round {
    int32_t width, n_inject, end;
};

struct Options {
    std::string          head;
    ggml_type            kv      = GGML_TYPE_F16;
    int32_t              context = 512;
    bool                 whole   = true;
    ggml_type            output  = GGML_TYPE_COUNT;
    int64_t              n_rows  = 0;
    bool                 scale = false, bias = false, draft_ids = false;
    std::vector<int32_t> injects;
    std::vector<Round>   rounds;
};

ggml_type type_named(const std::string & name) {
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
        const char * known = ggml_type_name(static_cast<ggml_type>(type));
        if (known && name == known) {
            return static_cast<ggml_type>(type);
        }
    }
    throw std::invalid_argument("no type " + name);
}

Options read_options(const std::vector<std::string> & arguments) {
    size_t     at   = 0;
    const auto next = [&]() -> const std::string & {
        return at < arguments.size() ? arguments[at++] : throw std::invalid_argument("an option lacks its value");
    };
    Options options;
    options.head = next();
    while (at < arguments.size()) {
        const std::string & option = next();
        if (option == "--kv") {
            options.kv = type_named(next());
        } else if (option == "--context") {
            options.context = std::stoi(next());
        } else if (option == "--attention") {
            options.whole = next() == "whole";
        } else if (option == "--output") {
            options.output = type_named(next());
            options.n_rows = std::stoll(next());
        } else if (option == "--output-scale") {
            options.scale = true;
        } else if (option == "--output-bias") {
            options.bias = true;
        } else if (option == "--draft-ids") {
            options.draft_ids = true;
        } else if (option == "--inject") {
            options.injects.push_back(std::stoi(next()));
        } else if (option == "--round") {
            const int32_t width = std::stoi(next()), n_inject = std::stoi(next()), end = std::stoi(next());
            options.rounds.push_back({width, n_inject, end});
        } else {
            throw std::invalid_argument("no option " + option);
        }
    }
    return options;
}

// A graph whose list of operations can be read.
template <typename Base>
struct Readable : Base {
    using Base::Base;
    ggml_cgraph * graph() const { return this->graph_; }
};

void print_numbers(const char * name, const char * format, int n, const std::function<long long(int)> & number) {
    std::printf("\"%s\": [", name);
    for (int i = 0; i < n; ++i) {
        std::printf(format, i ? ", " : "", number(i));
    }
    std::printf("]");
}

void print_tensor(const ggml_tensor * tensor) {
    std::printf("{\"name\": \"%s\", \"type\": \"%s\", ", tensor->name, ggml_type_name(tensor->type));
    print_numbers("ne", "%s%lld", GGML_MAX_DIMS, [&](int i) { return static_cast<long long>(tensor->ne[i]); });
    std::printf(", ");
    print_numbers("nb", "%s%lld", GGML_MAX_DIMS, [&](int i) { return static_cast<long long>(tensor->nb[i]); });
    std::printf(", \"offset\": %zu, ", tensor->view_offs);
    // From the whole tensor down to rows: what ggml itself says of the strides.
    const bool says[] = {ggml_is_contiguous_0(tensor), ggml_is_contiguous_1(tensor), ggml_is_contiguous_2(tensor),
                         ggml_is_contiguous_rows(tensor)};
    print_numbers("contiguous", "%s%lld", 4, [&](int i) { return says[i]; });
    std::printf("}");
}

void print_operation(const ggml_tensor * node) {
    const char * kind = node->op == GGML_OP_UNARY ? ggml_unary_op_name(ggml_get_unary_op(node))
                        : node->op == GGML_OP_GLU ? ggml_glu_op_name(ggml_get_glu_op(node))
                                                  : "";
    std::printf("{\"op\": \"%s\", \"kind\": \"%s\", ", ggml_op_name(node->op), kind);
    print_numbers("params", "%s%lld", kParams, [&](int i) { return node->op_params[i]; });
    std::printf(",\n     \"result\": ");
    print_tensor(node);
    std::printf(",\n     \"sources\": [");
    int n_sources = GGML_MAX_SRC;
    while (n_sources > 0 && !node->src[n_sources - 1]) {
        --n_sources;
    }
    for (int i = 0; i < n_sources; ++i) {
        std::printf("%s", i ? ",\n                 " : "");
        if (node->src[i]) {
            print_tensor(node->src[i]);
        } else {
            std::printf("null");
        }
    }
    std::printf("]}");
}

void print_graph(const std::string & name, ggml_cgraph * graph) {
    static bool first = true;
    std::printf("%s\n  {\"name\": \"%s\", \"operations\": [", first ? "" : ",", name.c_str());
    first          = false;
    bool first_one = true;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        if (pd2::computes(node)) {
            std::printf("%s\n    ", first_one ? "" : ",");
            print_operation(node);
            first_one = false;
        }
    }
    std::printf("]}");
}

int list(const Options & options) {
    pd2::HeadFile           file(options.head);
    const pd2::HeadParams & params = file.params();
    pd2::Weights            weights(file, {paper_device()});
    pd2::Cache              cache(params, options.context, options.kv, paper_device());

    // The target's, or a draft vocabulary's.
    const pd2::ContextPtr lent  = pd2::new_context(4);
    pd2::Model            model = {params, weights, cache, weights.output, nullptr, nullptr, weights.draft_ids, true};
    model.flash                 = options.whole;
    if (!model.output) {
        if (options.output == GGML_TYPE_COUNT) {
            throw std::invalid_argument("this head needs --output");
        }
        model.output = ggml_new_tensor_2d(lent.get(), options.output, params.n_embd, options.n_rows);
        ggml_set_name(model.output, "output");
        model.output_scale = options.scale ? ggml_new_tensor_1d(lent.get(), GGML_TYPE_F32, 1) : nullptr;
        model.output_bias  = options.bias ? ggml_new_tensor_1d(lent.get(), GGML_TYPE_F32, options.n_rows) : nullptr;
        model.draft_ids =
            options.draft_ids ? ggml_new_tensor_2d(lent.get(), GGML_TYPE_I32, 1, options.n_rows) : nullptr;
    }
    const pd2::BufferPtr buffer(ggml_backend_alloc_ctx_tensors_from_buft(lent.get(), paper_type()));

    std::printf("{\"graphs\": [");
    for (const int32_t n : options.injects) {
        print_graph("inject " + std::to_string(n), Readable<pd2::InjectGraph>(model, n).graph());
    }
    for (const Round & round : options.rounds) {
        print_graph("round " + std::to_string(round.width) + " " + std::to_string(round.n_inject) + " " +
                        std::to_string(round.end),
                    Readable<pd2::RoundGraph>(model, round.n_inject, round.width, round.end).graph());
    }
    std::printf("\n]}\n");
    return 0;
}

// ---- ask -----------------------------------------------------------------------------------------------------------

ggml_op operation_named(const std::string & name) {
    for (int op = 0; op < GGML_OP_COUNT; ++op) {
        if (name == ggml_op_name(static_cast<ggml_op>(op))) {
            return static_cast<ggml_op>(op);
        }
    }
    throw std::invalid_argument("no operation " + name);
}

// False for a source that is not there.
bool read_tensor(std::istream & words, ggml_tensor & tensor) {
    std::string type;
    words >> type;
    if (type == "-") {
        return false;
    }
    tensor.type = type_named(type);
    for (int64_t & ne : tensor.ne) {
        words >> ne;
    }
    for (size_t & nb : tensor.nb) {
        words >> nb;
    }
    words >> tensor.view_offs;
    return true;
}

int ask(const std::string & name) {
    ggml_backend_load_all();
    const ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
    if (!device) {
        std::fprintf(stderr, "no device %s\n", name.c_str());
        return 3;
    }
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        std::string        operation;
        int                n_tensors = 0;
        ggml_tensor        result    = {};
        words >> operation;
        result.op = operation_named(operation);
        for (int i = 0; i < kParams; ++i) {
            words >> result.op_params[i];
        }
        words >> n_tensors;
        read_tensor(words, result);
        std::array<ggml_tensor, GGML_MAX_SRC> sources = {};
        for (int i = 0; i + 1 < n_tensors && i < GGML_MAX_SRC; ++i) {
            const auto at  = static_cast<size_t>(i);
            result.src[at] = read_tensor(words, sources[at]) ? &sources[at] : nullptr;
        }
        if (!words) {
            throw std::invalid_argument("not an operation: " + line);
        }
        std::printf("%d\n", ggml_backend_dev_supports_op(device, &result));
    }
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        if (arguments.size() >= 2 && arguments[0] == "list") {
            return list(read_options({arguments.begin() + 1, arguments.end()}));
        }
        if (arguments.size() == 2 && arguments[0] == "ask") {
            return ask(arguments[1]);
        }
        std::fprintf(stderr, "graph_ops list HEAD [option]... | graph_ops ask DEVICE\n");
        return 2;
    } catch (const std::exception & error) {
        std::fprintf(stderr, "graph_ops: %s\n", error.what());
        return 1;
    }
}
