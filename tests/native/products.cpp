// Compares pd2::multiply_rows with ggml's dot products, bit by bit, over odd sizes and every share of up to four threads.
// products TYPE many: pd2::multiply_many_rows instead, which may add up in another order.
// products TYPE: exit status 0 where all agree, 1 after the first difference, 2 where nothing here multiplies TYPE.
#include "target/products.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ggml-cpu.h"
#include "target/products_many.h"

namespace {

enum Outcome { alike = 0, different = 1, refused = 2 };

ggml_type type_named(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * found = ggml_type_name(static_cast<ggml_type>(i));
        if (found && name == found) {
            return static_cast<ggml_type>(i);
        }
    }
    return GGML_TYPE_COUNT;
}

// Rows of `type`, one after the other, of normal values whose scale changes every 32.
std::vector<char> random_rows(std::mt19937 & random, ggml_type type, int64_t rows, int64_t k) {
    std::normal_distribution<float>       normal;
    std::uniform_real_distribution<float> exponent(-6, 6);
    std::vector<float>                    values(rows * k);
    float                                 scale = 1;
    for (size_t i = 0; i < values.size(); ++i) {
        if (i % 32 == 0) {
            scale = std::exp2(exponent(random));
        }
        values[i] = scale * normal(random);
    }
    std::vector<char> quantised(rows * ggml_row_size(type, k));
    if (type == GGML_TYPE_F32) {
        std::memcpy(quantised.data(), values.data(), quantised.size());
    } else {
        ggml_get_type_traits_cpu(type)->from_float(values.data(), quantised.data(), rows * k);
    }
    return quantised;
}

struct Size {
    int64_t m, n, k;
    int     threads;
};

// Of a sum of products that may differ in order: by no more than rounding.
bool close(float got, float expected, const std::vector<float> & row) {
    float largest = 0;
    for (const float one : row) {
        largest = std::max(largest, std::fabs(one));
    }
    return std::fabs(got - expected) <= 1e-5F * largest;
}

Outcome compare(ggml_type type, const Size & size, bool many, std::mt19937 & random) {
    const ggml_type_traits_cpu & traits   = *ggml_get_type_traits_cpu(type);
    const ggml_type              row_type = traits.vec_dot_type;
    const size_t                 a_bytes  = ggml_row_size(type, size.k);
    const size_t                 b_bytes  = ggml_row_size(row_type, size.k);
    const std::vector<char>      a        = random_rows(random, type, size.m, size.k);
    const std::vector<char>      b        = random_rows(random, row_type, size.n, size.k);

    const int64_t      ldc = size.m + 3;
    std::vector<float> c(size.n * ldc, -1.0F);
    for (int thread = 0; thread < size.threads; ++thread) {
        if (!(many ? pd2::multiply_many_rows : pd2::multiply_rows)(
                thread, size.threads, size.m, size.n, size.k / ggml_blck_size(type), a.data(),
                a_bytes / ggml_type_size(type), b.data(), b_bytes / ggml_type_size(row_type), c.data(), ldc, type,
                row_type)) {
            return refused;
        }
    }
    for (int64_t row = 0; row < size.n; ++row) {
        std::vector<float> expected(ldc, -1.0F);  // nothing is written beside the product
        for (int64_t i = 0; i < size.m; ++i) {
            traits.vec_dot(static_cast<int>(size.k), &expected[i], 0, a.data() + i * a_bytes, 0,
                           b.data() + row * b_bytes, 0, 1);
        }
        for (int64_t i = 0; i < ldc; ++i) {
            const float got   = c[row * ldc + i];
            const bool  alike = many && i < size.m ? close(got, expected[i], expected)
                                                   : std::memcmp(&got, &expected[i], sizeof got) == 0;
            if (!alike) {
                std::printf("%s, %lld x %lld of %lld, %d threads: row %lld, weight row %lld is %a and alone %a\n",
                            ggml_type_name(type), (long long)size.m, (long long)size.n, (long long)size.k, size.threads,
                            (long long)row, (long long)i, got, expected[i]);
                return different;
            }
        }
    }
    return alike;
}

}  // namespace

int main(int argc, char ** argv) {
    const bool      many = argc == 3 && std::string(argv[2]) == "many";
    const ggml_type type = argc == 2 || many ? type_named(argv[1]) : GGML_TYPE_COUNT;
    if (type == GGML_TYPE_COUNT) {
        std::fprintf(stderr, "usage: products TYPE [many]\n");
        return 64;
    }
    ggml_cpu_init();
    std::mt19937 random(4);
    for (int64_t n = many ? 24 : 1; n <= 40; ++n) {
        for (const int64_t k : {256, 512, 768, 1280, 4096}) {
            const Size    size    = {std::uniform_int_distribution<int64_t>(1, 45)(random), n, k,
                                     std::uniform_int_distribution<int>(1, 4)(random)};
            const Outcome outcome = compare(type, size, many, random);
            if (outcome != alike) {
                return outcome;
            }
        }
    }
    return alike;
}
