#pragma once

namespace refurbish_tf {

// How many CPU cores the process may use now: those of its affinity, within the
// quota of its container, rounded up. Both may change. Does I/O, which takes
// about 0.02 ms.
int ReadCores();

// Whether a thread pool of this size has a thread for each core of the process,
// now or when this library was loaded. Otherwise somebody has chosen its size.
bool IsOfAllCores(int pool_size);

}  // namespace refurbish_tf
