#pragma once

#include <cstdint>
#include <functional>

#include "refurbish_tf/cc/store/disk/records.h"

namespace refurbish_tf {

// Whether enough has changed since the last compaction, which began when
// `SharedState::changed()` was `began_at`. For any thread.
bool IsCompactionDue(const SharedState& state, uint64_t began_at);

// Deletes this process's segments that have no live records. Also empties
// segments with few live records, by moving those records to other segments,
// until the segments take little more space than their live records. (Holes are
// punched for dead large records at once.) For one thread. `go_on` is called
// before each record is moved; false ends the compaction.
void CompactSegments(Records* records, const std::function<bool()>& go_on);

}  // namespace refurbish_tf
