#include "refurbish_tf/cc/store/disk/store_files.h"

#include <algorithm>
#include <cstdio>

#include "refurbish_tf/cc/base/entropy.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/store/disk/segments.h"

namespace refurbish_tf {
namespace {

bool IsOwnName(const std::string& name) {
  return name == kLockFile || name == kIndexFile || name == kClaimsFile ||
         name == kStateFile || name == kRingWordsFile ||
         name == kRingRecordsFile || name == kSourceChecksumsFile ||
         name == SettingsFile::kName || SettingsFile::IsTemporaryName(name) ||
         Segments::IsSegmentName(name);
}

bool HoldsRecords(const Directory& directory,
                  const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return Segments::IsSegmentName(name) && directory.FileBytes(name) > 0;
  });
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListOwnFiles(
    const Directory& directory) {
  RTF_ASSIGN_OR_RETURN(std::vector<std::string> names, directory.List());
  for (const std::string& name : names) {
    if (!IsOwnName(name)) {
      return directory.Unusable(
          absl::StrCat("it holds ", name,
                       ", which is not a file of a cache store. Nothing was "
                       "changed. Give an empty or new directory."));
    }
    RTF_RETURN_IF_ERROR(directory.CheckFile(name));
  }
  return names;
}

absl::Status DeleteFiles(const Directory& directory,
                         const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == kLockFile || name == SettingsFile::kName) continue;
    absl::Status deleted = directory.Delete(name);
    if (!deleted.ok() && !absl::IsNotFound(deleted)) return deleted;
  }
  RTF_RETURN_IF_ERROR(directory.Sync());
  absl::Status deleted = directory.Delete(SettingsFile::kName);
  return absl::IsNotFound(deleted) ? absl::OkStatus() : deleted;
}

absl::StatusOr<StoreContents> ReadOrMakeContents(const Directory& directory,
                                                 bool may_make) {
  const SettingsFile file(&directory);
  absl::StatusOr<StoreContents> contents = file.Read();
  // Another format, a planted file and a failed read are returned as errors.
  if (!absl::IsNotFound(contents.status()) &&
      !absl::IsDataLoss(contents.status())) {
    return contents;
  }
  const bool is_missing = absl::IsNotFound(contents.status());
  const std::string why =
      is_missing ? absl::StrCat("There is no file ", directory.path(), "/",
                                SettingsFile::kName,
                                ", which describes the cache store.")
                 : std::string(contents.status().message());
  if (!may_make) return directory.Unusable(why);
  RTF_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                       ListOwnFiles(directory));
  if (HoldsRecords(directory, names)) {
    return directory.Unusable(absl::StrCat(
        why,
        " So it is not known how its samples were prepared. Nothing was "
        "changed. Put the file back, start with an empty store with "
        "overwrite=True, or give another directory."));
  }
  if (!is_missing) {
    std::fprintf(stderr, "refurbish_tf: %s: %s The cache store starts empty.\n",
                 directory.path().c_str(), why.c_str());
  }
  RTF_RETURN_IF_ERROR(DeleteFiles(directory, names));
  contents = StoreContents{NewNumber(), {}};
  RTF_RETURN_IF_ERROR(file.Write(*contents));
  return contents;
}

}  // namespace refurbish_tf
