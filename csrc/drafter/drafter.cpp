#include "drafter.h"

#include <algorithm>
#include <map>
#include <utility>

#include "compute.h"
#include "draft_vocabulary.h"
#include "embedding.h"
#include "graph.h"
#include "layers.h"

namespace pd2 {
namespace {

// Features that wait for a draft. Rounds bring a few; plain steps bring one each, and many at once are cheaper to write.
constexpr int32_t kMostPending = 32;

class GgmlDrafter final : public Drafter {
  public:
    explicit GgmlDrafter(const DrafterParams & options)
        : file_(options.path),
          device_(options.devices.front()),
          compute_(options.devices, options.n_threads),
          weights_(file_, options.devices),
          cache_(file_.params(), options.context_size, options.kv_type, device_),
          vocabulary_(make_vocabulary(options)),
          embedding_(weights_.token_embd ? weights_.token_embd : options.token_embd, file_.params().embedding_scale,
                     file_.params().mask_token),
          model_(make_model(options)),
          batch_size_(options.batch_size),
          on_cpu_(ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        const int32_t block = params().block_size;
        if (weights_.all_on(device_) && compute_.reads(model_.output) && compute_.reads(model_.output_scale) &&
            compute_.reads(model_.output_bias) && InjectGraph(model_, block).runs_on(device_) &&
            RoundGraph(model_, block, block - 1, kLongest).runs_on(device_)) {
            compute_.use_one_buffer();
        }
        // The largest of each kind first: what does not fit is known now, and the rest finds its memory there.
        inject_graph(std::min(batch_size_, most_rows()));
        RoundGraph & round = round_graph(block, block - 1, kLongest);
        n_nodes_           = round.n_nodes();
        n_splits_          = round.n_splits();
        operations_        = round.operations();
    }

    const HeadParams & params() const override { return file_.params(); }
    uint64_t           weight_bytes() const override { return weights_.bytes() + vocabulary_bytes(); }
    uint64_t           vocabulary_bytes() const override { return vocabulary_ ? vocabulary_->bytes() : 0; }
    uint64_t           cache_bytes() const override { return cache_.bytes(); }
    uint64_t           cache_per_token() const override { return cache_.bytes_per_token(); }
    uint64_t           compute_bytes() const override { return compute_.bytes(); }
    int32_t            n_candidates() const override { return static_cast<int32_t>(model_.output->ne[1]); }
    int32_t            n_nodes() const override { return n_nodes_; }
    int32_t            n_splits() const override { return n_splits_; }
    ggml_backend_dev_t device() const override { return device_; }

    const std::vector<OperationPlace> & operations() const override { return operations_; }

    std::vector<TensorPlace> tensors() const override {
        auto       places = weights_.places();
        const auto add    = [&](const char * name, const ggml_tensor * tensor, bool borrowed) {
            if (tensor) {
                places.push_back({name, tensor->type, device_of(tensor), ggml_nbytes(tensor), borrowed});
            }
        };
        if (!weights_.token_embd) {
            add("token_embd.weight (target's)", embedding_.table(), true);
        }
        if (!weights_.output) {
            add("output.weight (target's)", model_.output, !vocabulary_);
            add("output.scale (target's)", model_.output_scale, !vocabulary_);
            add("output.bias (target's)", model_.output_bias, !vocabulary_);
        }
        return places;
    }

    void inject(const float * features, int32_t n, int32_t position) override {
        truncate(position);
        const auto n_feature = static_cast<size_t>(params().n_feature);
        if (n > kMostPending || position != cache_.end()) {
            flush(0);
            write(features, n, position);
        } else {
            flush(kMostPending - n);
            pending_.insert(pending_.end(), features, features + static_cast<size_t>(n) * n_feature);
            cache_.extend(position, n);
        }
    }

    void begin_text(const int32_t * tokens, int32_t n) override {
        if (vocabulary_) {
            vocabulary_->begin();
        }
        read_text(tokens, n);
    }

    void read_text(const int32_t * tokens, int32_t n) override {
        if (vocabulary_) {
            vocabulary_->take_in(tokens, n);
        }
    }

    void draft(int32_t anchor, int32_t position, int32_t width, Lattice & lattice) override {
        flush(params().block_size);
        // Devices other than a CPU take a full block's rows in the time of one; a CPU takes time for each.
        const int32_t n_inject = on_cpu_ ? shape(n_pending()) : params().block_size;
        round_graph(n_inject, width, position + width + 1)
            .run(pending_.data(), n_pending(), embedding_.block(anchor, width), anchor, position, lattice);
        pending_.clear();
    }

    int32_t first_visible(int32_t position) const override { return cache_.first_visible(position); }
    int32_t missing_from(int32_t position) const override { return cache_.missing_from(position); }
    int32_t end() const override { return cache_.end(); }
    void    clear() override { truncate(0); }

    void truncate(int32_t position) override {
        if (position < cache_.end()) {
            const int32_t kept = std::max(0, n_pending() - (cache_.end() - position));
            pending_.resize(static_cast<size_t>(kept) * static_cast<size_t>(params().n_feature));
            cache_.truncate(position);
        }
    }

  private:
    std::unique_ptr<DraftVocabulary> make_vocabulary(const DrafterParams & options) const {
        if (weights_.output) {  // a head that brings its own has chosen
            return nullptr;
        }
        const auto n_all = static_cast<int32_t>(options.output->ne[1]);
        int32_t    n     = options.draft_vocabulary == 0 ? DraftVocabulary::choose(n_all) : options.draft_vocabulary;
        if (n < 0 || n >= n_all) {
            if (options.may_borrow && compute_.reads(options.output) && compute_.reads(options.output_scale) &&
                compute_.reads(options.output_bias)) {
                return nullptr;
            }
            n = n_all;
        }
        return std::make_unique<DraftVocabulary>(
            DraftVocabulary::Source{options.target_path, options.output, options.output_scale, options.output_bias},
            options.ranked_tokens(), std::min(n_all, std::max(n, file_.params().top_k + 1)), device_);
    }

    Model make_model(const DrafterParams & options) {
        const bool own     = weights_.output != nullptr;
        Model      model   = {file_.params(), weights_, cache_, nullptr, nullptr, nullptr, nullptr, true};
        model.output       = own ? weights_.output : vocabulary_ ? vocabulary_->output() : options.output;
        model.output_bias  = own ? nullptr : vocabulary_ ? vocabulary_->bias() : options.output_bias;
        model.output_scale = own ? nullptr : vocabulary_ ? vocabulary_->scale() : options.output_scale;
        model.draft_ids    = vocabulary_ ? vocabulary_->ids() : weights_.draft_ids;
        model.flash        = RoundGraph(model, 1, 1, 1).attends_on(device_);
        return model;
    }

    // No cell may be written twice in one graph.
    int32_t most_rows() {
        int32_t rows = INT32_MAX;
        for (const CacheGroup & group : cache_.groups()) {
            rows = std::min(rows, group.ring.n_cells());
        }
        return rows;
    }

    void write(const float * features, int32_t n, int32_t position) {
        // Rows that no later block can see are not worth computing.
        int32_t done = std::max(0, cache_.first_visible(position + n) - position);
        while (done < n) {
            const int32_t rows = std::min({n - done, batch_size_, most_rows()});
            inject_graph(rows).run(features + static_cast<size_t>(done) * params().n_feature, rows, position + done);
            cache_.extend(position + done, rows);
            done += rows;
        }
    }

    // Writes what waits for a draft, if that is more than `most` positions.
    void flush(int32_t most) {
        if (n_pending() > most) {
            inject_graph(shape(n_pending())).run(pending_.data(), n_pending(), cache_.end() - n_pending());
            pending_.clear();
        }
    }

    int32_t n_pending() const { return static_cast<int32_t>(pending_.size()) / params().n_feature; }

    // Rows of the graph that few positions are injected with: powers of two, so that graphs are few.
    static int32_t shape(int32_t n) {
        int32_t rows = 1;
        while (rows < n) {
            rows *= 2;
        }
        return rows;
    }

    InjectGraph & inject_graph(int32_t n) {
        // Of a prompt's chunks the last shape is enough.
        auto & graph = injects_[n <= kMostPending && n == shape(n) ? n : kPromptShape];
        if (!graph || graph->n() != n) {
            keep(graph, std::make_unique<InjectGraph>(model_, n));
        }
        return *graph;
    }

    RoundGraph & round_graph(int32_t n_inject, int32_t width, int32_t end) {
        auto & graph = rounds_[{n_inject, width}];
        if (!graph || !graph->fits(end)) {
            keep(graph, std::make_unique<RoundGraph>(model_, n_inject, width, end));
        }
        return *graph;
    }

    template <typename Made>
    void keep(std::unique_ptr<Made> & place, std::unique_ptr<Made> graph) {
        place.reset();
        bool moved = true;
        try {
            moved = graph->allocate(compute_);
        } catch (...) {
            injects_.clear();
            rounds_.clear();
            throw;
        }
        if (moved) {  // `place` is in one of the maps, which must not lose it
            for (auto & [n, other] : injects_) {
                other.reset();
            }
            for (auto & [shape, other] : rounds_) {
                other.reset();
            }
        }
        place = std::move(graph);
    }

    static constexpr int32_t kPromptShape = 0;
    static constexpr int32_t kLongest     = INT32_MAX / 2;  // a position that shows a block the whole cache

    HeadFile                         file_;
    ggml_backend_dev_t               device_;
    Compute                          compute_;
    Weights                          weights_;
    Cache                            cache_;
    std::unique_ptr<DraftVocabulary> vocabulary_;
    Embedding                        embedding_;
    Model                            model_;
    int32_t                          batch_size_;
    bool                             on_cpu_;
    int32_t                          n_nodes_  = 0;
    int32_t                          n_splits_ = 0;
    std::vector<OperationPlace>      operations_;

    std::vector<float> pending_;  // [n_pending, n_feature], of the last positions before end()

    std::map<int32_t, std::unique_ptr<InjectGraph>>                    injects_;  // by rows
    std::map<std::pair<int32_t, int32_t>, std::unique_ptr<RoundGraph>> rounds_;   // by rows injected and width
};

}  // namespace

HeadParams Drafter::read(const std::string & path) {
    return HeadFile(path).params();
}

std::unique_ptr<Drafter> Drafter::load(const DrafterParams & params) {
    return std::make_unique<GgmlDrafter>(params);
}

}  // namespace pd2
