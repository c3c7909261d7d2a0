// Our attention against a plain one in doubles, and against itself: the bits of a row must not depend on the rows beside it, on
// threads, or on cells that it does not see.
//
//     attention [bits]        bits: one kind of case, of the second sort
//
// Prints a line for each kind of case: its name, cases, and the largest error. Exit status 1: something differs.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"

namespace {

constexpr double kMaxError = 1e-5;
constexpr float  kInfinity = std::numeric_limits<float>::infinity();

enum class Mask { kNone, kCausal, kWindow, kRandom };

struct Case {
    int64_t   dk, dv, n_heads, n_kv_heads, n_rows, n_cells;
    ggml_type type_k = GGML_TYPE_F16, type_v = GGML_TYPE_F16;
    Mask      mask     = Mask::kCausal;
    float     soft_cap = 0.0f;
    bool      sinks    = false;
};

// What attention is computed of, in F32; K and V are rounded to their types when they are stored.
struct Data {
    Data(const Case & c, uint32_t seed);

    std::vector<float> q, k, v, mask, sinks;  // [rows][heads][dk], [cells][kv_heads][dk], .., [rows][cells], [heads]
};

Data::Data(const Case & c, uint32_t seed)
    : q(c.n_rows * c.n_heads * c.dk),
      k(c.n_cells * c.n_kv_heads * c.dk),
      v(c.n_cells * c.n_kv_heads * c.dv),
      mask(c.n_rows * c.n_cells),
      sinks(c.n_heads) {
    std::mt19937                    random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float> * values : {&q, &k, &v, &sinks}) {
        for (float & x : *values) {
            x = normal(random) * 1.5f;
        }
    }
    for (int64_t row = 0; row < c.n_rows; ++row) {
        const int64_t position = c.n_cells - c.n_rows + row;  // may be below 0: such a row sees nothing
        for (int64_t cell = 0; cell < c.n_cells; ++cell) {
            const bool seen = c.mask == Mask::kNone || (c.mask == Mask::kRandom && random() % 3 == 0) ||
                              (c.mask == Mask::kCausal && cell <= position) ||
                              (c.mask == Mask::kWindow && cell <= position && position - cell < 100);
            const float added            = c.mask == Mask::kRandom ? 0.25f * static_cast<float>(random() % 5) : 0.0f;
            mask[row * c.n_cells + cell] = seen ? added : -kInfinity;
        }
    }
}

std::vector<char> stored(ggml_type type, const std::vector<float> & values, int64_t row) {
    std::vector<char> bytes(ggml_row_size(type, row) * (values.size() / row));
    if (type == GGML_TYPE_F32) {
        std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
        ggml_quantize_chunk(type, values.data(), bytes.data(), 0, values.size() / row, row, nullptr);
    }
    return bytes;
}

std::vector<float> restored(ggml_type type, const std::vector<float> & values, int64_t row) {
    if (type == GGML_TYPE_F32) {
        return values;
    }
    const std::vector<char> bytes = stored(type, values, row);
    std::vector<float>      result(values.size());
    ggml_get_type_traits(type)->to_float(bytes.data(), result.data(), values.size());
    return result;
}

// ggml's graph on rows `first` .. `first + n` - 1; `padding` cells that nobody sees follow, full of `filler`. [n][heads][dv]
std::vector<float> computed(const Case & c, const Data & data, int64_t first, int64_t n, int n_threads,
                            int64_t padding = 0, float filler = 0.0f) {
    const int64_t      n_cells = c.n_cells + padding;
    std::vector<float> k = data.k, v = data.v;
    k.resize(n_cells * c.n_kv_heads * c.dk, filler);
    v.resize(n_cells * c.n_kv_heads * c.dv, filler);
    const std::vector<char> k_bytes = stored(c.type_k, k, c.dk), v_bytes = stored(c.type_v, v, c.dv);

    const size_t   size = k_bytes.size() + v_bytes.size() + 8 * n * (c.n_heads * (c.dk + c.dv) + n_cells) + (4 << 20);
    ggml_context * ctx  = ggml_init({size, nullptr, false});

    ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, c.dk, c.n_heads, n);
    std::memcpy(q->data, data.q.data() + first * c.n_heads * c.dk, ggml_nbytes(q));
    q                = ggml_permute(ctx, q, 0, 2, 1, 3);
    ggml_tensor * tk = ggml_new_tensor_3d(ctx, c.type_k, c.dk, c.n_kv_heads, n_cells);
    ggml_tensor * tv = ggml_new_tensor_3d(ctx, c.type_v, c.dv, c.n_kv_heads, n_cells);
    std::memcpy(tk->data, k_bytes.data(), k_bytes.size());
    std::memcpy(tv->data, v_bytes.data(), v_bytes.size());
    ggml_tensor * mask = nullptr;
    if (c.mask != Mask::kNone) {
        mask      = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n_cells, n);
        auto * to = static_cast<ggml_fp16_t *>(mask->data);
        for (int64_t row = 0; row < n; ++row) {
            for (int64_t cell = 0; cell < n_cells; ++cell) {
                const bool exists = cell < c.n_cells;
                *to++ = ggml_fp32_to_fp16(exists ? data.mask[(first + row) * c.n_cells + cell] : -kInfinity);
            }
        }
    }
    const float   scale = 1.0f / std::sqrt(static_cast<float>(c.dk));
    ggml_tensor * out   = ggml_flash_attn_ext(ctx, q, ggml_permute(ctx, tk, 0, 2, 1, 3),
                                              ggml_permute(ctx, tv, 0, 2, 1, 3), mask, scale, 0.0f, c.soft_cap);
    if (c.sinks) {
        ggml_tensor * sinks = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, c.n_heads);
        std::memcpy(sinks->data, data.sinks.data(), ggml_nbytes(sinks));
        ggml_flash_attn_ext_add_sinks(out, sinks);
    }
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_graph_compute_with_ctx(ctx, graph, n_threads);

    std::vector<float> result(ggml_nelements(out));
    std::memcpy(result.data(), out->data, ggml_nbytes(out));
    ggml_free(ctx);
    return result;
}

std::vector<double> expected(const Case & c, const Data & data) {
    const std::vector<float> k = restored(c.type_k, data.k, c.dk), v = restored(c.type_v, data.v, c.dv);
    const double             scale = 1.0 / std::sqrt(static_cast<double>(c.dk));
    std::vector<double>      out(c.n_rows * c.n_heads * c.dv), weights(c.n_cells);
    for (int64_t row = 0; row < c.n_rows; ++row) {
        for (int64_t head = 0; head < c.n_heads; ++head) {
            const int64_t kv_head = head / (c.n_heads / c.n_kv_heads);
            double        highest = c.sinks ? data.sinks[head] : -INFINITY;
            for (int64_t cell = 0; cell < c.n_cells; ++cell) {
                double score = 0.0;
                for (int64_t d = 0; d < c.dk; ++d) {
                    score += static_cast<double>(data.q[(row * c.n_heads + head) * c.dk + d]) *
                             k[(cell * c.n_kv_heads + kv_head) * c.dk + d];
                }
                score *= scale;
                if (c.soft_cap != 0.0f) {
                    score = c.soft_cap * std::tanh(score / c.soft_cap);
                }
                weights[cell] = score + data.mask[row * c.n_cells + cell];
                highest       = std::fmax(highest, weights[cell]);
            }
            double sum = c.sinks ? std::exp(data.sinks[head] - highest) : 0.0;
            for (double & weight : weights) {
                weight = highest == -INFINITY ? 0.0 : std::exp(weight - highest);
                sum += weight;
            }
            for (int64_t cell = 0; cell < c.n_cells; ++cell) {
                for (int64_t d = 0; d < c.dv && weights[cell] != 0.0; ++d) {
                    out[(row * c.n_heads + head) * c.dv + d] +=
                        weights[cell] / sum * v[(cell * c.n_kv_heads + kv_head) * c.dv + d];
                }
            }
        }
    }
    return out;
}

double largest_error(const std::vector<float> & found, const std::vector<double> & wanted) {
    double largest = 0.0;
    for (size_t i = 0; i < found.size(); ++i) {
        const double error = std::fabs(found[i] - wanted[i]);
        largest            = error > largest || std::isnan(error) ? error : largest;
    }
    return largest;
}

bool same(const std::vector<float> & all, int64_t first, const std::vector<float> & some, int64_t row) {
    return std::memcmp(all.data() + first * row, some.data(), some.size() * sizeof(float)) == 0;
}

class Suite {
  public:
    void error(const std::string & name, const std::vector<Case> & cases) {
        double largest = 0.0;
        for (const Case & c : cases) {
            const Data   data(c, seed_++);
            const double found = largest_error(computed(c, data, 0, c.n_rows, 1 + seed_ % 4), expected(c, data));
            largest            = found > largest || std::isnan(found) ? found : largest;
        }
        const bool fine = largest <= kMaxError;
        std::printf("%s: %d cases, error %.2g%s\n", name.c_str(), static_cast<int>(cases.size()), largest,
                    fine ? "" : ": too large");
        failed_ = failed_ || !fine;
    }

    void bits(const std::string & name, const std::vector<Case> & cases) {
        int n = 0, different = 0;
        for (const Case & c : cases) {
            const Data               data(c, seed_++);
            const int64_t            row = c.n_heads * c.dv;
            const std::vector<float> all = computed(c, data, 0, c.n_rows, 1);
            const auto look = [&](int64_t first, int64_t rows, int threads, int64_t padding = 0, float filler = 0.0f) {
                ++n;
                different += !same(all, first, computed(c, data, first, rows, threads, padding, filler), row);
            };
            for (int64_t rows : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5}, c.n_rows}) {
                for (int64_t first = 0; first + rows <= c.n_rows; first += rows) {
                    look(first, rows, 1 + static_cast<int>((first + rows) % 4));
                }
            }
            for (int threads = 2; threads <= 4; ++threads) {
                look(0, c.n_rows, threads);
            }
            for (int64_t padding : {1, 7, 37, 64, 200, 256}) {
                if (c.mask != Mask::kNone) {
                    look(0, c.n_rows, 2, padding, 1.0f);
                    look(c.n_rows - 1, 1, 1, padding, -1.0f);
                    if (c.type_v == GGML_TYPE_F32 || c.type_v == GGML_TYPE_F16 || c.type_v == GGML_TYPE_BF16) {
                        look(0, c.n_rows, 1, padding, kInfinity);
                        look(0, c.n_rows, 1, padding, NAN);
                    }
                }
            }
        }
        std::printf("%s: %d comparisons, %d differ\n", name.c_str(), n, different);
        failed_ = failed_ || different > 0;
    }

    // A value that only the last row sees is no number: those before it must not notice.
    void spoiled(const Case & c) {
        Data                     data(c, seed_++);
        const std::vector<float> clean = computed(c, data, 0, c.n_rows, 1);
        for (int64_t i = 0; i < c.n_kv_heads * c.dv; ++i) {
            data.v[(c.n_cells - 1) * c.n_kv_heads * c.dv + i] = kInfinity;
        }
        std::vector<float> found = computed(c, data, 0, c.n_rows, 2);
        const bool         last  = std::isfinite(found.back());
        found.resize((c.n_rows - 1) * c.n_heads * c.dv);
        const bool fine = !last && same(clean, 0, found, c.n_heads * c.dv);
        std::printf("spoiled values: %s\n", fine ? "kept to the rows that see them" : "spread");
        failed_ = failed_ || !fine;
    }

    bool failed() const { return failed_; }

  private:
    uint32_t seed_   = 1;
    bool     failed_ = false;
};

std::vector<Case> shapes() {
    std::vector<Case> cases;
    const int64_t     sizes[][2] = {{32, 32},   {64, 64},   {72, 40},   {80, 80},  {96, 96},
                                    {128, 128}, {192, 128}, {256, 256}, {576, 512}};
    const int64_t     heads[][2] = {{4, 4}, {4, 2}, {6, 2}, {5, 1}, {8, 1}, {16, 2}};
    const int64_t     rows[]     = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 40};
    const int64_t     cells[]    = {1, 2, 7, 8, 9, 63, 64, 65, 200, 256, 500, 1100};
    const Mask        masks[]    = {Mask::kNone, Mask::kCausal, Mask::kWindow, Mask::kRandom};
    for (size_t i = 0; i < 99; ++i) {  // sizes of the lists have little in common: pairs vary
        const auto & size = sizes[i % 9];
        const auto & head = heads[i / 9 % 6];
        cases.push_back({size[0], size[1], head[0], head[1], rows[i % 11], cells[(i + i / 12) % 12]});
        cases.back().mask = masks[(i + i / 4) % 4];
    }
    return cases;
}

std::vector<Case> with(std::vector<Case> cases, ggml_type k, ggml_type v) {
    for (Case & c : cases) {
        c.type_k = k;
        c.type_v = v;
    }
    return cases;
}

}  // namespace

int main(int argc, char ** argv) {
    const bool        only_bits = argc > 1 && std::strcmp(argv[1], "bits") == 0;
    Suite             suite;
    std::vector<Case> cases = shapes();
    if (!only_bits) {
        suite.error("F16", cases);
        suite.error("F32", with(cases, GGML_TYPE_F32, GGML_TYPE_F32));
        suite.error("BF16", with(cases, GGML_TYPE_BF16, GGML_TYPE_BF16));
        suite.error("F32 and F16", with(cases, GGML_TYPE_F32, GGML_TYPE_F16));

        std::vector<Case> blocks;  // sizes that whole blocks of Q8_0 fit into
        for (const Case & c : cases) {
            if (c.dk % 32 == 0 && c.dv % 32 == 0) {
                blocks.push_back(c);
            }
        }
        suite.error("Q8_0 and Q4_0", with(blocks, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0));
        for (size_t i = 0; i < cases.size(); ++i) {
            cases[i].soft_cap = i % 3 == 0 ? 0.0f : 5.0f;
            cases[i].sinks    = i % 3 != 1;
        }
        suite.error("soft cap and sinks", cases);
    }

    std::vector<Case> rows = {
        {32, 32, 8, 8, 9, 300},   {64, 64, 4, 1, 17, 517},   {128, 128, 4, 2, 40, 200},
        {256, 256, 4, 1, 8, 700}, {72, 40, 6, 2, 11, 130},   {576, 512, 16, 1, 8, 150},
        {64, 64, 2, 2, 40, 20},   {128, 64, 8, 1, 33, 1100}, {80, 80, 5, 1, 16, 1024},
    };
    const struct {
        const char * name;
        Mask         mask;
        ggml_type    type;
    } kinds[] = {
        {"causal, F16", Mask::kCausal, GGML_TYPE_F16},   {"causal, F32", Mask::kCausal, GGML_TYPE_F32},
        {"window, F16", Mask::kWindow, GGML_TYPE_F16},   {"random, F16", Mask::kRandom, GGML_TYPE_F16},
        {"random, BF16", Mask::kRandom, GGML_TYPE_BF16}, {"no mask, F16", Mask::kNone, GGML_TYPE_F16},
        {"causal, Q8_0", Mask::kCausal, GGML_TYPE_Q8_0},
    };
    for (const auto & kind : kinds) {
        std::vector<Case> some;
        for (size_t i = 0; i < rows.size(); ++i) {
            Case c     = rows[i];
            c.mask     = kind.mask;
            c.soft_cap = i % 4 == 1 ? 20.0f : 0.0f;
            c.sinks    = i % 4 == 2;
            if (kind.type != GGML_TYPE_Q8_0 || (c.dk % 32 == 0 && c.dv % 32 == 0)) {
                some.push_back(c);
            }
        }
        suite.bits("bits, " + std::string(kind.name), with(some, kind.type, kind.type));
        if (only_bits) {
            return suite.failed() ? 1 : 0;
        }
    }
    suite.spoiled({64, 64, 8, 2, 8, 300});
    suite.spoiled({64, 64, 2, 2, 3, 300, GGML_TYPE_F32, GGML_TYPE_F32});
    suite.spoiled({64, 64, 2, 2, 2, 300, GGML_TYPE_BF16, GGML_TYPE_F16});
    return suite.failed() ? 1 : 0;
}
