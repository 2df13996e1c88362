#pragma once

namespace refurbish_tf {

// How many CPU cores the process may use now: those of its affinity, within the
// quota of its container, rounded up. Both may change. Does I/O, which takes
// about 0.02 ms.
int ReadCores();

// How many calls run at once if a thread pool of this size was made: as many
// as `ReadCores`, unless somebody has chosen another size than the number of
// cores that the process had when this library was loaded.
int CallsForPool(int pool_size);

}  // namespace refurbish_tf
