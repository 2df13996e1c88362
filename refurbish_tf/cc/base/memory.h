// The memory of this process.
#pragma once

#include <cstdint>

namespace refurbish_tf {

// How many bytes it may have: what the machine has, within the limits of its
// control groups, as of a container. Does I/O.
int64_t MemoryLimit();

}  // namespace refurbish_tf
