// The files of a cache store on disk: which are its own, and how an empty store
// is made. The comment of `DiskStore` says what each is for.
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

// The names of the store's files, or an error if any other file is there.
absl::StatusOr<std::vector<std::string>> ListOwnFiles(
    const Directory& directory);

// Deletes these files and the settings file, but not the lock file. The
// settings file says how the samples were prepared. So it is deleted last, when
// the other deletions are on the disk: otherwise, a power failure could leave
// samples of unknown origin.
absl::Status DeleteFiles(const Directory& directory,
                         const std::vector<std::string>& names);

// Reads the settings file. If it is missing or damaged, makes an empty store,
// but fails if there are records to lose or `may_make` is false.
absl::StatusOr<StoreContents> ReadOrMakeContents(const Directory& directory,
                                                 bool may_make);

}  // namespace refurbish_tf
