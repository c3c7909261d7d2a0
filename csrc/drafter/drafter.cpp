#include "drafter.h"

#include <algorithm>
#include <map>

#include "cache.h"
#include "error.h"
#include "graph.h"
#include "head_file.h"
#include "weights.h"

namespace pd2 {
namespace {

struct BackendFree {
    void operator()(ggml_backend * backend) const { ggml_backend_free(backend); }
};

using BackendPtr = std::unique_ptr<ggml_backend, BackendFree>;

std::vector<BackendPtr> open_backends(const std::vector<ggml_backend_dev_t> & devices, int32_t n_threads) {
    std::vector<BackendPtr> backends;
    for (ggml_backend_dev_t device : devices) {
        BackendPtr backend(ggml_backend_dev_init(device, nullptr));
        if (!backend) {
            fail(PD2_ERROR_BACKEND, "the device %s could not be opened for the drafter; try n_gpu_layers=0",
                 ggml_backend_dev_name(device));
        }
        ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
        auto               set = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
        if (set) {
            set(backend.get(), n_threads);
        }
        backends.push_back(std::move(backend));
    }
    return backends;
}

class GgmlDrafter final : public Drafter {
  public:
    explicit GgmlDrafter(const DrafterParams & options)
        : file_(options.path),
          backends_(open_backends(options.devices, options.n_threads)),
          weights_(file_, options.devices),
          cache_(file_.params(), options.context_size, options.kv_type, options.devices.front()),
          model_{file_.params(),
                 weights_,
                 cache_,
                 weights_.token_embd ? weights_.token_embd : options.token_embd,
                 weights_.output ? weights_.output : options.output,
                 weights_.output ? nullptr : options.output_scale,
                 weights_.output ? nullptr : options.output_bias},
          batch_size_(options.batch_size) {}

    const HeadParams & params() const override { return file_.params(); }
    uint64_t           weight_bytes() const override { return weights_.bytes(); }
    uint64_t           cache_bytes() const override { return cache_.bytes(); }

    uint64_t compute_bytes() const override {
        uint64_t bytes = 0;
        for (const auto & [n, graph] : injects_) {
            bytes += graph->bytes();
        }
        for (const auto & [width, graph] : blocks_) {
            bytes += graph->bytes();
        }
        return bytes;
    }

    void inject(const float * features, int32_t n, int32_t position) override {
        cache_.truncate(position);
        int32_t done = 0;
        if (!cache_.has_full()) {
            // Rows that no later block can see are not worth computing.
            done = std::max(0, n - cache_.sliding().n_cells());
        }
        while (done < n) {
            int32_t rows = std::min(n - done, batch_size_);
            if (cache_.has_sliding()) {
                rows = std::min(rows, cache_.sliding().n_cells());  // no cell twice in one graph
            }
            inject_graph(rows).run(features + static_cast<size_t>(done) * params().n_feature, position + done);
            cache_.extend(position + done, rows);
            done += rows;
        }
    }

    void draft(int32_t anchor, int32_t position, int32_t width, Lattice & lattice) override {
        block_graph(width, position + width + 1).run(anchor, position, lattice);
    }

    int32_t missing_from(int32_t position) const override { return cache_.missing_from(position); }
    int32_t end() const override { return cache_.end(); }
    void    truncate(int32_t position) override { cache_.truncate(position); }
    void    clear() override { cache_.truncate(0); }

  private:
    InjectGraph & inject_graph(int32_t n) {
        // Rounds inject 1 to block_size rows again and again; of a prompt's larger chunks the last shape is enough.
        auto & graph = injects_[n <= params().block_size ? n : kPromptShape];
        if (!graph || graph->n() != n) {
            graph.reset();  // give its memory back before the next one asks
            graph = allocated(std::make_unique<InjectGraph>(model_, n));
        }
        return *graph;
    }

    BlockGraph & block_graph(int32_t width, int32_t end) {
        auto & graph = blocks_[width];
        if (!graph || !graph->fits(end)) {
            graph.reset();
            graph = allocated(std::make_unique<BlockGraph>(model_, width, end));
        }
        return *graph;
    }

    template <typename Made>
    std::unique_ptr<Made> allocated(std::unique_ptr<Made> graph) {
        std::vector<ggml_backend_t> backends;
        for (const BackendPtr & backend : backends_) {
            backends.push_back(backend.get());
        }
        graph->allocate(backends);
        return graph;
    }

    static constexpr int32_t kPromptShape = 0;

    HeadFile                                        file_;
    std::vector<BackendPtr>                         backends_;
    Weights                                         weights_;
    Cache                                           cache_;
    Model                                           model_;
    int32_t                                         batch_size_;
    std::map<int32_t, std::unique_ptr<InjectGraph>> injects_;  // by rows
    std::map<int32_t, std::unique_ptr<BlockGraph>>  blocks_;   // by width
};

}  // namespace

HeadParams Drafter::read(const std::string & path) {
    return HeadFile(path).params();
}

std::unique_ptr<Drafter> Drafter::load(const DrafterParams & params) {
    return std::make_unique<GgmlDrafter>(params);
}

}  // namespace pd2
