#ifndef REFURBISH_TF_CC_STORE_DISK_SETTINGS_FILE_H_
#define REFURBISH_TF_CC_STORE_DISK_SETTINGS_FILE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/directory.h"

namespace refurbish_tf {

// Settings under which a store is used, by name. Names are words.
using Settings = std::map<std::string, std::string>;

// What the file says.
struct StoreContents {
  // Another one each time the store begins anew; it stands in every record.
  uint64_t id = 0;
  Settings settings;
};

// The file that makes a directory a cache store and says how it was written, for
// people to read, too:
//
//   refurbish_tf cache store
//   format 1
//   id 0123456789abcdef
//   reuse_factor 3
//   ...
//   crc32c 89abcdef
//
// What it says is on the disk before a record is written that depends on it: when
// the power fails, records may outlive a file that was not written out.
class SettingsFile {
 public:
  static constexpr char kName[] = "store";

  // `directory` must outlive it.
  explicit SettingsFile(const Directory* directory) : directory_(directory) {}

  // NotFound where there is none, Unimplemented where a newer package has written
  // it, DataLoss where it is damaged.
  absl::StatusOr<StoreContents> Read() const;

  // Replaces the file as a whole, and returns when that is on the disk.
  absl::Status Write(const StoreContents& contents) const;

  // Adds those settings that are not there and returns all. Others that are
  // different it replaces, or fails with FailedPrecondition. Who has something to
  // write does so alone, by a lock on the file `lock_name`; Unavailable where another
  // process has it for longer than `patience`.
  absl::StatusOr<Settings> Agree(const Settings& settings, bool replace,
                                 const std::string& lock_name,
                                 std::chrono::milliseconds patience) const;

  // Whether a file of this name may be left by a process that died in `Write`.
  static bool IsTemporaryName(const std::string& name);

 private:
  std::string path() const { return directory_->path() + "/" + kName; }

  const Directory* const directory_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_SETTINGS_FILE_H_
