// Whether a head was made for a target: checked with the numbers of both, before anything is computed.
#pragma once

#include "drafter/drafter.h"
#include "target/target.h"

namespace pd2 {

// Throws PD2_ERROR_HEAD_MISMATCH naming the first thing that does not fit.
void check_pair(const HeadParams & head, const std::string & head_path, const pd2_target_info & target);

}  // namespace pd2
