// What this process needs before it is forked, so that the child can load an engine of its own.
#pragma once

namespace pd2 {

void fork_install();  // idempotent; before the first call into llama.cpp
void fork_check();    // throws where ggml would end a forked process: on the GPU that its parent had opened

}  // namespace pd2
