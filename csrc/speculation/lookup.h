// Drafts without a head: what followed the text's last tokens where they stood before. Two rules, named after
// llama.cpp's drafters whose drafts they give; no memory on the device.
//
// Both index the text themselves: 10 to 30 bytes a token of host memory (bytes() says), and a constant time per
// committed token. A draft costs microseconds, whatever the text's length. Drafts depend on the text, and on the
// verdicts since begin(), alone: nothing of an earlier text is remembered, so a seed gives the same text again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace pd2 {

struct Lookup {
    std::vector<int32_t> tokens;            // the text's continuation; empty: nothing was found
    int32_t              match_length = 0;  // tokens of the text's end that stood before a place this was read from: at
                                            // least the key, counted up to 64; the longest of several places
    int32_t hits = 0;                       // places that agree with it; `mod` looks at one
};

class LookupDrafter {
  public:
    virtual ~LookupDrafter() = default;

    // A new text. The index of what it shares with the one before is kept; verdicts are not.
    virtual void begin(const std::vector<int32_t> & text) = 0;

    // text: all committed tokens, the anchor included; since the last call it has grown or been cut, anything else
    // needs begin(). The answer is valid until the next call.
    virtual const Lookup & draft(const std::vector<int32_t> & text, int32_t max_tokens) = 0;

    // Of the last draft: how much of it was verified, how much of that stood. Not called for a draft that nobody used.
    virtual void accepted(int32_t n_drafted, int32_t n_accepted) = 0;

    virtual const char * name() const  = 0;
    virtual uint64_t     bytes() const = 0;
};

// "map-k4v": what the places where the last `key` tokens stood agree on. Where they differ, two thirds of them decide
// (twice as many as the others), or the draft ends. Fewer than min_hits places: no draft.
std::unique_ptr<LookupDrafter> make_map_k4v(int32_t key = 12, int32_t max_tokens = 48, int32_t min_hits = 1);

// "mod": what followed the last `key` tokens when they last stood somewhere; then the same with that token at their
// end, and so on.
std::unique_ptr<LookupDrafter> make_mod(int32_t key = 12, int32_t max_tokens = 64);

}  // namespace pd2
