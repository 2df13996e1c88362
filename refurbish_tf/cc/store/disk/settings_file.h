#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

struct StoreContents {
  // Changes whenever the store starts empty. Every record contains it.
  uint64_t id = 0;
  Settings settings;
};

// The file that makes a directory a cache store and says how it was written,
// also for people to read:
//
//   refurbish_tf cache store
//   format 1
//   id 0123456789abcdef
//   r 3
//   ...
//   crc32c 89abcdef
//
// It is synced to the disk before any record that depends on it is written.
// Otherwise, a power failure could leave records without their settings.
class SettingsFile {
 public:
  static constexpr char kName[] = "store";

  // `directory` must outlive this object.
  explicit SettingsFile(const Directory* directory) : directory_(directory) {}

  // NotFound if there is none, Unimplemented if it has another format,
  // DataLoss if it is damaged.
  absl::StatusOr<StoreContents> Read() const;

  // Replaces the file atomically. Returns when it is on the disk.
  absl::Status Write(const StoreContents& contents) const;

  // Adds missing settings to the file and returns all. If settings differ,
  // replaces them if `replace` is true, and otherwise fails with
  // FailedPrecondition. Locks the file `lock_name` before it writes;
  // Unavailable if another process has that lock for longer than `patience`.
  absl::StatusOr<Settings> Agree(const Settings& settings, bool replace,
                                 const std::string& lock_name,
                                 std::chrono::milliseconds patience) const;

  // Whether a process that died in `Write` may have left a file of this name.
  static bool IsTemporaryName(const std::string& name);

 private:
  std::string path() const { return directory_->path() + "/" + kName; }

  const Directory* const directory_;
};

}  // namespace refurbish_tf
