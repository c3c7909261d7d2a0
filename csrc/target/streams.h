// Texts decoded side by side, each in a stream of its own: caches that share the target's weights and each decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pd2 {

class Streams {
  public:
    virtual ~Streams() = default;

    // Tokens that follow what a stream holds.
    struct Piece {
        int32_t         stream   = 0;
        const int32_t * tokens   = nullptr;
        int32_t         n        = 0;
        int32_t         position = 0;  // where the stream ends
    };

    virtual int32_t batch_size() const = 0;  // tokens of a decode at most; no fewer than there are streams

    // One piece a stream, streams ascending. with_logits: of each piece's last token. A decode that throws leaves all
    // streams empty.
    virtual void decode(const std::vector<Piece> & pieces, bool with_logits) = 0;

    // Of the last decode, [n_vocab] after a piece.
    virtual const float * logits(size_t piece) const = 0;

    virtual void clear(int32_t stream) = 0;
};

}  // namespace pd2
