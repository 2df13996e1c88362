// The files of a cache store on disk as a whole: which are its own, and how an
// empty store is made. `DiskStore` says what each is for.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/settings_file.h"

namespace refurbish_tf {

inline constexpr char kLockFile[] = "lock";
inline constexpr char kIndexFile[] = "index";
inline constexpr char kClaimsFile[] = "claims";
inline constexpr char kStateFile[] = "state";
inline constexpr char kRingWordsFile[] = "ring";
inline constexpr char kRingRecordsFile[] = "transit";
inline constexpr char kSourceChecksumsFile[] = "sources";

// The names of the store's files, or an error that names a foreign one.
absl::StatusOr<std::vector<std::string>> ListOwnFiles(
    const Directory& directory);

// Deletes the settings file, which says how the samples were prepared, last,
// when the other deletions are on the disk. Otherwise, a power failure could
// leave samples of unknown origin.
absl::Status DeleteFiles(const Directory& directory,
                         const std::vector<std::string>& names);

// Reads the settings file. If it is missing or damaged, makes an empty store,
// unless there are records to lose or `may_make` is false.
absl::StatusOr<StoreContents> ReadOrMakeContents(const Directory& directory,
                                                 bool may_make);

}  // namespace refurbish_tf
