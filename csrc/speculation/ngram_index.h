// Where n tokens in a row stood before: a hash table from each n-gram of a text to its last place, and a chain from
// each place to the n-gram's place before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pd2 {

class NgramIndex {
  public:
    static constexpr int32_t none = -1;

    explicit NgramIndex(int32_t n);

    // Takes over a text that is the last one longer or shorter.
    void follow(const std::vector<int32_t> & text);

    // Takes over any text; what it shares with the last one stays indexed.
    void replace(const std::vector<int32_t> & text);

    const std::vector<int32_t> & text() const { return text_; }

    int32_t size() const { return static_cast<int32_t>(text_.size()); }

    int32_t n() const { return n_; }

    // The last place in the text of the n tokens at `key`, or none. A place has a token after it: the text's end is
    // none.
    int32_t last(const int32_t * key) const { return slots_[slot(key)]; }

    int32_t before(int32_t place) const { return before_[static_cast<size_t>(place)]; }

    // How many tokens that end with the n-gram at `place`, known to equal the text's last n, equal the text's last
    // ones. Counted up to limit.
    int32_t match_length(int32_t place, int32_t limit) const;

    uint64_t bytes() const;

  private:
    size_t slot(const int32_t * key) const;
    void   add_place();
    void   cut(size_t n_tokens);
    void   grow();

    const int32_t        n_;
    std::vector<int32_t> text_;
    std::vector<int32_t> before_;      // by place
    std::vector<int32_t> slots_;       // a place, or none; a power of two of them, at most half in use
    size_t               n_used_ = 0;  // slots
};

}  // namespace pd2
