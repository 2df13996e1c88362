#ifndef REFURBISH_TF_CC_STORE_DISK_SETTINGS_FILE_H_
#define REFURBISH_TF_CC_STORE_DISK_SETTINGS_FILE_H_

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace refurbish_tf {

// Settings under which a store is used, by name. Names are words.
using Settings = std::map<std::string, std::string>;

// The file that makes a directory a cache store and says how it was written, for
// people to read, too:
//
//   refurbish_tf cache store
//   format 1
//   reuse_factor 3
//   ...
//   crc32c 89abcdef
class SettingsFile {
 public:
  explicit SettingsFile(std::string path) : path_(std::move(path)) {}

  // NotFound where there is none, FailedPrecondition where a newer package has
  // written it, DataLoss where it is damaged.
  absl::StatusOr<Settings> Read() const;

  // Replaces the file as a whole.
  absl::Status Write(const Settings& settings) const;

  // Adds those settings that are not there and returns all; FailedPrecondition
  // where others are different. For one process at a time, by a lock on the file
  // `lock_path`.
  absl::StatusOr<Settings> Agree(const Settings& settings,
                                 const std::string& lock_path) const;

  // Whether a file of this name may be left by a process that died in `Write`.
  static bool IsTemporaryName(const std::string& name);

 private:
  const std::string path_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_SETTINGS_FILE_H_
